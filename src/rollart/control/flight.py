"""What is under way: one trajectory in flight, and the group it belongs to.

Invariant: a flight's start version is set once, by the first engine that it was sent to; a group's
is the oldest of its members', finished ones included, so staleness is one answer for all of them.
A member is cancelled once, and leaves by the reason of that.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rollart.control.task_queue import QueuedTask
from rollart.core.identity import TrajectoryId
from rollart.core.types import Disposition, Status, Task, Trajectory, scores_equal

KeepRule = Callable[["LiveGroup"], tuple[int, ...] | None]
"""The places that are kept, or None while the group is not full."""

OTHERS = "the others"
"""What a flight waits for in lockstep."""


@dataclass(slots=True, eq=False)
class Flight:
    """A trajectory that has started and not ended. `waits_for` is for people to read."""

    id: TrajectoryId
    task: Task
    started_at: float
    start_version: int | None = None
    waits_for: str = "environment"

    def begin(self, version: int) -> None:
        """The first request went to an engine that holds `version`; later ones change nothing."""
        if self.start_version is None:
            self.start_version = version


@dataclass(slots=True, eq=False)
class LiveGroup:
    """A group that is being rolled out.

    Attributes:
        size: members that make it full; `spares` more places are rolled out beside them.
        flights: who is under way, by place.
        done: who finished with a score, by place, in the order in which they finished.
        given_up: places that used up their attempts.
        kept: the places that are kept, once the group is full; the others are surplus.
        doom: how its trajectories leave, once it is ended; `doom_reason` says why.
    """

    id: int
    entry: QueuedTask
    size: int
    spares: int = 0
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    done: dict[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    given_up: set[int] = field(default_factory=set[int])
    members: "dict[int, asyncio.Task[None]]" = field(
        default_factory=dict[int, "asyncio.Task[None]"]
    )
    kept: tuple[int, ...] | None = None
    doom: Disposition | None = None
    doom_reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def domain(self) -> str:
        return self.entry.task.domain

    @property
    def places(self) -> int:
        return self.size + self.spares

    @property
    def start_version(self) -> int | None:
        """The oldest of those that have started."""
        oldest: int | None = None
        for started in (self.flights, self.done):
            for each in started.values():
                version = each.start_version
                if version is not None and (oldest is None or version < oldest):
                    oldest = version
        return oldest

    @property
    def trajectories(self) -> int:
        """Started and not left: in flight, or finished and waiting for their siblings."""
        return len(self.flights) + len(self.done)

    def fill(self, kept: tuple[int, ...]) -> None:
        """The group is full: who is not kept is cancelled, as surplus."""
        self.kept = kept
        for place, task in self.members.items():
            if place not in kept:
                task.cancel()

    def condemn(self, disposition: Disposition, reason: str) -> None:
        """Cancel the members, in order; `ended` is set when all have let go.

        Only the first time, and nobody who is surplus: a second cancellation would end a member's
        wait for its engine.
        """
        if self.doom is not None:
            return
        self.doom = disposition
        self.doom_reason = reason
        for place, task in self.members.items():
            if not self.is_surplus(place):
                task.cancel()

    def is_surplus(self, place: int) -> bool:
        return self.kept is not None and place not in self.kept

    def leaves_as(self, place: int) -> tuple[Disposition, str]:
        """Disposition and reason of a member that is cancelled or dropped; surplus comes first."""
        if self.is_surplus(place):
            return Disposition.SURPLUS, "the group is full"
        return self.doom or Disposition.CANCELLED, self.doom_reason


class Fate(Enum):
    """What becomes of a group whose members have all ended."""

    READY = "ready"
    INCOMPLETE = "incomplete"
    FILTERED = "filtered"


def fate_of(members: Sequence[Trajectory], *, needed: int, drop_zero_variance: bool) -> Fate:
    """Decide over the members that have a score.

    A group with fewer than `needed` of them carries no signal; one whose scores are all equal
    gives every member an advantage of 0.
    """
    scores = [member.score for member in members if member.score is not None]
    if len(scores) < needed:
        return Fate.INCOMPLETE
    if drop_zero_variance and scores_equal(min(scores), max(scores)):
        return Fate.FILTERED
    return Fate.READY


def is_trainable(trajectory: Trajectory) -> bool:
    """Ended by itself or by a limit, and has a score."""
    return trajectory.status in (Status.FINISHED, Status.TRUNCATED) and trajectory.score is not None


def unusable_disposition(trajectory: Trajectory) -> Disposition:
    return Disposition.INVALID if trajectory.status is Status.INVALID else Disposition.FAILED
