"""Whether a platform counts as down: pure; times are given.

Invariant: it is down after faults in a row of as many calls, with no sign of life between them; any
sign of life takes it up. Faults of fewer calls may be those calls' own: then only its health tells.
"""


class Breaker:
    """The state of one platform. Faults in a row of `failures` calls take it down."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._in_a_row = 0
        self._calls: set[str] = set()
        self._since: float | None = None

    @property
    def is_down(self) -> bool:
        """Whether calls have to wait, or to go elsewhere."""
        return self._since is not None

    @property
    def in_doubt(self) -> bool:
        """Whether there were faults enough, but of too few calls: its health has to be asked."""
        return self._since is None and self._in_a_row >= self._failures

    def failed(self, key: str, now: float) -> bool:
        """It did not answer a try of the call of `key`. True when it is down from now on."""
        if self._since is not None:
            return False
        self._in_a_row += 1
        self._calls.add(key)
        return self._opens(now) if len(self._calls) >= self._failures else False

    def silent(self, now: float) -> bool:
        """It did not answer when asked for its health. True when it is down from now on."""
        return self._opens(now) if self.in_doubt else False

    def lives(self, now: float) -> float | None:
        """The platform answered something. Seconds that it was down, when it is up from now on."""
        since, self._since = self._since, None
        self._in_a_row = 0
        self._calls.clear()
        return None if since is None else now - since

    def _opens(self, now: float) -> bool:
        self._since = now
        return True
