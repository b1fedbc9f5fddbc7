"""The conductor of a run on a real machine: answers come in as `Answered` tells, pass for pass.

Invariant: at the end of each pass of the loop comes in what came in then, in that order; so control
takes the same steps in the same order, however late its loop was. Time follows the record. A timer
fires when the record's time has reached it, at the latest before what comes next.

    who waits            for what                                   unblocked by
    who asked            its turn at the door                       the pass that is recorded
    the replay           the record's end or a difference           this conductor
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from rollart.control.door import STOP
from rollart.core.events import Answered, Event, LateResult, Stamped, Warned
from rollart.runtimes.sim.replay.comparing import EPSILON_S, Ask, Comparing
from rollart.runtimes.sim.replay.door import ReplayDoor
from rollart.runtimes.sim.replay.loop import ReplayLoop
from rollart.runtimes.sim.replay.record import Record

MOST_TOLD = 20
"""How many of those that wait are named where nothing leads on."""


class Answering(Comparing):
    """Conducts by passes. `late` gives a late token, by request."""

    def __init__(self, record: Record, loop: ReplayLoop, tolerance_s: float) -> None:
        super().__init__(record, loop, tolerance_s)
        self.loop: ReplayLoop = loop
        self.door = ReplayDoor(loop)
        self.late: dict[str, Callable[[], None]] = {}
        self._began = loop.passes
        self._letting_in = False
        loop.on_quiet = self._quiet
        loop.at_pass_end(self._pass_ended)

    async def ask(self, ask: Ask, answer: Callable[[], Any] = lambda: None) -> Any:
        """At once: it is asked when the answer comes in."""
        return answer()

    def ahead(self) -> list[Event]:
        """What is recorded up to where something comes in again."""
        found: list[Event] = []
        for stamped in islice(self.record.events, self.place, None):
            if isinstance(stamped.event, Answered):
                break
            found.append(stamped.event)
        return found

    def emit(self, event: Event) -> None:
        if not isinstance(event, LateResult):
            self._tell_late()
        expected = self.expected
        if expected is not None and type(expected.event) is type(event):
            self.loop.jump(expected.time)
        self.takes(event)

    def finish(self) -> None:
        super().finish()
        self.door.shut()

    # -- when what comes in ----------------------------------------------------------------

    def _pass_ended(self) -> None:
        if self.over.done():
            return
        self.loop.at_pass_end(self._pass_ended)
        answered = self._next_answered()
        if answered is not None and answered.loop_pass <= self.loop.passes - self._began:
            self._let_in(answered)

    def _next_answered(self) -> Answered | None:
        """If that is next, apart from what is not control's doing."""
        count = 0
        while isinstance(event := self.event_ahead(count), Warned | LateResult):
            count += 1
        return event if isinstance(event, Answered) else None

    def _let_in(self, answered: Answered) -> None:
        """Warnings that stand before it were not control's: else it would have told them by now."""
        while (expected := self.expected) is not None and expected.event is not answered:
            if isinstance(expected.event, Warned):
                self.pass_over(expected)
            elif not self._tell_late():
                self.end("no request is late", None)
                return
        if expected is None:
            return
        self.loop.jump(expected.time)
        self.matched(Stamped(time=self.now, seq=self.place, incarnation=0, event=answered))
        self._letting_in = True
        for who in answered.who:
            if self.over.done():
                break
            if who == STOP:
                self.stop(self.record.reason())
            elif not self.door.let_in(who):
                self.end(f"{who} was answered, and control had not asked for it", None)
        self._letting_in = False

    def _tell_late(self) -> bool:
        """If tokens of a request that had left are next, let them come; whether they did."""
        told = False
        while not self._letting_in and isinstance(event := self.event_ahead(), LateResult):
            place, late = self.place, self.late.get(event.identity, lambda: None)
            late()
            if self.place == place:
                break
            told = True
        return told

    def _quiet(self) -> bool:
        """Control waits. False lets the earliest timer fire."""
        expected = self.expected
        if self.over.done() or expected is None:
            return False
        timer = self.loop.next_timer()
        if timer <= expected.time + EPSILON_S:
            self.loop.jump(timer)
            self.before_timer(timer)
            return False
        if self._tell_late():
            return True
        answered = self._next_answered()
        if answered is not None:
            self.loop.passes = max(self.loop.passes, self._began + answered.loop_pass)
            self._let_in(answered)
        elif isinstance(expected.event, Warned):
            self.pass_over(expected)
        else:
            waits = ", ".join(self.door.waiting()[:MOST_TOLD])
            self.end(f"nothing leads to it; control waits for {waits or 'nothing'}", None)
        return True
