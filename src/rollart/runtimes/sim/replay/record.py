"""A recorded run, indexed by what a replay asks of it.

Invariant: only events of control are kept (what the launcher, the job and the machine told is not
control's doing); nothing here decides anything, it only finds.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rollart.core.errors import FailureKind, RollartError
from rollart.core.events import (
    Answered,
    Baseline,
    DeviceBusy,
    DeviceReserved,
    Disposed,
    EngineUp,
    EnvironmentReset,
    Event,
    FunctionInstance,
    LateResult,
    Phase,
    PhaseBegan,
    PhaseEnded,
    PlatformDown,
    PlatformUp,
    RequestDropped,
    RewardCalled,
    RunEnded,
    RunStarted,
    Stamped,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    WorkerBound,
)
from rollart.core.identity import Purpose
from rollart.core.types import Task

OUTSIDE = (
    *(RunStarted, WorkerBound, DeviceBusy, DeviceReserved, Baseline),
    *(RewardCalled, FunctionInstance, PlatformDown, PlatformUp),
)
"""Kinds of events that others than control emit."""

SELF_ENDED = ("all steps are done", "the time limit of ", "every task has been trained")
NO_PROGRESS = "no progress for "
TRAINER_DIED = "the trainer died: "
NOT_SAVED = "the final weights are not saved: "
STALE_AT_TURN = "stale at a turn"

E = TypeVar("E")


class ReplayError(RollartError):
    """A run that cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What an environment's step led to: the end, or `tokens` of a further observation.

    `known` is False where the record has nothing of the trajectory after the step.
    """

    done: bool
    tokens: int = 0
    restarts: bool = False
    known: bool = True


@dataclass(slots=True, kw_only=True)
class Story:
    """What is recorded of one trajectory; `at` are places in the record, by kind."""

    turns: dict[int, TurnEnded] = field(default_factory=dict[int, TurnEnded])
    drops: dict[int, RequestDropped] = field(default_factory=dict[int, RequestDropped])
    began_at: dict[int, float] = field(default_factory=dict[int, float])
    """Loop time (s) at which each turn's step began."""
    reset: EnvironmentReset | None = None
    reset_time: float = 0.0
    ended: TrajectoryEnded | None = None
    disposed: Disposed | None = None
    cut_in_step: int | None = None
    """Turn in whose step it may have been cancelled: the next event is its leaving."""
    answered: set[int] = field(default_factory=set[int])
    """Turns for which a request was answered, where the record tells."""

    @property
    def ended_itself(self) -> bool:
        """Whether it ended its group, by asking whether it might go on."""
        return self.disposed is not None and self.disposed.reason == STALE_AT_TURN

    def prompt(self, turn: int) -> int | None:
        """Tokens that the turn's request began with, where the record knows."""
        if turn in self.turns:
            return self.turns[turn].prompt_tokens
        return self.drops[turn].prompt_tokens if turn in self.drops else None

    def asked_at(self, turn: int) -> float:
        """Loop time (s) at which the turn's tokens were asked for; minus infinity if untold."""
        told = self.turns.get(turn) or self.drops.get(turn)
        return _instant(told, "asked_at", -math.inf)

    def answered_at(self, turn: int) -> float:
        """Loop time (s) at which the turn's last token came; its step's beginning if untold."""
        return _instant(self.turns[turn], "answered_at", self.began_at[turn])

    def opening(self, context: int) -> int:
        """Tokens of the first prompt; `context` where it left no room for an answer."""
        first = self.prompt(0)
        if first is not None:
            return first
        return context if self.ended is not None else 1

    def after(self, turn: int) -> After:
        """What came of the step of `turn`."""
        following = self.prompt(turn + 1)
        mine = self.turns[turn]
        if following is not None:
            grown = following - mine.prompt_tokens - mine.sampled_tokens
            if grown < 0:
                return After(done=False, tokens=following, restarts=True)
            return After(done=False, tokens=grown)
        if self.ended is None:
            return After(done=False, known=turn + 1 in self.answered)
        missing = max(0, self.ended.prompt_tokens - self._observed())
        return After(done=self.ended.status != "truncated" and not missing, tokens=missing)

    def _observed(self) -> int:
        """Observed tokens up to the last turn that is recorded, every segment's."""
        total = end = 0
        for turn in sorted(self.turns):
            prompt = self.turns[turn].prompt_tokens
            total += prompt - end if prompt >= end else prompt
            end = prompt + self.turns[turn].sampled_tokens
        return total

    def lost_tokens(self) -> int:
        """Tokens of a turn that was sampled, but not told as a turn; at least 1."""
        told = sum(turn.sampled_tokens for turn in self.turns.values())
        return max(1, self.ended.sampled_tokens - told) if self.ended is not None else 1

    def failure(self) -> tuple[FailureKind, str] | None:
        """Kind and detail of a failure that a part caused, not a limit of the whole episode."""
        ended = self.ended
        if ended is None or not ended.failure or ended.failure == FailureKind.DEADLINE:
            return None
        return FailureKind(ended.failure), ended.detail


def _instant(event: Event | None, name: str, otherwise: float) -> float:
    told = getattr(event, name, None)
    return otherwise if told is None else told


def trajectory_of(event: Event) -> str | None:
    """The trajectory that an event is about, by its own word."""
    return getattr(event, "trajectory", None)


def turn_of(request: str) -> tuple[str, int] | None:
    """Trajectory and turn of a request, by its name without the run's; None for other names."""
    name, _, rest = request.rpartition("/t")
    turn, mark, serial = rest.partition("#")
    return (name, int(turn)) if mark and turn.isdigit() and serial.isdigit() else None


class Record:
    """The events of control in order, and what can be found in them."""

    def __init__(self, log: Iterable[Stamped]) -> None:
        whole = list(log)
        for number, stamped in enumerate(whole, whole[0].seq if whole else 0):
            if stamped.seq != number:
                raise ReplayError(f"event {number} is missing; only a whole log can be replayed")
        self.started = next((s.event for s in whole if isinstance(s.event, RunStarted)), None)
        self.events: tuple[Stamped, ...] = tuple(
            stamped for stamped in whole if not isinstance(stamped.event, OUTSIDE)
        )
        self.outside = len(whole) - len(self.events)
        self._places: defaultdict[type, list[int]] = defaultdict(list)
        for place, stamped in enumerate(self.events):
            self._places[type(stamped.event)].append(place)
        if any(stamped.incarnation for stamped in self.events):
            raise ReplayError("the run was restarted; only a run of one piece can be replayed")
        if not self._places[EngineUp]:
            raise ReplayError("no engine ever came up, so control decided nothing to replay")
        self.run_id = self.started.run if self.started is not None else "run"
        self.stories: defaultdict[str, Story] = defaultdict(Story)
        self.trajectory_at: dict[int, str] = {}
        for place in range(len(self.events)):
            self._tell(place)
        last = self.events[-1].event
        self.end = last if isinstance(last, RunEnded) else None
        self.stalled_at = self._stalled_at()
        self.late = {e.identity for _, e in self.of(LateResult) if e.what == "tokens"}

    def _tell(self, place: int) -> None:
        stamped = self.events[place]
        event = stamped.event
        if isinstance(event, Answered):
            for name, turn in filter(None, map(turn_of, event.who)):
                self.stories[name].answered.add(turn)
        name = trajectory_of(event)
        if isinstance(event, RequestDropped):
            name, turn = self._dropped(place, event)
            self.stories[name].drops[turn] = event
        if name is None:
            return
        self.trajectory_at[place] = name
        story = self.stories[name]
        match event:
            case EnvironmentReset():
                story.reset, story.reset_time = event, stamped.time
            case TurnEnded():
                story.turns[event.turn] = event
                story.began_at[event.turn] = stamped.time - event.env_s
                following = self.events[place + 1].event if place + 1 < len(self.events) else None
                if isinstance(following, Disposed) and following.trajectory == name:
                    story.cut_in_step = event.turn
            case TrajectoryEnded():
                story.ended = event
            case Disposed():
                story.disposed = event
            case _:
                pass

    def _stalled_at(self) -> float | None:
        """Loop time (s) at which control gave the batch up because nothing moved."""
        if not self.reason().startswith(NO_PROGRESS):
            return None
        gets = self.next_of(
            PhaseEnded, -1, lambda ended: ended.phase is Phase.GET_BATCH and not ended.ok
        )
        return gets[0].time if gets is not None else None

    def _dropped(self, place: int, event: RequestDropped) -> tuple[str, int]:
        """Whose request it was, and of which turn. One that was never sent has no name.

        It is then told in one breath with the end of its trajectory, which comes next.
        """
        if event.request:
            name, _, rest = event.request.removeprefix(f"{self.run_id}/").rpartition("/t")
            return name, int(rest.partition("#")[0])
        following = self.events[place + 1].event if place + 1 < len(self.events) else None
        name = (following is not None and trajectory_of(following)) or ""
        return name, len(self.stories[name].turns)

    def of(self, kind: type[E], after: int = -1) -> list[tuple[int, E]]:
        """(place, event) of one kind, those behind place `after`."""
        places = self._places[kind]
        return [(p, self.events[p].event) for p in places[bisect_right(places, after) :]]  # pyright: ignore[reportReturnType]

    def next_of(
        self, kind: type[E], after: int, holds: Callable[[E], bool] = lambda _: True
    ) -> tuple[Stamped, E] | None:
        """The first event of a kind behind place `after` for which `holds`."""
        places = self._places[kind]
        for place in places[bisect_right(places, after) :]:
            event = self.events[place].event
            if isinstance(event, kind) and holds(event):
                return self.events[place], event
        return None

    @property
    def by_passes(self) -> bool:
        """Whether it tells in which pass of the loop each answer came in."""
        return bool(self._places[Answered])

    def engines(self) -> list[EngineUp]:
        """Each engine's first coming up, in order."""
        first: dict[str, EngineUp] = {}
        for _, event in self.of(EngineUp):
            first.setdefault(event.engine, event)
        return list(first.values())

    def heldout(self, domain: str) -> tuple[Task, ...]:
        """The held-out tasks that were played, in their order.

        One that never was is none: nobody could tell.
        """
        keys: dict[int, str] = {}
        for _, event in self.of(TrajectoryStarted):
            if event.purpose == Purpose.EVAL and event.domain == domain:
                keys.setdefault(event.member, event.task)
        return tuple(Task(domain=domain, key=keys[member]) for member in sorted(keys))

    def reason(self) -> str:
        """Why the run ended, without what is said of the weights; empty if it was cut off."""
        return self.end.reason.partition(f"; {NOT_SAVED}")[0] if self.end is not None else ""

    def stopped(self) -> bool:
        """Whether somebody asked the run to end, as far as its reason tells."""
        if self.end is None or self.reason().startswith(SELF_ENDED):
            return False
        return self.end.ok or self.reason() != self.end.reason

    def ends_from_outside(self, place: int) -> bool:
        """Whether the end that was asked for from outside may come at `place`.

        It cuts off the phase that is under way; without one, no other phase follows.
        """
        event = self.events[place].event
        if isinstance(event, PhaseEnded):
            return not event.ok
        calm = self.next_of(PhaseBegan, place, lambda began: began.phase is not Phase.RESUME)
        return calm is None and self.next_of(PhaseEnded, place, lambda e: not e.ok) is None
