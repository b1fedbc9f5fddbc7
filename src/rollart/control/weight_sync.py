"""One iteration, as the paper writes it: six steps between trainer and rollout.

    1 get_batch   2 end what is surplus or becomes stale, suspend   3 update   4 resume
    5 recompute   6 train_step, beside the resumed rollout

Invariant: resume follows suspend whatever happens between; before each train_step a routable
engine has acknowledged the trainer's version. With alpha = 0 the order is 1, 2, 6, 3, 4, 5 and
nothing overlaps. Credits of a batch return at resume.
Who waits: the controller, for an iteration; each wait inside has its own deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollart.control.deadline import now, within
from rollart.control.evaluation_beside import EvaluationBeside
from rollart.control.fleet import Fleet
from rollart.control.llm_proxy import LLMProxy
from rollart.control.protocols import ProtocolPolicy
from rollart.control.scheduler import RolloutScheduler
from rollart.control.staleness import start_lag, token_lag
from rollart.core.errors import TrainerLost, WeightSyncFailed
from rollart.core.events import BatchTaken, Phase, PhaseBegan, PhaseEnded, StepTrained
from rollart.core.identity import PolicyVersion
from rollart.core.ports import EventSink, Trainer
from rollart.core.types import Disposition, Group, TrainBatch, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Groups a batch; seconds for one train step and for one publication."""

    batch_groups: int
    train_s: float
    weights_s: float


class WeightSync:
    """Runs iterations over the same parts for every protocol."""

    def __init__(
        self,
        *,
        scheduler: RolloutScheduler,
        proxy: LLMProxy,
        fleet: Fleet,
        trainer: Trainer,
        evaluation: EvaluationBeside,
        protocol: ProtocolPolicy,
        settings: SyncSettings,
        events: EventSink,
        progress: Callable[[int], float],
    ) -> None:
        self._scheduler = scheduler
        self._proxy = proxy
        self._fleet = fleet
        self._trainer = trainer
        self._evaluation = evaluation
        self._protocol = protocol
        self._settings = settings
        self._events = events
        self._progress = progress

    async def first_sync(self) -> None:
        """Engines hold the trainer's version before the first generation."""
        await self._publish(0)
        await self._update(0)
        async with self._phase(0, Phase.RESUME):
            await self._proxy.resume()

    async def last_sync(self) -> None:
        """Engines take the trainer's last version, for the evaluation that follows."""
        step = self._trainer.version.number
        try:
            await self._suspend(step)
            await self._update(step)
        finally:
            async with self._phase(step, Phase.RESUME):
                await self._proxy.resume()

    async def iteration(self, step: int) -> None:
        """One batch from rollout to new weights."""
        if self._protocol.overlap:
            await self._overlapped(step)
        else:
            await self._synchronous(step)

    async def _overlapped(self, step: int) -> None:
        batch = await self._get_batch(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.end_surplus()
            await self._scheduler.abort_stale(self._trainer.version.number)
        await self._evaluation.settled()
        try:
            await self._suspend(step)
            await self._update(step)
        finally:
            await self._resume(step)
        async with asyncio.TaskGroup() as together:
            together.create_task(self._recompute(step))
            together.create_task(self._train(step, batch))

    async def _synchronous(self, step: int) -> None:
        batch = await self._get_batch(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.end_surplus()
        await self._evaluation.settled()
        try:
            await self._suspend(step)
            await self._train(step, batch)
            await self._update(step)
        finally:
            await self._resume(step)
        await self._recompute(step)

    # -- the steps -----------------------------------------------------------------------------

    async def _get_batch(self, step: int) -> tuple[Group, ...]:
        async with self._phase(step, Phase.GET_BATCH):
            batch = await self._scheduler.get_batch(self._settings.batch_groups)
        members = [member for group in batch for member in group.members]
        self._events.emit(
            BatchTaken(
                step=step,
                groups=len(batch),
                trajectories=len(members),
                tokens=sum(member.tokens for member in members),
                start_lag_max=start_lag(batch, committed=self._fleet.committed),
                score_mean=mean([m.score for m in members if m.score is not None]),
                success_mean=mean(successes(members)),
            )
        )
        return batch

    async def _suspend(self, step: int) -> None:
        async with self._phase(step, Phase.SUSPEND):
            await self._proxy.suspend()

    async def _update(self, step: int) -> None:
        async with self._phase(step, Phase.UPDATE):
            await self._fleet.update(self._trainer.version)
            self._scheduler.committed = self._fleet.committed

    async def _resume(self, step: int) -> None:
        async with self._phase(step, Phase.RESUME):
            await self._proxy.resume()
            self._scheduler.resumed()
        self._evaluation.resumed(self._fleet.committed)

    async def _recompute(self, step: int) -> None:
        async with self._phase(step, Phase.RECOMPUTE):
            await self._fleet.rebuild_kv()

    async def _train(self, step: int, groups: tuple[Group, ...]) -> None:
        version = self._trainer.version
        if self._fleet.committed != version.number:
            raise WeightSyncFailed(
                f"step {step} would train {version}, but engines have acknowledged version "
                f"{self._fleet.committed}; update first"
            )
        batch = TrainBatch(step=step, groups=groups, progress=self._progress(step))
        async with self._phase(step, Phase.TRAIN_STEP):
            stats = await within(
                self._settings.train_s,
                self._trainer.train_step(batch),
                lambda: TrainerLost(
                    f"train step {step} took over {self._settings.train_s:g} s; "
                    "raise timeouts.train_s or make the batch smaller"
                ),
            )
        self._scheduler.batch_left(Disposition.TRAINED)
        lag = token_lag(batch.trajectories, training_version=version.number)
        self._events.emit(
            StepTrained(
                step=step,
                stats=stats,
                token_lag_max=lag.maximum,
                token_lag_mean=lag.mean,
                tokens=lag.tokens,
            )
        )
        await self._publish(step)

    async def _publish(self, step: int) -> PolicyVersion:
        """Push the trainer's version to the store, beside the rollout."""
        async with self._phase(step, Phase.PUBLISH):
            return await within(
                self._settings.weights_s,
                self._trainer.publish(),
                lambda: WeightSyncFailed(
                    f"{self._trainer.version} was not committed to the weight store within "
                    f"{self._settings.weights_s:g} s; raise timeouts.weights_s"
                ),
            )

    @asynccontextmanager
    async def _phase(self, step: int, phase: Phase) -> AsyncGenerator[None]:
        began = now()
        ok = False
        self._events.emit(PhaseBegan(step=step, phase=phase))
        try:
            yield
            ok = True
        finally:
            self._events.emit(PhaseEnded(step=step, phase=phase, seconds=now() - began, ok=ok))


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def successes(trajectories: list[Trajectory]) -> list[float]:
    """The `success` metric of those that have one."""
    found = [trajectory.metric("success") for trajectory in trajectories]
    return [value for value in found if value is not None]
