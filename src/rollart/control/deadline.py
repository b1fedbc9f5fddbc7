"""Waiting under deadlines, measured by the event loop's own clock.

Invariant: a deadline cancels what its task waits for as `asyncio.timeout` would, nested ones too;
but the loop holds at most one timer a task. Nearly every wait ends in time, so the timer of an
earlier wait is left where it is: if it fires too early, it is set anew for what is open then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


def now() -> float:
    """Loop time in seconds."""
    return asyncio.get_running_loop().time()


async def within(seconds: float, what: Awaitable[T], otherwise: Callable[[], Exception]) -> T:
    """The result of `what`; after `seconds` it is cancelled and `otherwise()` is raised."""
    return await Deadlines().within(seconds, what, otherwise)


class Deadlines:
    """The deadlines of the task that makes it."""

    __slots__ = ("fires_at", "loop", "open", "task", "timer")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can wait under a deadline"
        self.task = task
        self.loop = asyncio.get_running_loop()
        self.open: list[Deadline] = []
        self.timer: asyncio.TimerHandle | None = None
        self.fires_at = 0.0

    def after(self, seconds: float) -> "Deadline":
        """A context that ends in a `TimeoutError` when it is still open in `seconds`."""
        return Deadline(self, self.loop.time() + seconds)

    async def within(
        self, seconds: float, what: Awaitable[T], otherwise: Callable[[], Exception]
    ) -> T:
        """As the function of this name, under the deadlines that are open already."""
        deadline = Deadline(self, self.loop.time() + seconds)
        try:
            with deadline:
                return await what
        except TimeoutError as error:
            if deadline.expired:
                raise otherwise() from error
            raise

    def arm(self, at: float) -> None:
        """Let the timer fire at `at` (loop time, s), which is earlier than it would."""
        if self.timer is not None:
            self.timer.cancel()
        self.fires_at = at
        self.timer = self.loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self.timer = None
        time = self.loop.time()
        for deadline in self.open:
            if deadline.expired:
                continue
            if deadline.at <= time:
                deadline.expired = True
                self.task.cancel()
            elif self.timer is None or self.fires_at > deadline.at:
                self.arm(deadline.at)


class Deadline:
    """One deadline of a task, at loop time `at` (s); `expired` once it has cancelled the task."""

    __slots__ = ("_cancelling", "_owner", "at", "expired")

    def __init__(self, owner: Deadlines, at: float) -> None:
        self._owner = owner
        self._cancelling = 0
        self.at = at
        self.expired = False

    def __enter__(self) -> "Deadline":
        owner = self._owner
        self._cancelling = owner.task.cancelling()
        owner.open.append(self)
        if owner.timer is None or owner.fires_at > self.at:
            owner.arm(self.at)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        owner = self._owner
        owner.open.pop()
        if not owner.open and owner.timer is not None:
            owner.timer.cancel()
            owner.timer = None
        # As asyncio.timeout does: a cancellation that somebody else asked for goes on its way.
        if self.expired:
            others = owner.task.uncancel() > self._cancelling
            if kind is asyncio.CancelledError and not others:
                raise TimeoutError from error
