"""Instances of a function as platforms keep them: one call each, from zero to a limit and back.

Invariant: an instance serves one call at a time and ends at its time-out, at its own death, after
an idle time, or with the pool; none outlives the pool.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoked:
    """How a call ended. `error` is its kind for a failure of the function, whose word is `body`."""

    body: bytes
    error: str = ""


class FunctionTimedOut(Exception):
    """The function's own time-out; its instance was killed."""


class FunctionExited(Exception):
    """The process ended in mid-call, or before it was ready."""


class Throttled(Exception):
    """As many instances as there may be are busy."""


class Instance(Protocol):
    """One process that runs a function."""

    async def invoke(self, body: bytes) -> Invoked:
        """Raises `FunctionExited`."""
        ...

    async def stop(self) -> None:
        """Kill it and wait until it has ended; twice is once."""
        ...


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a platform did.

    Attributes:
        calls: that reached an instance; throttled ones did not.
        most: instances at once.
        instance_s: seconds from each instance's start to its end, up to now; what is reserved.
        busy_s: seconds that instances spent in calls, starting up included.
    """

    calls: int = 0
    throttled: int = 0
    cold_starts: int = 0
    timed_out: int = 0
    exited: int = 0
    most: int = 0
    instance_s: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a platform scales.

    Attributes:
        limit: instances at most; above it calls are throttled.
        idle_s: seconds after which an idle instance ends.
        timeout_s: seconds that a call may take, starting up not counted.
    """

    limit: int = 8
    idle_s: float = 10.0
    timeout_s: float = 30.0


@dataclass(slots=True, eq=False)
class _Member:
    instance: Instance
    began: float
    ending: "asyncio.Task[None] | None" = field(default=None)


class InstancePool:
    """Instances of one function, made by `start`."""

    def __init__(self, start: Callable[[], Awaitable[Instance]], scaling: Scaling) -> None:
        self._start = start
        self._scaling = scaling
        self._idle: list[_Member] = []
        self._members: set[_Member] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._figures = Figures()

    @property
    def size(self) -> int:
        """Instances that there are, or that are starting."""
        return len(self._members) + self._starting

    def figures(self) -> Figures:
        """Up to now; instances that live are counted up to now."""
        now = asyncio.get_running_loop().time()
        alive = sum(now - member.began for member in self._members)
        return replace(self._figures, instance_s=self._figures.instance_s + alive)

    async def invoke(self, body: bytes) -> Invoked:
        """Raises `Throttled`, `FunctionTimedOut` or `FunctionExited`."""
        loop = asyncio.get_running_loop()
        if not self._idle and self.size >= self._scaling.limit:
            self._figures.throttled += 1
            raise Throttled
        self._figures.calls += 1
        began = loop.time()
        try:
            member = await self._taken()
        except FunctionExited:
            self._figures.exited += 1
            raise
        whole = False
        try:
            async with asyncio.timeout(self._scaling.timeout_s):
                invoked = await member.instance.invoke(body)
            whole = True
            return invoked
        except TimeoutError:
            self._figures.timed_out += 1
            raise FunctionTimedOut from None
        except FunctionExited:
            self._figures.exited += 1
            raise
        finally:
            self._figures.busy_s += loop.time() - began
            if whole:
                self._rest(member)
            else:  # a caller that left cannot stop a function; what is left of it is not used again
                await self._end(member)

    async def close(self) -> None:
        """End all instances; nobody calls any more."""
        for member in self._idle:
            if member.ending is not None:
                member.ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        for member in tuple(self._members):
            await self._end(member)

    async def _taken(self) -> _Member:
        """An idle instance, the latest used first, or a new one."""
        if self._idle:
            member = self._idle.pop()
            if member.ending is not None:
                member.ending.cancel()
            return member
        began = asyncio.get_running_loop().time()
        self._figures.cold_starts += 1
        self._starting += 1
        self._figures.most = max(self._figures.most, self.size)
        try:
            member = _Member(await self._start(), began)
            self._members.add(member)
            return member
        finally:
            self._starting -= 1

    def _rest(self, member: _Member) -> None:
        """Keep an instance for the next call, for a while."""
        self._idle.append(member)
        member.ending = asyncio.create_task(self._end_when_idle(member))
        self._endings.add(member.ending)
        member.ending.add_done_callback(self._endings.discard)

    async def _end_when_idle(self, member: _Member) -> None:
        await asyncio.sleep(self._scaling.idle_s)
        self._idle.remove(member)
        await self._end(member)

    async def _end(self, member: _Member) -> None:
        if member not in self._members:
            return
        self._members.discard(member)
        self._figures.instance_s += asyncio.get_running_loop().time() - member.began
        await member.instance.stop()
