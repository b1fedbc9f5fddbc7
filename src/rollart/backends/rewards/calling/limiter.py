"""One limiter a platform: how many calls are under way, how many begin a second, and pauses.

Invariant: places are given first come, first served; a place that was asked for and is no longer
wanted, given or not, goes to the next at once. Who waits is woken; nobody polls.
"""

import asyncio
from collections import deque
from types import TracebackType

BURST_S = 0.1  # of a rate may begin at once: a timer that is a little late loses nothing


class Place:
    """A place asked for; leaving the context gives it back, or ends the asking.

    `granted` is done once the place is there. Wait on it bare: cancelling it ends the asking.
    """

    __slots__ = ("_limiter", "granted", "holds")

    def __init__(self, limiter: "Limiter") -> None:
        self._limiter = limiter
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.holds = False

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._limiter.leave(self)


class Limiter:
    """Limits of one platform, shared by all functions on it.

    Args:
        concurrency: calls under way at most.
        rate_per_s: calls begun a second, evenly; in any T seconds at most `rate_per_s` * (T +
            `BURST_S`), or one. None sets no bound.
    """

    def __init__(self, concurrency: int, *, rate_per_s: float | None = None) -> None:
        self.free = concurrency
        self._interval_s = 0.0 if rate_per_s is None else 1.0 / rate_per_s
        burst = 1.0 if rate_per_s is None else max(1.0, rate_per_s * BURST_S)
        self._tolerance_s = (burst - 1.0) * self._interval_s
        self._due = float("-inf")  # loop time at which an even stream would begin its next call
        self._queue: deque[Place] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.paused_until = float("-inf")
        self._paused: asyncio.Future[None] | None = None

    @property
    def next_pause(self) -> asyncio.Future[None]:
        """Done when the platform asks for a pause the next time; wait on it with others only."""
        if self._paused is None:
            self._paused = asyncio.get_running_loop().create_future()
        return self._paused

    def ask(self) -> Place:
        """A place, perhaps later."""
        place = Place(self)
        self._queue.append(place)
        self._grant()
        return place

    def ask_now(self) -> Place | None:
        """A place now or none, behind all who wait."""
        place = self.ask()
        if place.holds:
            return place
        self.leave(place)
        return None

    def pause(self, seconds: float) -> None:
        """The platform asked for it: no call begins within `seconds`."""
        now = asyncio.get_running_loop().time()
        self.paused_until = max(self.paused_until, now + seconds)
        if self._paused is not None:
            paused, self._paused = self._paused, None
            paused.set_result(None)

    def leave(self, place: Place) -> None:
        """Give a place back, or end the asking for it; a second time does nothing."""
        if place.holds:
            place.holds = False
            self.free += 1
        else:
            place.granted.cancel()
        self._grant()

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        queue = self._queue
        while queue and queue[0].granted.done():  # it was given up
            queue.popleft()
        while queue and self.free > 0:
            now = loop.time()
            opens = max(self.paused_until, self._due - self._tolerance_s)
            if opens > now:
                self._wake_at(opens)
                return
            place = queue.popleft()
            if place.granted.done():
                continue
            self.free -= 1
            self._due = max(self._due, now) + self._interval_s
            place.holds = True
            place.granted.set_result(None)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() >= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._grant()
