"""A tracker on a thread of its own, so that it can lose points and never the run's time.

Invariant: whoever logs waits for nothing and is never raised at. The thread waits for points; the
run waits for the thread once, when it closes, for a bounded time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from rollart.observe.points import Point, Tracker

WARN_EVERY_S = 60.0


class BackgroundTracker:
    """Runs a tracker on a thread of its own, from its making to its closing.

    `log` puts the point in a bounded queue and returns; when the queue is full the point is lost.
    A tracker that raises loses that point; one that cannot be made is tried again a minute later.
    Losses are counted in `lost`, and told by `warn`, which runs in the caller of `log` or
    `close`, at most once a minute.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        *,
        warn: Callable[[str], None],
        capacity: int = 1000,
    ) -> None:
        self.lost = 0
        self._name = name
        self._make = make
        self._warn = warn
        self._capacity = capacity
        self._queue: deque[Point] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._problem = ""
        self._told = 0
        self._warned_at = float("-inf")
        # A daemon: a tracker that blocks for ever must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, point: Point) -> None:
        """Take a point. Never blocks, never raises."""
        with self._changed:
            if len(self._queue) >= self._capacity:
                self.lost += 1
                self._problem = "it is too slow, and its queue is full"
            else:
                self._queue.append(point)
                self._changed.notify()
        if point.time - self._warned_at >= WARN_EVERY_S and self._tell():
            self._warned_at = point.time

    def finish(self) -> None:
        """There are no more points; it may end while others are told the same."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, wait_s: float = 5.0) -> None:
        """Let it finish for at most `wait_s` seconds, then leave it behind."""
        self.finish()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            with self._changed:
                self.lost += len(self._queue)
                self._queue.clear()
                self._problem = f"it did not end within {wait_s:g} s"
        self._tell()

    def _tell(self) -> bool:
        with self._changed:
            problem, self._problem = self._problem, ""
            lost, self._told = self.lost - self._told, self.lost
        if problem:
            self._warn(f"tracker {self._name}: {problem}; {lost} points lost, the run goes on")
        return bool(problem)

    def _work(self) -> None:
        tracker: Tracker | None = None
        retry_at = float("-inf")
        while (point := self._next()) is not None:
            try:
                if tracker is None and time.monotonic() >= retry_at:
                    retry_at = time.monotonic() + WARN_EVERY_S
                    tracker = self._make()
                if tracker is None:
                    self._failed("it could not be made")
                else:
                    tracker.log(point)
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
        try:
            if tracker is not None:
                tracker.close()
        except Exception as error:
            self._failed(f"{type(error).__name__} while closing: {error}", points=0)

    def _next(self) -> Point | None:
        """The next point; None when closing and all are done."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _failed(self, problem: str, points: int = 1) -> None:
        with self._changed:
            self.lost += points
            self._problem = problem
