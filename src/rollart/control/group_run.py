"""One group's rollout: its members, their attempts, its spares, and who of them is kept.

Invariant: every trajectory started here leaves the ledger here, unless it stands in `done` when the
group has ended; a full group holds exactly the kept. A place tries again until one attempt can be
trained or its attempts are used up.
Who waits: the scheduler's task of this group, until every member has ended and let go.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from rollart.control.barrier import FREE, Pace, TurnBarrier
from rollart.control.deadline import now
from rollart.control.env_manager import EnvManager
from rollart.control.flight import (
    Flight,
    KeepRule,
    LiveGroup,
    is_trainable,
    unusable_disposition,
)
from rollart.control.ledger import Ledger
from rollart.control.no_verdicts import NoVerdicts
from rollart.control.redundancy import Outcome
from rollart.control.tail import KEPT
from rollart.core.errors import FailureKind, RunStalled
from rollart.core.events import Warned
from rollart.core.identity import TrajectoryId
from rollart.core.ports import EventSink
from rollart.core.types import Disposition, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """`attempts` bounds the tries at one place, `max_no_verdict` the share without a verdict."""

    run: str
    attempts: int
    max_no_verdict: float


class GroupRunner:
    """Rolls groups out. By domain: `outcomes`, the last trajectories' times; `ended`, how many."""

    def __init__(
        self,
        *,
        managers: Mapping[str, EnvManager],
        ledger: Ledger,
        keep: KeepRule,
        may_go_on: Callable[[LiveGroup], bool],
        barrier: TurnBarrier | None,
        settings: GroupSettings,
        events: EventSink,
    ) -> None:
        self._managers = managers
        self._ledger = ledger
        self._keep = keep
        self._may_go_on = may_go_on
        self._barrier = barrier
        self._settings = settings
        self._events = events
        self._no_verdicts = NoVerdicts(settings.max_no_verdict)
        self._told: set[tuple[str, FailureKind]] = set()
        self.last_failure: dict[str, str] = {}
        self._paces: dict[int, list[Pace]] = {}
        self.outcomes: defaultdict[str, deque[Outcome]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.ended: Counter[str] = Counter()

    def prepare(self, group: LiveGroup) -> None:
        """Once, before `run`: from here on the others of a lockstep round wait for its members."""
        self._paces[group.id] = [self._join(group, place) for place in range(group.places)]

    async def run(self, group: LiveGroup) -> None:
        """Returns when all members have ended; `done` then holds those that stay.

        Raises:
            BaseExceptionGroup: a member's task failed, or too many trajectories had no
                verdict (`RunStalled`); the others were cancelled.
        """
        try:
            async with asyncio.TaskGroup() as members:
                for place, pace in enumerate(self._paces.pop(group.id)):
                    if group.doom is None:
                        group.members[place] = members.create_task(self._member(group, place, pace))
        finally:
            for place in range(group.places):
                self._leave_barrier(group, place)
            self._settle(group)

    def _settle(self, group: LiveGroup) -> None:
        """Who finished and is not kept leaves; a group that never filled keeps what it has."""
        kept = group.kept
        if kept is None and group.doom is not None:
            return  # it leaves whole
        if kept is None:
            group.kept = kept = tuple(sorted(group.done)[: group.size])
        for place in [place for place in group.done if place not in kept]:
            self._leave(group.done.pop(place), *group.leaves_as(place))

    async def _member(self, group: LiveGroup, place: int, pace: Pace) -> None:
        try:
            for attempt in range(self._settings.attempts):
                trajectory = await self._attempt(group, place, attempt, pace)
                too_many = self._no_verdicts.count(trajectory)
                if is_trainable(trajectory):
                    group.done[place] = trajectory
                    break
                self._leave(trajectory, unusable_disposition(trajectory), trajectory.detail)
                self._tell(trajectory)
                if too_many is not None:
                    raise RunStalled(too_many)
            else:
                group.given_up.add(place)
        finally:
            self._leave_barrier(group, place)
        if group.kept is None and (kept := self._keep(group)) is not None:
            group.fill(kept)

    async def _attempt(self, group: LiveGroup, place: int, attempt: int, pace: Pace) -> Trajectory:
        task = group.entry.task
        flight = Flight(
            id=TrajectoryId(
                run=self._settings.run,
                domain=task.domain,
                task=task.key,
                group=group.id,
                member=place,
                attempt=attempt,
            ),
            task=task,
            started_at=now(),
        )
        self._ledger.start(flight.id)
        group.flights[place] = flight
        try:
            trajectory = await self._managers[task.domain].rollout(
                flight, may_go_on=partial(self._may_go_on, group), pace=pace
            )
        except BaseException:
            seconds = now() - flight.started_at
            self._note(task.domain, Outcome(seconds=seconds, censored=True))
            disposition, reason = group.leaves_as(place)
            self._ledger.leave(
                flight.id,
                disposition,
                reason=reason,
                start_version=flight.start_version,
                elapsed_s=seconds,
                censored=True,
            )
            raise
        finally:
            del group.flights[place]
        self._note(
            task.domain,
            Outcome(
                seconds=trajectory.ended_at - trajectory.started_at,
                failed=not is_trainable(trajectory),
            ),
        )
        return trajectory

    def _tell(self, trajectory: Trajectory) -> None:
        """The first failure of each kind in a domain is told in full; the others are counted."""
        domain, failure = trajectory.id.domain, trajectory.failure
        if failure is None:
            return
        self.last_failure[domain] = f"{failure}: {trajectory.detail}"
        if (domain, failure) not in self._told:
            self._told.add((domain, failure))
            self._events.emit(
                Warned(
                    message=f"domain {domain}: {trajectory.id} failed, {failure}: "
                    f"{trajectory.detail}; others of this kind are only counted"
                )
            )

    def _note(self, domain: str, outcome: Outcome) -> None:
        self.outcomes[domain].append(outcome)
        self.ended[domain] += 1

    def _leave(self, trajectory: Trajectory, disposition: Disposition, reason: str) -> None:
        self._ledger.leave(
            trajectory.id,
            disposition,
            reason=reason,
            start_version=trajectory.start_version,
            elapsed_s=trajectory.ended_at - trajectory.started_at,
        )

    def _join(self, group: LiveGroup, place: int) -> Pace:
        return FREE if self._barrier is None else self._barrier.join((group.id, place))

    def _leave_barrier(self, group: LiveGroup, place: int) -> None:
        if self._barrier is not None:
            self._barrier.leave((group.id, place))
