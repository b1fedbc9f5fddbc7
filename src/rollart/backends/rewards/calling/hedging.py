"""When a call is worth a second request: pure.

Invariant: at most one call in twenty is hedged, and none before durations are known. (Dean and
Barroso, "The Tail at Scale", 2013.)
"""

from collections import deque

KEPT = 200  # latest durations of answered tries
ENOUGH = 20  # durations before the first hedge
SHARE = 0.95  # of tries that answer sooner than a hedge would be sent
MOST = 0.05  # of calls that are hedged


class Hedges:
    """The durations of one function's tries, and the hedges that are left."""

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=KEPT)
        self._calls = 0
        self._taken = 0

    def began(self) -> None:
        """A call began."""
        self._calls += 1

    def answered(self, seconds: float) -> None:
        """A try was answered after `seconds`."""
        self._durations.append(seconds)

    @property
    def delay_s(self) -> float | None:
        """Seconds after which a second request goes out; None while too little is known."""
        if len(self._durations) < ENOUGH:
            return None
        ordered = sorted(self._durations)
        return ordered[min(int(SHARE * len(ordered)), len(ordered) - 1)]

    @property
    def left(self) -> bool:
        """Whether one more call may be hedged."""
        return self._taken + 1 <= MOST * self._calls

    def took(self) -> None:
        """A call is hedged."""
        self._taken += 1
