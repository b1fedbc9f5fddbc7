"""The conductor of a run under virtual time: each answer is told when the event it causes is next.

Invariant: an answer is given only when the next recorded event is one that it causes (or at a
time that the record implies, for answers that cause none); so whatever raced comes out as it was.
Answers go to the front of the loop's queue: what was next in the record is next now.

    who waits            for what                            unblocked by
    a part's answer      its event to be next in the record  control's event before it
    control's timers     everything recorded to be told       a quiet loop
    the replay           the record's end or a difference    the conductor
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Any

from rollart.core.events import Event, Stamped, Warned
from rollart.runtimes.sim.replay.comparing import EPSILON_S, Ask, Cause, Comparing
from rollart.runtimes.sim.replay.loop import ReplayLoop
from rollart.runtimes.sim.replay.record import Record


class Conductor(Comparing):
    """Conducts by causes."""

    def __init__(self, record: Record, loop: ReplayLoop, tolerance_s: float) -> None:
        super().__init__(record, loop, tolerance_s)
        self.loop: ReplayLoop = loop
        self._asks: dict[str, dict[Ask, None]] = {}
        self._due: list[tuple[float, int, Ask]] = []
        self._number = 0
        self._stopped = False
        self._lasts: dict[Ask, None] = {}
        loop.on_quiet = self._quiet

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

    def emit(self, event: Event) -> None:
        """Compare it, and let what comes next be told."""
        if self.takes(event):
            self.loop.follow()
            self._tell_next([ask for ask in self._candidates() if self._is_next(ask)])

    # -- what is told when -----------------------------------------------------------------

    def _candidates(self) -> list[Ask]:
        """Asks that may cause the expected event."""
        name = self.record.trajectory_at.get(self.place, "")
        own = self._asks.get(name, {}) if name else {}
        return [*own, *self._asks.get("", {})]

    def _is_next(self, ask: Ask) -> bool:
        """Whether telling it at once is what the record has next."""
        expected = self.expected
        if expected is None or expected.time > self.now + EPSILON_S:
            return False
        if ask.about and ask.about != self.record.trajectory_at.get(self.place):
            return False
        cause = ask.causes(expected.event)
        if cause is Cause.ERROR and self.loop.next_timer() <= expected.time + EPSILON_S:
            return False
        return cause is not Cause.NO

    def _tell_next(self, asks: list[Ask]) -> None:
        """Tell what the record has next, before what control has yet to do on its own."""
        for ask in reversed(asks):
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
        if timer < time - (EPSILON_S if answers else 0.0):
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
        return self._explain(expected, time)

    def _explain(self, expected: Stamped, time: float) -> bool:
        """No part and no timer that is due gives the next event: what else may have."""
        lasts = [ask for ask in self._lasts if ask.may_last(expected.event)]
        if lasts:
            self._tell(min(lasts, key=lambda ask: ask.last or 0), time)
            return True
        self.loop.jump(time)
        record = self.record
        if isinstance(expected.event, Warned):
            self.pass_over(expected)
        elif not self._stopped and record.stopped() and record.ends_from_outside(self.place):
            self._stopped = True
            self.stop(record.reason())
        else:
            waits = ", ".join(ask.what for asks in self._asks.values() for ask in asks)
            self.end(f"nothing leads to it; control waits for {waits or 'nothing'}", None)
        return True

    def _next_due(self) -> float:
        while self._due and self._due[0][2].told:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def _fire(self, timer: float) -> bool:
        self.loop.jump(timer)
        self.before_timer(timer)
        return False
