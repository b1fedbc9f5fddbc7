"""`local://module:function`: a platform of killable child processes on this machine.

Owns one pool of children a function, none while it is idle, and the fork server that they come
from. Invariant: a call ends by its deadline; a function that overruns, crashes or leaks costs the
one call, whose process is killed. Every process is told of with its begin and end.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.process.errors import FrameTooLarge, ProcessError
from rollart.process.frames import FRAME_LIMIT
from rollart.runtimes.local import function_host
from rollart.runtimes.local.function_host import FunctionHostConfig
from rollart.runtimes.local.lane import LaneLost
from rollart.runtimes.local.lane_pool import LanePool
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.warm_forks import WarmForks

InstanceSink = Callable[[str, float, float], None]
"""Takes a process that ended: its name, when its start was asked for, and when it was gone."""

_BESIDE = 4096  # bytes of a frame that are not the request


class LocalPlatform:
    """The `Platform` over one function.

    Args:
        function: its import path; `version` and `store` as in `FunctionHostConfig`.
        env: the children's whole environment.
        most: processes at most.
        timeout_s: that a call may take once it has a process; None: all that its caller waits.
        idle_s: seconds without work after which a process ends; None: see `LanePool`.
    """

    def __init__(
        self,
        function: str,
        *,
        version: str,
        store: str = "",
        env: dict[str, str],
        python_path: Sequence[str],
        log_file: Path,
        most: int,
        idle_s: float | None,
        on_instance: InstanceSink,
        timeout_s: float | None = None,
    ) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._scratch = tempfile.mkdtemp(prefix="rollart-function-")
        self._on_instance = on_instance
        self._removals: set[asyncio.Task[None]] = set()
        name = f"serverless-{function.replace(':', '-')}"
        self._forks = WarmForks(
            name=name,
            modules=[function.partition(":")[0]],
            hosts=[function_host.__name__],
            env=env,
            python_path=python_path,
            log_file=log_file,
        )
        self._pool = LanePool(
            name,
            lambda child: self._forks.fork(
                function_host.ENTRY,
                FunctionHostConfig(
                    function=function, version=version, store=store, scratch=self._folder(child)
                ),
                name=child,
                pulse=False,  # one thread: it forks, and leaves namespaces
            ),
            most=most,
            keep=0,
            idle_s=idle_s,
            on_end=self._ended,
        )

    @property
    def limits(self) -> PlatformLimits:
        """A message between processes is what bounds a request."""
        return PlatformLimits(name=f"local {self._function}", body_bytes=FRAME_LIMIT - _BESIDE)

    @property
    def processes(self) -> int:
        """Children that live now."""
        return self._pool.processes

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`. Waiting for a free process and starting one count, too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                lane, job = await self._pool.submit(
                    body, seconds, limit_s=lambda: self._limit_s(deadline), on_ask=None
                )
            try:
                answer = await job.answer  # ends by the job's own limit
            except asyncio.CancelledError:
                lane.kill("nobody waits for its call any more")
                raise
        except TimeoutError:
            late = f"no process was free within {seconds:.3g} s"
            raise PlatformFault(Fault.TIMEOUT, f"{self._function}: {late}") from None
        except LaneLost as lost:
            limit_s = min(seconds, self._timeout_s or seconds)
            late = f"no answer within {limit_s:.3g} s; its process was killed"
            reason = f"{self._function}: {late if lost.overran else lost.reason}"
            fault = Fault.TIMEOUT if lost.overran else Fault.CRASHED
            raise PlatformFault(fault, reason) from None
        except FrameTooLarge as error:
            raise PlatformFault(Fault.TOO_LARGE, f"{self._function}: {error}") from error
        except ProcessError as error:
            why = f"{self._function}: cannot be started: {in_a_line(error)}"
            raise PlatformFault(Fault.UNAVAILABLE, why) from error
        if not isinstance(answer, bytes):  # see `function_host`
            raise PlatformFault(Fault.GARBLED, f"{self._function}: {answer[1]}")
        return answer

    def _limit_s(self, deadline: float) -> float:
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        return left if self._timeout_s is None else min(left, self._timeout_s)

    async def close(self) -> None:
        """Kill what runs, within seconds."""
        await self._pool.close()
        await self._forks.close()
        if self._removals:
            await asyncio.wait(self._removals)
        await asyncio.to_thread(function_host.remove_tree, self._scratch)

    def _folder(self, child: str) -> str:
        number = child.rpartition("-")[2]  # short: a socket's path within has 108 bytes at most
        return os.path.join(self._scratch, number)

    def _ended(self, child: str, begin: float, end: float) -> None:
        self._on_instance(child, begin, end)
        removal = asyncio.create_task(
            asyncio.to_thread(function_host.remove_tree, self._folder(child))
        )
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
