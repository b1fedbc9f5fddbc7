"""Calls under way on one platform: each under its deadline, all of them ended by `close`.

Invariant: work runs in its caller's task, so there is nothing to leak; whoever closes waits until
the last call has let go of its connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollart.backends.rewards.platform import Fault, PlatformFault

T = TypeVar("T")


class UnderWay:
    """The calls of one platform."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._scopes: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._closed = False

    async def bounded(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """What `work` gives; after `seconds` it is cancelled. Raises `PlatformFault`."""
        scope = asyncio.timeout(max(seconds, 0.0))
        try:
            async with scope:
                self._check_open()
                self._scopes.add(scope)
                return await work()
        except TimeoutError:
            self._check_open()
            if not scope.expired():
                raise
            raise PlatformFault(
                Fault.TIMEOUT, f"{self._shown}: no answer within {seconds:.3g} s"
            ) from None
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._empty.set()

    async def close(self) -> None:
        """End all calls with `Fault.UNAVAILABLE` and wait until they have ended."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        while self._scopes:
            self._empty.clear()
            await self._empty.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise PlatformFault(Fault.UNAVAILABLE, f"{self._shown}: was closed")
