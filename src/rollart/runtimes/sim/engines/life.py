"""Life and end of a modelled worker whose commands take time.

Invariants: everyone who waits for the end hears the reason, and one who stops waiting takes it from
nobody; what is done within `alive()` raises `EngineLost` at the end, and never begins on a worker
that hangs.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rollart.core.errors import EngineLost


class Life:
    """Of one worker, from its making on."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._waits: dict[asyncio.Timeout, None] = {}
        self.hangs = False

    @property
    def over(self) -> bool:
        return self._end.done()

    @property
    def still(self) -> bool:
        """Whether it does nothing any more: it is dead, or hangs."""
        return self.hangs or self._end.done()

    async def ended(self) -> str:
        """Waits for the end; returns the reason."""
        return await asyncio.shield(self._end)

    def end(self, reason: str) -> None:
        """Once: whoever waits within `alive()` gets `EngineLost`."""
        self._end.set_result(reason)
        for wait in self._waits:
            wait.reschedule(self._loop.time())

    @asynccontextmanager
    async def alive(self) -> AsyncGenerator[None]:
        """Raises `EngineLost` when it is dead, or dies before what is within is done."""
        if self._end.done():
            raise EngineLost(self._worker, self._end.result())
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits[wait] = None
                try:
                    if self.hangs:
                        await self._loop.create_future()
                    yield
                finally:
                    del self._waits[wait]
        except TimeoutError as error:
            if not self._end.done():
                raise
            raise EngineLost(self._worker, self._end.result()) from error

    async def until(self, at: float) -> None:
        """Sleep until this very loop time (s)."""
        if at <= self._loop.time():
            return
        due: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at(at, due.set_result, None)
        try:
            await due
        finally:
            timer.cancel()
