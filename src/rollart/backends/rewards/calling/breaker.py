"""Whether a platform counts as down: pure; times are given.

Invariant: only faults in a row, with no sign of life between them, open it; any sign closes it.
"""


class Breaker:
    """The state of one platform. `failures` faults in a row take it down."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._in_a_row = 0
        self._since: float | None = None

    @property
    def is_down(self) -> bool:
        """Whether calls have to wait, or to go elsewhere."""
        return self._since is not None

    def failed(self, now: float) -> bool:
        """The platform did not answer a try. True when it is down from now on."""
        self._in_a_row += 1
        if self._since is not None or self._in_a_row < self._failures:
            return False
        self._since = now
        return True

    def lives(self, now: float) -> float | None:
        """The platform answered something. Seconds that it was down, when it is up from now on."""
        since, self._since = self._since, None
        self._in_a_row = 0
        return None if since is None else now - since
