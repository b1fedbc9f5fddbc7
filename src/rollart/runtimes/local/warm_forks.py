"""Light children of one domain, forked in milliseconds from a process warmed with user modules.

Owns one fork server, started at the first need and again if it died. User modules that cannot be
forked (they load torch or start threads) are left to the children, which is slower and works.
Who waits on whom: forks wait for the server's start, one at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollart.process.child import Child
from rollart.process.errors import ChildStartError
from rollart.process.forkserver import ForkServer

_SERVER_START_S = 60.0
_CLOSE_GRACE_S = 2.0
NEVER_SILENT_S = 1e9
"""Heartbeat limit where each job has its own deadline: holding the interpreter may be legal."""


class WarmForks:
    """Forks of one domain; `modules` are what its children would import anyway."""

    def __init__(
        self,
        *,
        name: str,
        modules: Sequence[str],
        hosts: Sequence[str],
        env: Mapping[str, str],
        python_path: Sequence[str],
        log_file: Path,
        start_s: float = _SERVER_START_S,
    ) -> None:
        self._name = name
        self._modules = tuple(modules)
        self._hosts = tuple(hosts)
        self._env = env
        self._python_path = python_path
        self._log_file = log_file
        self._start_s = start_s
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._may_preload = True
        self._closed = False

    async def fork(self, entry: str, config: Any, *, name: str, pulse: bool = True) -> Child:
        """A new child, ready. Its prints go to the domain's log.

        Args:
            pulse: False for a child that must have one thread.

        Raises:
            ChildStartError: it cannot be started; the message ends with its output.
        """
        server = self._server
        if server is None or not server.child.alive:
            server = await self._started()
        return await server.fork(
            entry,
            config,
            name=name,
            start_timeout=self._start_s,
            heartbeat_timeout=NEVER_SILENT_S,
            log_file=self._log_file,
            pulse=pulse,
        )

    async def close(self) -> None:
        """End the server and every child forked from it."""
        self._closed = True
        async with self._starting:
            if self._server is not None:
                server, self._server = self._server, None
                await server.close(_CLOSE_GRACE_S)

    async def _started(self) -> ForkServer:
        async with self._starting:
            if self._closed:
                raise ChildStartError(f"{self._name}: closed; nothing can be started any more")
            if self._server is not None and self._server.child.alive:
                return self._server
            if self._server is not None:
                await self._server.close(_CLOSE_GRACE_S)
            if self._may_preload:
                try:
                    self._server = await self._start((*self._hosts, *self._modules))
                except ChildStartError:
                    self._may_preload = False
            if not self._may_preload:
                self._server = await self._start(self._hosts)
            assert self._server is not None
            return self._server

    async def _start(self, preload: Sequence[str]) -> ForkServer:
        return await ForkServer.start(
            preload=preload,
            name=f"{self._name}-forks",
            env=self._env,
            inherit_env=False,
            python_path=self._python_path,
            start_timeout=self._start_s,
            log_file=self._log_file,
        )
