"""The trainer of a replay: as many steps as were trained, with the statistics they had.

Invariant: its version goes up with each step that ended well, and it dies when the record says so.
"""

from collections.abc import Sequence
from typing import NoReturn

from rollart.core.errors import RollartError
from rollart.core.events import (
    Event,
    GapMeasured,
    Phase,
    PhaseEnded,
    RunEnded,
    StepTrained,
    Warned,
)
from rollart.core.identity import PolicyVersion
from rollart.core.types import (
    LogprobGap,
    TrainBatch,
    TrainStats,
    Trajectory,
)
from rollart.runtimes.sim.replay.causes import when
from rollart.runtimes.sim.replay.comparing import Ask, Cause, Comparing
from rollart.runtimes.sim.replay.record import NOT_SAVED, TRAINER_DIED


class ReplayTrainer:
    """Counts versions, and says of each step what was said of it."""

    def __init__(self, conductor: Comparing, policy: str = "agent") -> None:
        self._conductor = conductor
        self._version = PolicyVersion(policy, 0)

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        trained = self._conductor.record.next_of(
            StepTrained, self._conductor.place - 1, lambda event: event.step == batch.step
        )
        await self._phase(Phase.TRAIN_STEP)
        assert trained is not None, "a train step that ended well has its statistics"
        self._version = self._version.next()
        return trained[1].stats

    async def publish(self) -> PolicyVersion:
        await self._phase(Phase.PUBLISH)
        return self._version

    async def _phase(self, phase: Phase) -> None:
        ended = self._conductor.record.next_of(
            PhaseEnded, self._conductor.place - 1, lambda event: event.phase is phase
        )
        ok = ended is not None and ended[1].ok

        def causes(event: Event) -> Cause:
            if ended is None or event is not ended[1]:
                return Cause.NO
            return Cause.ANSWER if ok else Cause.ERROR if self._failed() else Cause.NO

        ask = Ask(what=f"the trainer's {phase}", causes=causes)
        await self._conductor.ask(ask, lambda: None if ok else self._fail())

    def _failed(self) -> bool:
        """Whether the run ended by an error of the trainer's own."""
        record = self._conductor.record
        reason = record.reason()
        ended_well = record.end is None or record.end.ok
        return not ended_well and not record.stopped() and not reason.startswith(TRAINER_DIED)

    def _fail(self) -> NoReturn:
        raise RollartError(self._conductor.record.reason())

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        record = self._conductor.record
        gap = record.next_of(GapMeasured, self._conductor.place - 1)
        if gap is None:
            ask = Ask(what="a comparison", last=2 if self._failed() else None)
            await self._conductor.ask(ask, self._fail)
        assert gap is not None, "the comparison is recorded"
        ask = Ask(what="a comparison", causes=lambda event: when(event is gap[1]))
        await self._conductor.ask(ask)
        return LogprobGap(tokens=gap[1].tokens, maximum=gap[1].maximum, mean=gap[1].mean)

    async def save(self, directory: str) -> None:
        told = self._conductor.record.next_of(
            Warned, self._conductor.place - 1, lambda event: event.message.startswith(NOT_SAVED)
        )

        def saved() -> None:
            if told is not None:
                raise RollartError(told[1].message.removeprefix(NOT_SAVED))

        def causes(event: Event) -> Cause:
            if told is not None:
                return Cause.ERROR if event is told[1] else Cause.NO
            return when(isinstance(event, RunEnded))

        await self._conductor.ask(Ask(what="the weights to be saved", causes=causes), saved)

    async def wait_dead(self) -> str:
        record = self._conductor.record
        reason = record.reason()
        dies = reason.startswith(TRAINER_DIED)
        ask = Ask(
            what="the trainer to die",
            last=2 if dies else None,
            may_last=lambda event: record.ends_from_outside(self._conductor.place),
        )
        return await self._conductor.ask(ask, lambda: reason.removeprefix(TRAINER_DIED))

    async def close(self) -> None:
        return
