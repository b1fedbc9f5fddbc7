"""A virtual loop that can be led: what an answer leads to runs before all else.

Invariant: while a lead is on, what its callbacks schedule goes to the front of the queue, in order;
everything else waits. A timer fires only when `on_quiet` has nothing left to do.
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any

from rollart.runtimes.sim.loop import VirtualLoop


class ReplayLoop(VirtualLoop):
    """`on_quiet` is called when nothing is ready; it returns whether time may stay where it is."""

    def __init__(self, *, start: float) -> None:
        super().__init__(start=start)
        self.on_quiet: Callable[[], bool] = lambda: False
        self._lead: object | None = None
        self._leading = False
        self._led: list[asyncio.Handle] = []

    def _advance(self) -> None:
        if not self.on_quiet():
            super()._advance()

    def next_timer(self) -> float:
        """Loop time (s) of the earliest timer that stands; infinity if none does."""
        timers = self._timers
        while timers and not timers[0][2].stands:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf

    def jump(self, time: float) -> None:
        """Time goes on to `time`; it never goes back."""
        self._now = max(self._now, time)

    def lead(self, callback: Callable[[], object]) -> None:
        """Call it next, and whatever it leads to after it, until `follow`."""
        if self._lead is None:
            self._lead = object()
        self._ready.appendleft(asyncio.Handle(self._run_led, (self._lead, callback), self))

    def follow(self) -> None:
        """The lead is over: what it has not run yet takes its turn."""
        self._lead = None
        self._leading = False
        self._ready.extend(self._led)
        self._led.clear()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        if not self._leading:
            return handle
        self._ready.pop()
        led = asyncio.Handle(self._run_led, (self._lead, callback, *args), self, context)
        self._led.append(led)
        return led

    def _run_led(self, lead: object, callback: Callable[..., object], *args: Any) -> None:
        self._leading = lead is self._lead
        try:
            callback(*args)
        finally:
            self._ready.extendleft(reversed(self._led))
            self._led.clear()
            self._leading = False
