"""Each promise, broken on purpose: the check that the real control plane passes finds the bug.

Every bug here was met in some system that does this job. Each test runs one schedule twice: the
real parts keep every promise on it, the broken part does not.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollart.control.admission import Credits
from rollart.control.assembly import STANDARD, ControlParts
from rollart.control.env_manager import EnvManager
from rollart.control.fleet import EngineSlot, EngineState, Fleet
from rollart.control.flight import LiveGroup
from rollart.control.group_run import GroupRunner
from rollart.control.ledger import Ledger
from rollart.control.llm_proxy import Answer, GenerateCall, LLMProxy, StartSink, _Pending
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler
from rollart.control.task_queue import QueuedTask, TaskQueue
from rollart.control.weight_sync import WeightSync
from rollart.core.config import JobConfig
from rollart.core.events import Phase
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Binding, Engine
from rollart.core.types import Disposition, Group
from rollart.testing.engine import ScriptedEngine
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

ROUGH = Script(
    turns=(1, 8),
    tokens_per_turn=(5, 20),
    token_s=(0.05, 0.4),
    train_s=(2.0, 4.0),
    update_s=(2.0, 4.0),
)
"""Trajectories that outlast a step: updates find them in flight, and a tenth become stale."""
DYING = replace(
    ROUGH,
    engine_deaths=(("engine-0", 40), ("engine-1", 90), ("engine-0", 150)),
    update_failures=(("engine-1", 3), ("engine-0", 4)),
)
JOB = scripted_job(run__steps=10, rollout__engines=2, rollout__batch_groups=2, protocol__alpha=2)


class StartsWhenItEnds(LLMProxy):
    """Reads the start version after the await, when the answer is there."""

    def _dispatch(self, pending: _Pending, slot: EngineSlot) -> None:
        on_start, pending.on_start = pending.on_start, lambda version: None
        pending.future.add_done_callback(lambda _: on_start(slot.version))
        super()._dispatch(pending, slot)


class Reencodes(LLMProxy):
    """Returns other ids than the engine sampled, as a decode and encode may."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        answer = await super().generate(call, on_start)
        ids = np.sort(np.asarray(answer.completion.ids))
        return replace(answer, completion=replace(answer.completion, ids=ids))


class LabelsWithTheNewest(LLMProxy):
    """Gives all tokens of a completion the version at its end."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        answer = await super().generate(call, on_start)
        versions = answer.completion.versions
        newest = (
            replace(versions, runs=((versions.newest, len(versions)),)) if versions else versions
        )
        return replace(answer, completion=replace(answer.completion, versions=newest))


class ForgetsOnDrop(LLMProxy):
    """A cancelled request is forgotten here and goes on at the engine."""

    async def _drop(self, pending: _Pending) -> None:
        self._detach(pending)


class ForgetsTokens(LLMProxy):
    """A request that moves begins anew."""

    def _move(self, slot: EngineSlot) -> int:
        for request_id in slot.inflight:
            pending = self._sent[request_id]
            pending.ids.clear()
            pending.logprobs.clear()
            pending.versions = replace(pending.versions, runs=())
        return super()._move(slot)


class WholeBudgetAgain(LLMProxy):
    """A request that moves may sample as much as it could at first."""

    def _budget(self, pending: _Pending) -> int:
        return min(pending.call.max_tokens, self._context - pending.prompt_tokens)


class SendsWhileSuspended(LLMProxy):
    """A second path to the engines, which nobody suspends."""

    def _pump(self) -> None:
        slot = self._fleet.slot("engine-0")
        while self._queue and slot is not None and slot.version >= 0:
            self._dispatch(self._queue.popleft(), slot)


class RoutesBeforeTheAnswer(Fleet):
    """Takes an engine that lives for one that has the weights."""

    def _is_routable(self, slot: EngineSlot) -> bool:
        return slot.state is not EngineState.LOST


class ResumesOnlyOnSuccess(WeightSync):
    """Resume is not in `finally`: an update that raises leaves the engines paused."""

    async def _overlapped(self, step: int) -> None:
        batch = await self._get_batch(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.abort_stale(self._trainer.version.number)
        await self._suspend(step)
        await self._update(step)
        await self._resume(step)
        await self._train(step, batch)


class AbortsAfterResume(WeightSync):
    """Ends what is stale only once the engines run again."""

    async def _overlapped(self, step: int) -> None:
        batch = await self._get_batch(step)
        try:
            await self._suspend(step)
            await self._update(step)
        finally:
            await self._resume(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.abort_stale(self._trainer.version.number)
        await self._train(step, batch)


class TrainsUncommitted(WeightSync):
    """Goes on to train although no engine has the trainer's version."""

    async def _update(self, step: int) -> None:
        if step % 2 == 0:
            await super()._update(step)

    async def _train(self, step: int, groups: tuple[Group, ...]) -> None:
        committed, self._fleet.committed = self._fleet.committed, self._trainer.version.number
        await super()._train(step, groups)
        self._fleet.committed = committed


class CreditsAtGetBatch(RolloutScheduler):
    """Returns a batch's credits as soon as it is taken."""

    async def get_batch(self, groups: int) -> tuple[Group, ...]:
        batch = await super().get_batch(groups)
        self.resumed()
        return batch


class EndlessCredits(Credits):
    """Does not count."""

    def take(self) -> None:
        return

    def give_back(self, groups: int) -> None:
        return


class OneMore(EndlessCredits):
    """Admits one group more than its capacity."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.real = Credits(capacity + 1)

    async def available(self) -> None:
        await self.real.available()

    def take(self) -> None:
        self.real.take()

    def give_back(self, groups: int) -> None:
        self.real.give_back(groups)


class NewestFirst(SampleBuffer):
    def take(self, count: int, *, in_order: bool = False) -> tuple[Group, ...]:
        newest = sorted(self._groups.values(), key=lambda group: -group.start_version)[:count]
        return self.evict(lambda group: group in newest)


class NeverStale(RolloutScheduler):
    """Checks the bound when a trajectory starts, and never again."""

    def _is_stale(self, start_version: int | None) -> bool:
        return False

    async def abort_stale(self, version: int) -> int:
        return 0

    def _evict(self, version: int) -> int:
        return 0


class ForgetsStaleTasks(RolloutScheduler):
    """What is dropped as stale never comes back."""

    def __init__(self, *, tasks: TaskQueue, **parts: Any) -> None:
        class Forgets(TaskQueue):
            def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
                return

        super().__init__(tasks=Forgets(tasks._sources, tasks._weights, tasks._events), **parts)


class LeavesTwice(RolloutScheduler):
    """Counts a condemned group's trajectories at once, and each again when it has ended."""

    def _settle(self, group: LiveGroup) -> None:
        if group.doom is not None:
            for trajectory in group.done.values():
                self._leave(trajectory, group.doom)
        super()._settle(group)


class CountsTwice(Ledger):
    """Believes every leaving."""

    def leave(self, trajectory: TrajectoryId, disposition: Disposition, **details: Any) -> bool:
        if trajectory not in self._open:
            self._open[trajectory] = None
        return super().leave(trajectory, disposition, **details)


class LosesTheFailed(GroupRunner):
    """What ends without a score is not written down."""

    def _leave(self, trajectory: Any, disposition: Disposition, reason: str) -> None:
        if disposition is not Disposition.FAILED:
            super()._leave(trajectory, disposition, reason)


class NoDeadline(EnvManager):
    """Waits for an environment as long as it takes."""

    def __init__(self, *, settings: Any, **parts: Any) -> None:
        for_ever = replace(settings, episode_s=1e9, env_step_s=1e9)
        super().__init__(settings=for_ever, **parts)


class KeepsEnvironments(EnvManager):
    """Lets an environment go only when all went well."""

    async def _play(self, *args: Any) -> Any:
        environments = self._environments
        real_open = environments.open

        class Kept:
            async def open(self, trajectory: TrajectoryId) -> Any:
                environment = await real_open(trajectory)
                environment.kill = lambda: None
                return environment

        self._environments = Kept()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return await super()._play(*args)
        finally:
            self._environments = environments


def judge(job: JobConfig, script: Script, parts: ControlParts) -> list[str]:
    return broken_promises(run_scripted(job, script, parts=parts, max_virtual_time=1e5))


BUGS: list[tuple[JobConfig, Script, ControlParts, str]] = [
    (JOB, replace(ROUGH, seed=9), ControlParts(proxy=StartsWhenItEnds), "began at"),
    (JOB, ROUGH, ControlParts(proxy=Reencodes), "tokens: "),
    (JOB, ROUGH, ControlParts(proxy=ForgetsOnDrop), "was left with"),
    (JOB, DYING, ControlParts(proxy=ForgetsTokens), "continuation: "),
    (JOB, DYING, ControlParts(proxy=WholeBudgetAgain), "continuation: "),
    (JOB, ROUGH, ControlParts(proxy=SendsWhileSuspended), "while paused"),
    (JOB, DYING, ControlParts(fleet=RoutesBeforeTheAnswer), "it had acknowledged"),
    (
        scripted_job(run__steps=3),
        replace(ROUGH, update_failures=[("engine-0", n) for n in range(2, 40)]),
        ControlParts(sync=ResumesOnlyOnSuccess),
        "ended suspended",
    ),
    (JOB, ROUGH, ControlParts(sync=AbortsAfterResume), "six steps: step"),
    (JOB, ROUGH, ControlParts(sync=TrainsUncommitted), "commit: step"),
    (JOB, ROUGH, ControlParts(scheduler=CreditsAtGetBatch), "admission: "),
    (JOB, ROUGH, ControlParts(credits=OneMore), "admission: "),
    (
        scripted_job(run__steps=8, protocol__alpha=3, rollout__batch_groups=1),
        Script(train_s=(20.0, 20.0)),
        ControlParts(buffer=NewestFirst),
        "order: step",
    ),
    (JOB, ROUGH, ControlParts(scheduler=NeverStale), "alpha: "),
    (JOB, ROUGH, ControlParts(scheduler=ForgetsStaleTasks), "order: "),
    (JOB, ROUGH, ControlParts(scheduler=LeavesTwice, ledger=CountsTwice), "more than once"),
    (
        JOB,
        replace(ROUGH, step_fails=0.1),
        ControlParts(runner=LosesTheFailed),
        "never left",
    ),
    (
        scripted_job(run__steps=8, protocol__alpha=3),
        replace(ROUGH, step_hangs_for=("task-1",), train_s=(40.0, 40.0)),
        ControlParts(manager=NoDeadline),
        "deadline: ",
    ),
    (JOB, ROUGH, ControlParts(manager=KeepsEnvironments), "environments of lake left open"),
]


def name_of(value: object) -> str | None:
    if isinstance(value, ControlParts):
        standard = vars_of(STANDARD)
        return "-".join(k.__name__ for k in vars_of(value) if k not in standard)
    return None


def vars_of(parts: ControlParts) -> list[type]:
    return [getattr(parts, name) for name in parts.__dataclass_fields__]


@pytest.mark.parametrize(("job", "script", "parts", "words"), BUGS, ids=name_of)
def test_the_checks_find_a_planted_bug_where_the_real_parts_pass(
    job: JobConfig, script: Script, parts: ControlParts, words: str
) -> None:
    assert judge(job, script, STANDARD) == []
    problems = judge(job, script, parts)
    assert any(words in problem for problem in problems), problems[:3]


def test_a_late_leaving_is_harmless_to_the_real_ledger() -> None:
    assert judge(JOB, ROUGH, ControlParts(scheduler=LeavesTwice)) == []


def careless_run(*, rebuilds_kv: bool) -> ScriptedRun:
    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            self.engines.append(
                ScriptedEngine(binding.worker, self.script, rebuilds_kv=rebuilds_kv)
            )
            return self.engines[-1]

    return run_scripted(JOB, ROUGH, launcher=Launches)


def test_an_engine_that_goes_on_with_old_kv_is_found() -> None:
    assert broken_promises(careless_run(rebuilds_kv=True)) == []
    assert any(
        "stale KV" in problem for problem in broken_promises(careless_run(rebuilds_kv=False))
    )


def test_a_trajectory_labelled_with_the_newest_version_is_found() -> None:
    problems = judge(JOB, ROUGH, ControlParts(proxy=LabelsWithTheNewest))
    assert any("versions: " in problem for problem in problems), problems[:3]
