"""When a modelled device was busy, in few events.

Invariants: events of a device do not overlap; together they cover what it worked, and each kind
of work has its seconds. Work without a pause is told a window at a time, kind after kind: the order
within a window is not kept, or a busy engine would fill the log with its iterations.
"""

from rollart.core.events import DeviceBusy, Work
from rollart.core.ports import EventSink

WINDOW_S = 30.0
"""Work without a pause is told at least so often, once the stretch of work that ends it is over."""

GAP_S = 1e-6
"""Pauses up to this are none: sums of seconds are not exact."""


class BusyLog:
    """Collects what one device did; times are loop times (s), in order."""

    __slots__ = ("_begin", "_device", "_end", "_events", "_hardware", "_seconds")

    def __init__(self, device: str, hardware: str, events: EventSink) -> None:
        self._device = device
        self._hardware = hardware
        self._events = events
        self._begin = self._end = 0.0
        self._seconds: dict[Work, float] = {}

    def add(self, work: Work, begin: float, end: float) -> None:
        if begin - self._end > GAP_S or not self._seconds:
            self.flush()
            self._begin = begin
        self._end = end
        self._seconds[work] = self._seconds.get(work, 0.0) + end - begin
        if end - self._begin >= WINDOW_S:
            self.flush()

    def flush(self) -> None:
        """Tell what has been collected: one event a kind of work."""
        at = self._begin
        left = len(self._seconds)
        for work, seconds in self._seconds.items():
            left -= 1
            end = at + seconds if left else self._end  # the last one takes the rounding
            if end > at:
                self._events.emit(
                    DeviceBusy(
                        device=self._device,
                        hardware=self._hardware,
                        work=work,
                        begin=at,
                        end=end,
                    )
                )
            at = end
        self._seconds.clear()
