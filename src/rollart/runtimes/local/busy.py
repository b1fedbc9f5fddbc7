"""When a device was busy, in as few records as will do.

Invariant: intervals are given in order of time; neighbours of the same work closer than `GAP_S`
become one, so a steady decoder is one record a flush and not one a step.
"""

import time

GAP_S = 0.02
FLUSH_S = 0.5

Interval = tuple[str, float, float]
"""Work, begin, end; seconds of `time.monotonic`, which is the control loop's clock as well."""


class BusyLog:
    """Collects intervals in a child until the next flush."""

    def __init__(self) -> None:
        self._intervals: list[Interval] = []
        self._flushed_at = time.monotonic()

    def add(self, work: str, begin: float, end: float) -> None:
        if self._intervals:
            last_work, last_begin, last_end = self._intervals[-1]
            if last_work == work and begin - last_end < GAP_S:
                self._intervals[-1] = (work, last_begin, end)
                return
        self._intervals.append((work, begin, end))

    @property
    def due(self) -> bool:
        """Whether it is time to send what there is."""
        return bool(self._intervals) and time.monotonic() - self._flushed_at >= FLUSH_S

    @property
    def empty(self) -> bool:
        return not self._intervals

    def take(self) -> list[Interval]:
        """All intervals since the last call, oldest first."""
        taken, self._intervals = self._intervals, []
        self._flushed_at = time.monotonic()
        return taken
