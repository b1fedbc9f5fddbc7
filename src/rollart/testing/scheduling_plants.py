"""Planted bugs in what admits, counts, orders and rolls out. Each class says what it does.

Every one of them was met in some system that does this job.
"""

from dataclasses import replace
from typing import Any

from rollart.control.admission import Credits
from rollart.control.env_manager import EnvManager
from rollart.control.flight import Flight, LiveGroup
from rollart.control.group_run import GroupRunner
from rollart.control.ledger import Ledger
from rollart.control.llm_proxy import Answer
from rollart.control.redundancy import first_to_finish
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler
from rollart.control.task_queue import QueuedTask, TaskQueue
from rollart.core.identity import TrajectoryId
from rollart.core.types import Disposition, Group, Status, Turn, Verdict


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


class LosesACredit(Credits):
    """Loses one of the credits that come back together."""

    def give_back(self, groups: int) -> None:
        super().give_back(groups - 1 if groups > 1 else groups)


class NewestFirst(SampleBuffer):
    """Takes the groups with the newest start."""

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


class RequeuesTwice(RolloutScheduler):
    """What comes back comes back twice."""

    def __init__(self, *, tasks: TaskQueue, **parts: Any) -> None:
        class Repeats(TaskQueue):
            def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
                super().requeue(entry, failed=failed)
                super().requeue(entry, failed=failed)

        super().__init__(tasks=Repeats(tasks._sources, tasks._weights, tasks._events), **parts)


class CarriesSurplusOver(RolloutScheduler):
    """Keeps the spare groups of a full batch for the next one."""

    async def end_surplus(self) -> int:
        return 0


class KeepsTheFast(RolloutScheduler):
    """Keeps who finished first, also where speed was to have no say."""

    def _places_to_keep(self, group: LiveGroup) -> tuple[int, ...] | None:
        return first_to_finish(tuple(group.done), size=group.size)


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


class TakesSilenceForZero(EnvManager):
    """Where a reward has no verdict, the score is 0."""

    async def _score(self, flight: Flight, episode: Any, status: Status) -> Verdict:
        verdict = await super()._score(flight, episode, status)
        return verdict if verdict.score is not None else Verdict(score=0.0)


class HidesLostTurns(EnvManager):
    """A turn whose step failed is not told of."""

    def _turn_ended(self, name: str, turn: Turn, index: int, answer: Answer) -> None:
        if turn.reward is not None:
            super()._turn_ended(name, turn, index, answer)
