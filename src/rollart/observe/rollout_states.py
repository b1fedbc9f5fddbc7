"""What trajectories and groups were doing at each moment of a run, as counts over time.

Invariant: a trajectory is at its environment, generated, waiting for others or for its verdict, one
at a time, from its start to its end, as its events tell afterwards. By name only what is in flight
or buffered is remembered.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from rollart.core.events import (
    Admitted,
    BatchTaken,
    CreditsReturned,
    Disposed,
    DomainClosed,
    EnvironmentReset,
    GroupReady,
    RequestDropped,
    RunStarted,
    TaskDrawn,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
)
from rollart.core.identity import Purpose
from rollart.core.types import Disposition, Status
from rollart.observe.sweep import Edges

Handlers = dict[type[Any], Callable[[float, Any], None]]
"""By type of event: takes its loop time (s) and the event."""


class At(IntEnum):
    """What a trajectory is doing."""

    ENVIRONMENT = 0
    ENGINE = 1
    OTHERS = 2
    REWARD = 3


class Story:
    """One trajectory's life: from `began`, `at[i]` until `ends[i]`."""

    __slots__ = ("at", "began", "ends")

    def __init__(self, began: float) -> None:
        self.began = began
        self.at = bytearray()
        self.ends = array("d")


@dataclass(slots=True)
class Track:
    """A trajectory that has started and not left.

    Since `since` it is `at`; until `told` (s) its events have told what it did. `counts` are its
    domain's, by what trajectories do; `held` is of the engine that answered its last request.
    """

    domain: str
    counts: tuple[Edges, ...]
    group: int
    member: int
    trains: bool
    story: Story
    since: float
    told: float
    at: At = At.ENVIRONMENT
    held: Edges | None = None
    ended: bool = False
    sampled: dict[str, int] = field(default_factory=dict[str, int])


class RolloutStates:
    """Feeds on events through `handlers`.

    Attributes:
        counts: trajectories by domain, and there by what they are doing (`At`).
        asked: requests that an engine holds, by engine and domain.
        held: trajectories at their environments, by the engine that answered last.
        ready: trajectories of ready groups that hold credits, in the buffer or in hand.
        stale: trajectories that left as stale and whose credits are withheld.
        free: groups that could be admitted.
        tasks: tasks that were drawn and not admitted.
        sampled: tokens by engine and by how their trajectories left.
        group_size: members of a group, as the run declared it.
    """

    def __init__(self) -> None:
        self.counts: dict[str, tuple[Edges, ...]] = {}
        self.asked: defaultdict[tuple[str, str], Edges] = defaultdict(Edges)
        self.held: defaultdict[str, Edges] = defaultdict(Edges)
        self.ready, self.stale, self.free, self.tasks = Edges(), Edges(), Edges(), Edges()
        self.sampled: defaultdict[str, Counter[Disposition]] = defaultdict(Counter[Disposition])
        self.group_size = 1
        self._run = ""
        self._lockstep = False
        self._tracks: dict[str, Track] = {}
        self._in_buffer: Counter[int] = Counter()
        self._in_hand: int | None = None
        self._stale = 0
        self._free = 0
        self._drawn: Counter[str] = Counter()
        self.handlers: Handlers = {
            RunStarted: self._begin,
            TrajectoryStarted: self._start,
            EnvironmentReset: self._reset,
            TurnEnded: self._turn,
            RequestDropped: self._drop,
            TrajectoryEnded: self._end,
            Disposed: self._leave,
            GroupReady: self._fill,
            BatchTaken: self._take,
            CreditsReturned: self._return,
            Admitted: self._admit,
            TaskDrawn: self._draw,
            DomainClosed: self._close,
        }

    def track(self, trajectory: str) -> Track | None:
        """What is known of a trajectory that has started and not left."""
        return self._tracks.get(trajectory)

    def close(self, time: float) -> None:
        """The log is over: what is still in flight counts up to here. Taking events may go on."""
        for track in self._tracks.values():
            if not track.ended:
                # Whoever has heard from its environment asks at once; only the answer is not told.
                self._move(track, track.told, At.ENGINE)
                self._move(track, time, At.ENGINE, settle=True)

    # -- trajectories ----------------------------------------------------------------------------

    def _begin(self, _time: float, event: RunStarted) -> None:
        self._run = f"{event.run}/"
        self._lockstep = event.protocol == "sync"
        self.group_size = max(1, event.group_size)

    def _start(self, time: float, event: TrajectoryStarted) -> None:
        counts = self.counts.get(event.domain)
        if counts is None:
            counts = self.counts[event.domain] = tuple(Edges() for _ in At)
        self._tracks[event.trajectory] = Track(
            domain=event.domain,
            counts=counts,
            group=event.group,
            member=event.member,
            trains=event.purpose == Purpose.TRAIN.value,
            story=Story(time),
            since=time,
            told=time,
        )

    def _reset(self, time: float, event: EnvironmentReset) -> None:
        if (track := self._tracks.get(event.trajectory)) is not None:
            track.told = time

    def _turn(self, time: float, event: TurnEnded) -> None:
        track = self._tracks.get(event.trajectory)
        if track is None:
            return
        stepped = time - event.env_s
        asked, answered = _times(event, track.told, stepped)
        if self._lockstep:
            self._move(track, track.told, At.OTHERS)
        self._move(track, asked, At.ENGINE)
        if not event.interruptions:
            # Of a request that moved, nobody can say how long its last engine had it.
            self.asked[event.engine, track.domain].cover(asked + event.proxy_queued_s, answered)
        track.held = self.held[event.engine]
        if self._lockstep:
            self._move(track, answered, At.OTHERS)
            self._move(track, stepped, At.ENVIRONMENT)
        else:
            self._move(track, answered, At.ENVIRONMENT)
        track.told = time
        track.sampled[event.engine] = track.sampled.get(event.engine, 0) + event.sampled_tokens

    def _drop(self, time: float, event: RequestDropped) -> None:
        """It stays at its engine until it has let go, which is when the trajectory leaves."""
        name = event.request.removeprefix(self._run).rpartition("/")[0]
        track = self._tracks.get(name)
        if track is None or track.ended:
            return
        asked = event.asked_at if event.asked_at is not None else track.told
        self._move(track, asked, At.ENGINE)
        if event.engine:
            self.asked[event.engine, track.domain].cover(asked, time)
            track.held = self.held[event.engine]
            track.sampled[event.engine] = track.sampled.get(event.engine, 0) + event.sampled_tokens
        track.told = time

    def _end(self, time: float, event: TrajectoryEnded) -> None:
        track = self._tracks.get(event.trajectory)
        if track is None:
            return
        failed = event.status == Status.FAILED.value
        if event.reward_s > 0 or not failed or event.failure.startswith("reward"):
            if self._lockstep:
                self._move(track, track.told, At.OTHERS)
            self._move(track, max(track.told, time - event.reward_s), At.REWARD)
        elif event.turns == 0 or not event.failure.startswith("env"):
            self._move(track, track.told, At.ENGINE)
        self._finish(track, time)
        if not track.trains:
            del self._tracks[event.trajectory]

    def _finish(self, track: Track, time: float) -> None:
        self._move(track, time, track.at, settle=True)
        track.ended = True

    def _leave(self, time: float, event: Disposed) -> None:
        track = self._tracks.pop(event.trajectory, None)
        if track is not None:
            if not track.ended:
                if track.at is At.ENVIRONMENT:
                    # Cancelled; had it been at its environment or an engine, that would be told.
                    self._move(track, track.told, At.REWARD)
                self._finish(track, time)
            for engine, tokens in track.sampled.items():
                self.sampled[engine][event.disposition] += tokens
        if event.group in self._in_buffer:
            if event.disposition is not Disposition.TRAINED:
                self.ready.step(time, -1)
            self._in_buffer[event.group] -= 1
            if self._in_buffer[event.group] <= 0:
                del self._in_buffer[event.group]
        if event.disposition is Disposition.STALE and self._in_hand is not None:
            self._stale += 1
            self.stale.step(time, 1)

    def _move(self, track: Track, time: float, to: At, *, settle: bool = False) -> None:
        """From `time` on it is somewhere else; with `settle`, what it did until then is counted."""
        at, since = track.at, track.since
        if to is at and not settle:
            return
        end = time if time > since else since
        track.counts[at].cover(since, end)
        if at is At.ENVIRONMENT and track.held is not None:
            track.held.cover(since, end)
        if track.trains:
            track.story.at.append(at)
            track.story.ends.append(end)
        track.since, track.at = end, to

    # -- groups and credits ------------------------------------------------------------------------

    def _fill(self, time: float, event: GroupReady) -> None:
        self._in_buffer[event.group] = event.members
        self.ready.step(time, event.members)

    def _take(self, _time: float, event: BatchTaken) -> None:
        self._in_hand = event.trajectories

    def _return(self, time: float, event: CreditsReturned) -> None:
        if self._in_hand is not None:
            # The first after a batch is at resume: until there, credits are withheld.
            self.ready.step(time, -self._in_hand)
            self.stale.step(time, -self._stale)
            self._in_hand, self._stale = None, 0
        self._set_free(time, event.capacity - event.outstanding)

    def _admit(self, time: float, event: Admitted) -> None:
        self._set_free(time, event.capacity - event.outstanding)
        if not event.requeued and self._drawn[event.domain]:
            self._drawn[event.domain] -= 1
            self.tasks.step(time, -1)

    def _set_free(self, time: float, free: int) -> None:
        self.free.step(time, free - self._free)
        self._free = free

    def _draw(self, time: float, event: TaskDrawn) -> None:
        self._drawn[event.domain] += 1
        self.tasks.step(time, 1)

    def _close(self, time: float, event: DomainClosed) -> None:
        self.tasks.step(time, -self._drawn.pop(event.domain, 0))


def _times(event: TurnEnded, told: float, stepped: float) -> tuple[float, float]:
    """When a request came to its engine, its wait in the proxy included, and when it left it (s).

    What the engine did not have it for, it was on its way: half there, half back.
    """
    cost = event.cost
    there = cost.queued_s + cost.prefill_s + cost.decode_s
    answered = stepped if event.answered_at is None else event.answered_at
    if event.asked_at is None:
        return max(told, answered - event.proxy_queued_s - there), answered
    under_way = answered - event.asked_at - event.proxy_queued_s - there if there > 0 else 0.0
    if under_way <= 0:
        return event.asked_at, answered
    return event.asked_at + under_way / 2, answered - under_way / 2
