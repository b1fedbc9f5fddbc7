"""What is under way: one trajectory in flight, and the group it belongs to.

Invariant: a flight's start version is set once, by the first engine that it was sent to; a group's
is the oldest of its members', finished ones included, so staleness is one answer for all of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from rollart.control.staleness import oldest_start
from rollart.control.task_queue import QueuedTask
from rollart.core.identity import TrajectoryId
from rollart.core.types import Disposition, Status, Task, Trajectory, scores_equal


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
    """A group that is being rolled out. `doom` says how its trajectories leave once it is ended."""

    id: int
    entry: QueuedTask
    size: int
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    done: dict[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    members: "dict[int, asyncio.Task[None]]" = field(
        default_factory=dict[int, "asyncio.Task[None]"]
    )
    doom: Disposition | None = None
    doom_reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def start_version(self) -> int | None:
        return oldest_start(
            [
                *(flight.start_version for flight in self.flights.values()),
                *(trajectory.start_version for trajectory in self.done.values()),
            ]
        )

    @property
    def trajectories(self) -> int:
        """Started and not left: in flight, or finished and waiting for their siblings."""
        return len(self.flights) + len(self.done)

    def condemn(self, disposition: Disposition, reason: str) -> None:
        """Cancel the members, in order; `ended` is set when all have let go.

        Only the first time: a second cancellation would end a member's wait for its engine.
        """
        if self.doom is not None:
            return
        self.doom = disposition
        self.doom_reason = reason
        for task in self.members.values():
            task.cancel()


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
