"""How a suite judges: a clause of a port's contract holds, or `ConformanceError` names it.

Invariant: a suite knows only the port, waits under its own patience (seconds of the running loop,
real or virtual), and closes what it had made.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class ConformanceError(AssertionError):
    """A clause of a port's contract is broken. Names port and clause, and what was seen."""

    def __init__(self, port: str, clause: str, seen: str) -> None:
        super().__init__(f"{port}: {clause}; {seen}")
        self.port = port
        self.clause = clause
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract of one port. `patience_s`: after so many seconds an answer is missing."""

    port: str
    patience_s: float = 30.0

    def require(self, holds: bool, clause: str, seen: str) -> None:
        """Raises `ConformanceError` unless `holds`."""
        if not holds:
            raise ConformanceError(self.port, clause, seen)

    async def soon(self, what: Awaitable[T], clause: str) -> T:
        """The result of `what`, which must come within the patience and without an error."""
        try:
            return await self._bounded(what, clause)
        except ConformanceError:
            raise
        except Exception as error:
            raise ConformanceError(self.port, clause, f"it raised {error!r}") from error

    async def raises(
        self, what: Awaitable[object], errors: tuple[type[Exception], ...], clause: str
    ) -> Exception:
        """The error of `what`, which must be one of `errors`."""
        try:
            value = await self._bounded(what, clause)
        except ConformanceError:
            raise
        except errors as error:
            return error
        except Exception as error:
            raise ConformanceError(self.port, clause, f"it raised {error!r}") from error
        raise ConformanceError(self.port, clause, f"it returned {value!r}")

    async def _bounded(self, what: Awaitable[T], clause: str) -> T:
        scope = asyncio.timeout(self.patience_s)
        try:
            async with scope:
                return await what
        except TimeoutError:
            if not scope.expired():
                raise
        except asyncio.CancelledError as error:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            raise ConformanceError(self.port, clause, "what was awaited was cancelled") from error
        raise ConformanceError(self.port, clause, f"nothing within {self.patience_s:g} s")

    async def waits(self, what: "asyncio.Task[T]", seconds: float, clause: str) -> None:
        """`what` must not end within `seconds`; it goes on afterwards."""
        await asyncio.wait([what], timeout=seconds)
        self.require(not what.done(), clause, f"{what.get_name()} ended at once")


async def cancelled(task: "asyncio.Task[T]") -> None:
    """Cancel `task` and wait until it has let go."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


class Latency:
    """The longest time (s) for which the event loop did not run anything else.

    Under virtual time it is 0: there, what blocks takes no time.
    """

    def __init__(self, every_s: float = 0.01) -> None:
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self.longest_s = 0.0

    async def __aenter__(self) -> "Latency":
        self._task = asyncio.get_running_loop().create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            await cancelled(self._task)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            try:
                await asyncio.sleep(self._every_s)
            finally:
                self.longest_s = max(self.longest_s, loop.time() - before - self._every_s)
