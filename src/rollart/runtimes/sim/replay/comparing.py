"""What both ways of conducting a replay share: control's events against the record, one by one.

Owns the place in the record. Invariant: every event of control's is compared as it comes; the first
that differs ends the replay.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rollart.core.events import Event, Phase, PhaseBegan, PhaseEnded, Stamped, Warned
from rollart.runtimes.sim.loop import VirtualLoop
from rollart.runtimes.sim.replay.compare import Difference, differs
from rollart.runtimes.sim.replay.record import Record

EPSILON_S = 1e-9
"""Seconds: what rounding may add when a time is computed from a recorded length."""


class Cause(Enum):
    """Whether an answer would cause an event.

    An error is given only when no deadline of control's own causes it first.
    """

    NO = "no"
    ANSWER = "answer"
    ERROR = "error"


def never(_event: Event) -> Cause:
    return Cause.NO


@dataclass(slots=True, eq=False, kw_only=True)
class Ask:
    """Something that control waits for.

    Attributes:
        about: the trajectory it belongs to, or "" for everything else.
        causes: whether telling it would cause this event.
        tell: gives the answer; called once, in the loop.
        due: loop time (s) at which it is told whatever comes next.
        last: it may also be told when nothing else explains the next event; the lowest first.
        may_last: whether that event may be explained so.
    """

    what: str
    about: str = ""
    causes: Callable[[Event], Cause] = never
    tell: Callable[[], None] = lambda: None
    due: float = math.inf
    last: int | None = None
    may_last: Callable[[Event], bool] = lambda _event: True
    told: bool = False


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the replay came to. `foreign` counts warnings that control did not give."""

    events: list[Stamped] = field(default_factory=list[Stamped])
    difference: Difference | None = None
    foreign: int = 0


class Comparing(ABC):
    """An EventSink, and the one that every part asks before it answers.

    Args:
        tolerance_s: seconds within which times are equal.
    """

    def __init__(self, record: Record, loop: VirtualLoop, tolerance_s: float) -> None:
        self.record = record
        self.loop = loop
        self.place = 0
        self.outcome = Outcome()
        self.over: asyncio.Future[None] = loop.create_future()
        self.stop: Callable[[str], None] = lambda reason: None
        self.before_timer: Callable[[float], None] = lambda time: None
        self.open_phases: set[Phase] = set()
        self.phases_begun = False
        self._tolerance_s = tolerance_s

    @property
    def expected(self) -> Stamped | None:
        """The next recorded event."""
        events = self.record.events
        return events[self.place] if self.place < len(events) else None

    def event_ahead(self, count: int = 0) -> Event | None:
        """The next recorded event, or the one `count` further on."""
        place = self.place + count
        return self.record.events[place].event if place < len(self.record.events) else None

    @property
    def now(self) -> float:
        return self.loop.time()

    @abstractmethod
    async def ask(self, ask: Ask, answer: Callable[[], Any] = lambda: None) -> Any:
        """The answer, when it is time for it; `answer` gives or raises it."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Take an event of control's."""

    def takes(self, event: Event) -> bool:
        """Compare an event of control's with the record; whether the replay goes on."""
        if self.over.done():
            return False
        came = Stamped(time=self.now, seq=self.place, incarnation=0, event=event)
        while True:
            expected = self.expected
            if expected is None:
                self.end("control goes on after the record's end", came)
                return False
            why = differs(expected.event, event, tolerance_s=self._tolerance_s)
            if why is None:
                break
            if not isinstance(expected.event, Warned):
                self.end(why, came)
                return False
            self.pass_over(expected)
        apart = abs(expected.time - came.time)
        if apart > self._tolerance_s:
            self.end(f"it comes {apart:g} s away from its recorded time", came)
            return False
        self.matched(came)
        if isinstance(event, PhaseBegan):
            self.open_phases.add(event.phase)
            self.phases_begun = True
        elif isinstance(event, PhaseEnded):
            self.open_phases.discard(event.phase)
        return not self.over.done()

    def matched(self, came: Stamped) -> None:
        """The next recorded event has come."""
        self.outcome.events.append(came)
        self.place += 1
        if self.expected is None:
            self.finish()

    def pass_over(self, warned: Stamped) -> None:
        """A warning that control does not give came from elsewhere: the machine, a tracker."""
        self.outcome.foreign += 1
        self.matched(warned)

    def ended(self, error: BaseException | None) -> None:
        """Control's run is over, before the record is."""
        self.end(f"control ended{f' by {error!r}' if error else ''}", None)

    def end(self, why: str, came: Stamped | None) -> None:
        """The replay parts from the record here."""
        self.outcome.difference = Difference(
            position=self.place, recorded=self.expected, replayed=came, why=why
        )
        self.finish()

    def finish(self) -> None:
        """Nothing more is compared or told."""
        if not self.over.done():
            self.over.set_result(None)
