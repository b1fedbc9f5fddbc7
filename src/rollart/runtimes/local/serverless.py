"""Serverless functions on this machine: pools of processes that come on demand and go when idle.

Owns one pool a URL, opened at the first call. Invariant: a call ends by its deadline, with a value
or `ServerlessFailed`; a function that overruns is killed and costs no other call. Other platforms
are further openers in `OPENERS`, by the URL's scheme.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rollart.core.errors import ConfigError, FailureKind, RollartError
from rollart.core.scoring.verdict import as_verdict
from rollart.core.types import Trajectory, Verdict
from rollart.process.child import Child
from rollart.process.errors import ProcessError
from rollart.runtimes.local.lane import LaneLost
from rollart.runtimes.local.lane_pool import IDLE_S, MOST_CHILDREN, LanePool
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.values import pack_value, unpack_value

SpawnFunction = Callable[[str, str], Awaitable[Child]]
"""Starts a child that serves the function at an import path, under a name: (path, name)."""


_STARTING = "the first is still starting, for later calls; raise timeouts.reward_s"


class ServerlessFailed(RollartError):
    """A call to a serverless function gave no value.

    Attributes:
        overran: it was killed because it took too long.
    """

    def __init__(self, reason: str, *, overran: bool = False) -> None:
        super().__init__(reason)
        self.overran = overran


class Function(Protocol):
    """A function on some platform."""

    async def call(
        self, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        """Its value. Raises `ServerlessFailed`; takes at most `seconds` in all."""
        ...

    async def close(self) -> None: ...


class LocalFunction:
    """``local://module:function``: no process while idle, up to `most` under load."""

    def __init__(
        self,
        path: str,
        spawn: SpawnFunction,
        *,
        most: int = MOST_CHILDREN,
        idle_s: float = IDLE_S,
    ) -> None:
        self._path = path
        name = f"serverless-{path.replace(':', '-')}"
        self._pool = LanePool(
            name, lambda child: spawn(path, child), most=most, keep=0, idle_s=idle_s
        )

    @property
    def processes(self) -> int:
        """Children that live now."""
        return self._pool.processes

    async def call(
        self, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        """See `Function.call`. Starting a process counts, too, and goes on for the next call."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            packed = (pack_value(args), pack_value(kwargs))
            async with asyncio.timeout_at(deadline):
                _, job = await self._pool.submit(
                    *packed, limit_s=lambda: max(deadline - loop.time(), 0.0), on_ask=None
                )
            ok, value = await job.answer  # ends by the job's own limit
        except TimeoutError:
            late = f"no process was free within {seconds:.3g} s"
            reason = late if self._pool.processes else f"{late}: {_STARTING}"
            raise ServerlessFailed(f"{self._path}: {reason}", overran=True) from None
        except LaneLost as lost:
            late = f"no answer within {seconds:.3g} s; its process was killed"
            reason = late if lost.overran else lost.reason
            raise ServerlessFailed(f"{self._path}: {reason}", overran=lost.overran) from None
        except ProcessError as error:
            raise ServerlessFailed(
                f"{self._path}: cannot be started: {in_a_line(error)}"
            ) from error
        except TypeError as error:
            raise ServerlessFailed(f"{self._path}: {error}") from error
        if not ok:
            raise ServerlessFailed(f"{self._path}: {value}")
        return unpack_value(value)

    async def close(self) -> None:
        """Kill what runs, within seconds."""
        await self._pool.close()


Opener = Callable[[str, SpawnFunction], Function]
"""Makes a function from what follows ``scheme://``."""

OPENERS: Mapping[str, Opener] = {"local": LocalFunction}


class Serverless:
    """The functions of a run, by URL; equal URLs share a pool."""

    def __init__(self, spawn: SpawnFunction) -> None:
        self._spawn = spawn
        self._functions: dict[str, Function] = {}

    def open(self, url: str) -> Function:
        """The function at `url`. Raises `ConfigError` for a platform that is not supported."""
        if url not in self._functions:
            scheme, path = split_url(url)
            if scheme not in OPENERS:
                raise ConfigError(unsupported(url))
            self._functions[url] = OPENERS[scheme](path, self._spawn)
        return self._functions[url]

    async def close(self) -> None:
        """Close every function."""
        async with asyncio.TaskGroup() as group:
            for function in self._functions.values():
                group.create_task(function.close())


def split_url(url: str) -> tuple[str, str]:
    """(scheme, rest) of ``scheme://rest``; the scheme of a bare import path is empty."""
    scheme, separator, rest = url.partition("://")
    return (scheme, rest) if separator else ("", url)


def unsupported(url: str) -> str:
    """Why a URL cannot be used, with the remedy."""
    scheme, _ = split_url(url)
    known = ", ".join(f"{name}://" for name in OPENERS)
    return f"{scheme}:// is not supported yet; use {known}, such as local://module:function"


class ServerlessReward:
    """The `Reward` port over a function of one trajectory."""

    def __init__(self, function: Function, *, limit_s: float) -> None:
        self._function = function
        self._limit_s = limit_s

    async def score(self, trajectory: Trajectory) -> Verdict:
        """The function's verdict, or none with the reason."""
        try:
            value = await self._function.call((trajectory,), {}, seconds=self._limit_s)
            return as_verdict(value)
        except ServerlessFailed as failed:
            kind = FailureKind.REWARD_TIMEOUT if failed.overran else FailureKind.REWARD_ERROR
            return Verdict(score=None, reason=str(failed), failure=kind)
        except (TypeError, ValueError) as error:
            return Verdict(score=None, reason=str(error), failure=FailureKind.REWARD_ERROR)

    async def close(self) -> None:
        """The function belongs to the run, which closes it."""
