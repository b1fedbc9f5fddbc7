"""What the trainer waited for in get_batch.

The last group to become ready ends the wait, and the trajectory that ended last in it made it
ready; what that one did at each moment of the wait is what the trainer waited for. Where ready
groups had left as stale, the wait is theirs from when they would have filled the batch.

Invariant: groups are remembered from admission until their last trajectory has left, each with the
life of the one that ended last.
"""

from dataclasses import dataclass, field

from rollart.core.events import (
    Admitted,
    BatchTaken,
    CreditsReturned,
    Disposed,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    TrajectoryEnded,
    TrajectoryStarted,
)
from rollart.core.identity import Purpose
from rollart.core.types import Disposition, Status
from rollart.observe.idle_causes import Cause
from rollart.observe.rollout_states import At, Handlers, RolloutStates, Story
from rollart.observe.sweep import Edges


@dataclass(slots=True)
class _Group:
    """A group's life. Its credit was free from `free_at` and taken at `admitted_at` (s).

    `ended_at` are the ends (s) of its last but one and its last trajectory; `failed` are the lives
    of members that may be tried again.
    """

    free_at: float
    admitted_at: float
    under_way: int = 0
    ready: bool = False
    evicted: bool = False
    ended_at: tuple[float | None, float | None] = (None, None)
    story: Story | None = None
    failed: dict[int, Story] = field(default_factory=dict[int, Story])

    @property
    def has_left(self) -> bool:
        return self.story is not None and self.under_way <= 0 and not self.ready


@dataclass(slots=True)
class _Wait:
    """One get_batch; `ready` are the times (s) at which groups became ready in it."""

    begin: float
    end: float | None = None
    ready: list[float] = field(default_factory=list[float])


class BatchWaits:
    """Feeds on events through `handlers`, after `states` has had each.

    Attributes:
        waits: the seconds of all get_batch phases, by cause.
    """

    def __init__(self, states: RolloutStates) -> None:
        self.waits = {cause: Edges() for cause in Cause}
        self._states = states
        self._groups: dict[int, _Group] = {}
        self._last: _Group | None = None
        self._wait: _Wait | None = None
        self._ready = 0
        self._evicted = 0
        self._free_since: float | None = None
        self.handlers: Handlers = {
            Admitted: self._admit,
            CreditsReturned: self._return,
            TrajectoryStarted: self._start,
            TrajectoryEnded: self._end,
            Disposed: self._leave,
            GroupReady: self._fill,
            PhaseBegan: self._begin_phase,
            PhaseEnded: self._end_phase,
            BatchTaken: self._take,
        }

    # -- groups ------------------------------------------------------------------------------------

    def _admit(self, time: float, event: Admitted) -> None:
        free_at = time if self._free_since is None else self._free_since
        self._groups[event.group] = _Group(free_at=free_at, admitted_at=time)
        if event.outstanding >= event.capacity:
            self._free_since = None

    def _return(self, time: float, event: CreditsReturned) -> None:
        if self._free_since is None and event.outstanding < event.capacity:
            self._free_since = time

    def _start(self, _time: float, event: TrajectoryStarted) -> None:
        group = self._groups.get(event.group)
        if group is None or event.purpose != Purpose.TRAIN.value:
            return
        group.under_way += 1
        before = group.failed.pop(event.member, None)
        track = self._states.track(event.trajectory)
        if before is not None and track is not None:
            track.story = before

    def _end(self, time: float, event: TrajectoryEnded) -> None:
        track = self._states.track(event.trajectory)
        if track is None or not track.trains or (group := self._groups.get(track.group)) is None:
            return
        group.ended_at = (group.ended_at[1], time)
        group.story = track.story
        if event.status == Status.FAILED.value:
            group.failed[track.member] = track.story

    def _leave(self, _time: float, event: Disposed) -> None:
        group = self._groups.get(event.group)
        if group is None:
            return
        group.under_way -= 1
        if group.ready and not group.evicted and event.disposition is not Disposition.TRAINED:
            group.evicted = True
            self._ready -= 1
            self._evicted += event.disposition is Disposition.STALE
        if group.ready and group.under_way <= 0:
            del self._groups[event.group]

    def _fill(self, time: float, event: GroupReady) -> None:
        self._ready += 1
        self._last = self._groups.get(event.group)
        if self._last is not None:
            self._last.ready = True
        if self._wait is not None:
            self._wait.ready.append(time)

    # -- batches -----------------------------------------------------------------------------------

    def _begin_phase(self, time: float, event: PhaseBegan) -> None:
        if event.phase is Phase.GET_BATCH:
            self._wait = _Wait(time)

    def _end_phase(self, time: float, event: PhaseEnded) -> None:
        if event.phase is Phase.GET_BATCH and self._wait is not None:
            self._wait.end = time

    def _take(self, _time: float, event: BatchTaken) -> None:
        wait, self._wait = self._wait, None
        if wait is not None and wait.end is not None:
            full_at = self._full_at(wait, wait.end, event.groups)
            self.waits[Cause.STALENESS_DROP].cover(full_at, wait.end)
            self._walk(self._last, wait.begin, full_at)
        self._ready -= event.groups
        self._evicted = 0
        # Who is tried again starts as soon as it has failed, so these have left.
        for number in [n for n, group in self._groups.items() if group.has_left]:
            del self._groups[number]

    def _full_at(self, wait: _Wait, end: float, needed: int) -> float:
        """When the batch would have been full, had no ready group left as stale (s)."""
        if not self._evicted:
            return end
        missing = needed - (self._ready - len(wait.ready)) - self._evicted
        if missing <= 0:
            return wait.begin
        return min(end, wait.ready[missing - 1]) if missing <= len(wait.ready) else end

    def _walk(self, group: _Group | None, begin: float, end: float) -> None:
        """The wait from `begin` to `end` by what this group's last trajectory did meanwhile."""
        if group is None or group.story is None:
            self.waits[Cause.BUFFER_WAIT].cover(begin, end)
            return
        story, alone_at = group.story, group.ended_at[0]
        at = begin
        for upto, cause in (
            (group.free_at, Cause.BUFFER_WAIT),
            (group.admitted_at, Cause.NO_WORK),
            (story.began, Cause.BUFFER_WAIT),
        ):
            at = self._cover(at, min(upto, end), cause)
        for place, ends in zip(story.at, story.ends, strict=True):
            if at >= end:
                return
            doing = At(place)
            if doing is At.ENVIRONMENT:
                at = self._cover(at, min(ends, end), Cause.ENVIRONMENT)
            elif doing is At.REWARD:
                at = self._cover(at, min(ends, end), Cause.REWARD)
            elif doing is At.OTHERS:
                at = self._cover(at, min(ends, end), Cause.STRAGGLER)
            else:
                with_others = ends if alone_at is None else min(ends, alone_at)
                at = self._cover(at, min(with_others, end), Cause.BUFFER_WAIT)
                at = self._cover(at, min(ends, end), Cause.STRAGGLER)
        self._cover(at, end, Cause.BUFFER_WAIT)

    def _cover(self, begin: float, end: float, cause: Cause) -> float:
        self.waits[cause].cover(begin, end)
        return max(begin, end)
