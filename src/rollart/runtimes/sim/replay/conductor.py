"""The conductor: lets the parts answer in the recorded order, at the recorded times.

Owns the place in the record, what control has asked and not been told, and the loop's time.
Invariant: an answer is given only when the next recorded event is one that it causes (or at a
time that the record implies, for answers that cause none); so whatever raced comes out as it was.
Answers go to the front of the loop's queue: what was next in the record is next now. Every event
of control's is compared as it comes; the first that differs ends the replay.

    who waits            for what                            unblocked by
    a part's answer      its event to be next in the record  control's event before it
    control's timers     everything recorded to be told       a quiet loop
    the replay           the record's end or a difference    the conductor
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rollart.core.events import Event, Phase, PhaseBegan, PhaseEnded, Stamped, Warned
from rollart.runtimes.sim.replay.compare import Difference, differs
from rollart.runtimes.sim.replay.loop import ReplayLoop
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
class Limits:
    """Seconds: `slack` by which a timer may be late, `tolerance` within which times are equal."""

    slack_s: float
    tolerance_s: float


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the replay came to. `foreign` counts warnings that control did not give."""

    events: list[Stamped] = field(default_factory=list[Stamped])
    difference: Difference | None = None
    foreign: int = 0


class Conductor:
    """An EventSink, and the one that every part asks before it answers."""

    def __init__(
        self,
        record: Record,
        loop: ReplayLoop,
        limits: Limits,
        otherwise: frozenset[int] = frozenset(),
    ) -> None:
        self.record = record
        self.loop = loop
        self.place = 0
        self.outcome = Outcome()
        self.over: asyncio.Future[None] = loop.create_future()
        self.stop: Callable[[str], None] = lambda reason: None
        self.before_timer: Callable[[float], None] = lambda time: None
        self.choices: list[float] = []
        self._otherwise = otherwise
        self._limits = limits
        self._asks: dict[str, dict[Ask, None]] = {}
        self._due: list[tuple[float, int, Ask]] = []
        self._number = 0
        self._stopped = False
        self._lasts: dict[Ask, None] = {}
        self.open_phases: set[Phase] = set()
        self.phases_begun = False
        loop.on_quiet = self._quiet

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
    def slack_s(self) -> float:
        return self._limits.slack_s

    @property
    def now(self) -> float:
        return self.loop.time()

    def at_once(self, time: float) -> bool:
        """Whether an answer that the record puts into this very instant is given as it is asked.

        Or only when its event is next. The record cannot tell, so it is a choice, made by its
        number: `otherwise` holds those that are made the other way.
        """
        if time > self.now + EPSILON_S:
            return False
        self.choices.append(self.now)
        return len(self.choices) - 1 not in self._otherwise

    # -- what parts do ---------------------------------------------------------------------

    async def ask(self, ask: Ask, answer: Callable[[], Any] = lambda: None) -> Any:
        """The answer, when it is time for it; `answer` gives or raises it.

        One that was due by now is given without a pause.
        """
        if self.over.done():
            raise asyncio.CancelledError("the replay is over")
        if ask.due <= self.now + EPSILON_S:
            return answer()
        future = self.loop.create_future()

        def tell() -> None:
            try:
                told = answer()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(told)

        ask.tell = lambda: None if future.done() else tell()
        self.post(ask)
        try:
            return await future
        finally:
            self.withdraw(ask)

    def post(self, ask: Ask) -> None:
        """Have `ask.tell` called when it is time for it."""
        if self.over.done():
            return
        self._asks.setdefault(ask.about, {})[ask] = None
        if ask.due < math.inf:
            self._number += 1
            heapq.heappush(self._due, (ask.due, self._number, ask))
        if ask.last is not None:
            self._lasts[ask] = None
        if self._is_next(ask):
            self._tell_next([ask])

    def withdraw(self, ask: Ask) -> None:
        """Nobody waits for it any more."""
        ask.told = True
        self._lasts.pop(ask, None)
        asks = self._asks.get(ask.about)
        if asks is not None:
            asks.pop(ask, None)
            if not asks:
                del self._asks[ask.about]

    # -- what control says -----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Compare an event of control's with the record, and let what comes next be told."""
        if self.over.done():
            return
        came = Stamped(time=self.now, seq=self.place, incarnation=0, event=event)
        while True:
            expected = self.expected
            if expected is None:
                self._end("control goes on after the record's end", came)
                return
            why = differs(expected.event, event, tolerance_s=self._limits.tolerance_s)
            if why is None:
                break
            if not isinstance(expected.event, Warned):
                self._end(why, came)
                return
            self._pass_over(expected)
        apart = abs(expected.time - came.time)
        if apart > self._limits.tolerance_s:
            self._end(f"it comes {apart:g} s away from its recorded time", came)
            return
        self.loop.follow()
        self.outcome.events.append(came)
        self.place += 1
        self._note(event)
        if self.expected is None:
            self.over.set_result(None)
            return
        self._tell_next([ask for ask in self._candidates() if self._is_next(ask)])

    def _note(self, event: Event) -> None:
        if isinstance(event, PhaseBegan):
            self.open_phases.add(event.phase)
            self.phases_begun = True
        elif isinstance(event, PhaseEnded):
            self.open_phases.discard(event.phase)

    def _pass_over(self, warned: Stamped) -> None:
        """A warning that control does not give came from elsewhere: the machine, a tracker."""
        self.outcome.events.append(warned)
        self.outcome.foreign += 1
        self.place += 1
        if self.expected is None:
            self.over.set_result(None)

    def ended(self, error: BaseException | None) -> None:
        """Control's run is over, before the record is."""
        self._end(f"control ended{f' by {error!r}' if error else ''}", None)

    def _end(self, why: str, came: Stamped | None) -> None:
        self.outcome.difference = Difference(
            position=self.place, recorded=self.expected, replayed=came, why=why
        )
        self.over.set_result(None)

    # -- what is told when -----------------------------------------------------------------

    def _candidates(self) -> list[Ask]:
        """Asks that may cause the expected event."""
        name = self.record.trajectory_at.get(self.place, "")
        own = self._asks.get(name, {}) if name else {}
        return [*own, *self._asks.get("", {})]

    def _is_next(self, ask: Ask) -> bool:
        """Whether telling it at once is what the record has next."""
        expected = self.expected
        if expected is None or expected.time > self.now + self._limits.slack_s:
            return False
        if ask.about and ask.about != self.record.trajectory_at.get(self.place):
            return False
        cause = ask.causes(expected.event)
        if cause is Cause.ERROR and self.loop.next_timer() <= expected.time + EPSILON_S:
            return False
        return cause is not Cause.NO

    def _tell_next(self, asks: list[Ask]) -> None:
        """Tell what the record has next, now or, if its time is a little later, after this step.

        Then it comes before what control has yet to do on its own, because its event came first;
        unless it was chosen otherwise.
        """
        expected = self.expected
        if not asks or expected is None:
            return
        if expected.time <= self.now + EPSILON_S:
            for ask in reversed(asks):
                self._tell(ask)
            return
        self.choices.append(self.now)
        if len(self.choices) - 1 not in self._otherwise:
            self.loop.lead(lambda: self._tell_early(expected, asks))

    def _tell_early(self, expected: Stamped, asks: list[Ask]) -> None:
        """What is due before it comes before it."""
        if self.expected is not expected:
            return
        due = self._next_due()
        if due <= expected.time:
            self.loop.lead(lambda: self._tell_early(expected, asks))
            self._tell(heapq.heappop(self._due)[2], due)
            return
        for ask in reversed(asks):
            if not ask.told:
                self._tell(ask)

    def _tell(self, ask: Ask, at: float | None = None) -> None:
        self.withdraw(ask)
        expected = self.expected
        if at is not None:
            self.loop.jump(at)
        elif expected is not None:
            self.loop.jump(expected.time)
        self.loop.lead(ask.tell)

    def _quiet(self) -> bool:
        """Nothing is ready: tell what comes next. False lets the earliest timer fire."""
        expected = self.expected
        if self.over.done() or expected is None:
            return False
        time = max(self.now, expected.time)
        causes = [(ask, ask.causes(expected.event)) for ask in self._candidates()]
        answers = [ask for ask, cause in causes if cause is Cause.ANSWER]
        timer, due = self.loop.next_timer(), self._next_due()
        if due <= min(time + EPSILON_S, timer):
            self._tell(heapq.heappop(self._due)[2], due)
            return True
        if timer < time - (self._limits.slack_s if answers else 0.0):
            return self._fire(timer)
        if answers:
            for ask in reversed(answers):
                self._tell(ask, time)
            return True
        if timer <= time + EPSILON_S:
            return self._fire(timer)
        errors = [ask for ask, cause in causes if cause is Cause.ERROR]
        if errors:
            self._tell(errors[0], time)
            return True
        return self._explain(expected, time, timer)

    def _explain(self, expected: Stamped, time: float, timer: float) -> bool:
        """No part and no timer that is due gives the next event: what else may have."""
        lasts = [ask for ask in self._lasts if ask.may_last(expected.event)]
        if lasts:
            self._tell(min(lasts, key=lambda ask: ask.last or 0), time)
            return True
        if timer <= time + self._limits.slack_s:
            return self._fire(timer)
        self.loop.jump(time)
        record = self.record
        if isinstance(expected.event, Warned):
            self._pass_over(expected)
        elif not self._stopped and record.stopped() and record.ends_from_outside(self.place):
            self._stopped = True
            self.stop(record.reason())
        else:
            waits = ", ".join(ask.what for asks in self._asks.values() for ask in asks)
            self._end(f"nothing leads to it; control waits for {waits or 'nothing'}", None)
        return True

    def _next_due(self) -> float:
        while self._due and self._due[0][2].told:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def _fire(self, timer: float) -> bool:
        self.loop.jump(timer)
        self.before_timer(timer)
        return False
