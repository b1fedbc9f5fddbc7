"""`ForkServer`: starts light children in milliseconds from a warmed process.

Owns one child (the server) and the handles of its forks. Invariants: forks are requested one at a
time, so descriptors and requests arrive in the same order; a fork is killed through a descriptor or
an id that cannot have been reused. Forks die with the server, the server with this process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from rollart.process.channel import PENDING_LIMIT
from rollart.process.child import REAP_LIMIT, Child
from rollart.process.errors import ChildDied, ChildStartError, RemoteError
from rollart.process.forking import (
    ENTRY,
    ForkConfig,
    ForkExit,
    receive_by_token,
    send_with_token,
)
from rollart.process.frames import FRAME_LIMIT
from rollart.process.messages import Start
from rollart.process.owner import kill_group
from rollart.process.report import ExitReport
from rollart.process.spawn import beat_interval, introduce, spawn

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_STATUS_WAIT = 1.0  # seconds a dead fork waits for the server to tell its exit status


class ForkedProcess:
    """A grandchild: reaped by the fork server, watched and killed from here.

    It is made before it is forked, so that its end cannot be reported too early. `pid` is 0 until
    `identify`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = 0
        self._pidfd = -1
        self._on_exit: Callable[[int | None], None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._returncode: int | None = None
        self._orphaned = False
        self._ended = False

    @property
    def pid(self) -> int:
        return self._pid

    def identify(self, pid: int, pidfd: int) -> None:
        """Take its ids as the server reports them; pidfd is -1 where there are none."""
        self._pid = pid
        self._pidfd = pidfd
        if self._ended:
            self._close_pidfd()

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        self._on_exit = on_exit
        if self._ended:
            self._loop.call_soon(self._report)
        elif self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._on_pidfd)

    def kill(self) -> None:
        # Once it has ended the id may be another process's, and the server has killed its group.
        if self._pid and not self._ended and not _readable(self._pidfd):
            kill_group(self._pid)

    def ended(self, returncode: int | None) -> None:
        """It was reaped; None: and nobody knows how it ended."""
        if self._ended:
            return
        self._ended = True
        self._returncode = returncode
        if self._patience is not None:
            self._patience.cancel()
        self._close_pidfd()
        self._report()

    def orphaned(self) -> None:
        """The server died, so this ends too; its status is lost."""
        self._orphaned = True
        self.kill()
        if self._pidfd < 0 or self._patience is not None:
            self.ended(None)

    def _on_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._orphaned:
            self.ended(None)
        else:
            self._patience = self._loop.call_later(_STATUS_WAIT, self.ended, None)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _report(self) -> None:
        if self._on_exit is not None:
            callback, self._on_exit = self._on_exit, None
            callback(self._returncode)


def _readable(fd: int) -> bool:
    if fd < 0:
        return False
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class ForkServer:
    """A warmed process that forks children on request. Make it with `ForkServer.start`.

    Attributes:
        child: the server itself; watch `child.died`.
    """

    def __init__(self, lane: socket.socket) -> None:
        self._lane = lane
        self._turn = asyncio.Lock()
        self._tokens = itertools.count(1)
        self._forks: dict[int, ForkedProcess] = {}
        self._children: set[Child] = set()
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("the fork server is not started; use ForkServer.start()")
        return self._child

    @classmethod
    async def start(
        cls,
        *,
        preload: Sequence[str] = (),
        name: str = "forkserver",
        env: Mapping[str, str] | None = None,
        inherit_env: bool = True,
        python_path: Sequence[str] = (),
        start_timeout: float = 60.0,
        heartbeat_timeout: float = 10.0,
        log_file: Path | None = None,
    ) -> Self:
        """Start the server and import the modules of `preload` in it.

        Arguments are as for `spawn`. The numeric libraries' thread counts are set to 1 unless `env`
        says otherwise, since a process with threads cannot be forked.

        Raises:
            ChildStartError: a module failed to import, loads torch, or starts threads.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        server = cls(ours)
        config = ForkConfig(
            preload=tuple(preload),
            lane=theirs.fileno(),
            beat_interval=beat_interval(heartbeat_timeout),
        )
        try:
            server._child = await spawn(
                ENTRY,
                config,
                name=name,
                env={**_ONE_THREAD, **(env or {})},
                inherit_env=inherit_env,
                python_path=python_path,
                start_timeout=start_timeout,
                heartbeat_timeout=heartbeat_timeout,
                on_event=server._on_event,
                log_file=log_file,
                pass_fds=(theirs.fileno(),),
                pulse=False,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        server._child.died.add_done_callback(server._on_died)
        return server

    async def fork(
        self,
        entry: str,
        config: Any,
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        python_path: Sequence[str] = (),
        start_timeout: float = 10.0,
        heartbeat_timeout: float = 10.0,
        on_event: Callable[[Any], None] | None = None,
        log_file: Path | None = None,
        frame_limit: int = FRAME_LIMIT,
        pending_limit: int = PENDING_LIMIT,
        pulse: bool = True,
    ) -> Child:
        """Fork a child and wait until it is ready. Arguments and errors are as for `spawn`.

        Exit handlers (`atexit`) do not run in it. Its random state is a copy, except Python's own
        `random`, so it must be seeded.
        """
        process, sock, output_fd = await self._request(name, start_timeout)
        start = Start(
            entry=entry,
            config=config,
            name=name,
            python_path=[str(folder) for folder in python_path],
            env=dict(env or {}),
            beat_interval=beat_interval(heartbeat_timeout),
            frame_limit=frame_limit,
            pulse=pulse,
        )
        child = await introduce(
            process,
            sock,
            output_fd,
            start,
            start_timeout=start_timeout,
            heartbeat_timeout=heartbeat_timeout,
            on_event=on_event,
            log_file=log_file,
            pending_limit=pending_limit,
        )
        self._children.add(child)
        child.died.add_done_callback(lambda _: self._children.discard(child))
        return child

    async def close(self, grace: float) -> ExitReport:
        """End the server and with it every child that still runs; waits until all are gone."""
        report = await self.child.close(grace)
        if self._children:
            await asyncio.wait([child.died for child in self._children], timeout=REAP_LIMIT)
        self._lane.close()
        return report

    async def _request(self, name: str, timeout: float) -> tuple[ForkedProcess, socket.socket, int]:
        async with self._turn:
            token = next(self._tokens)
            ours, theirs = socket.socketpair()
            read_end, write_end = os.pipe()
            process = self._forks[token] = ForkedProcess()
            try:
                send_with_token(self._lane, token, [theirs.fileno(), write_end])
                pid = await self.child.call("fork", token, timeout=timeout)
                pidfd = -1
                if hasattr(os, "pidfd_open"):
                    (pidfd,) = receive_by_token(self._lane, token, 1)
            except BaseException as error:
                # A child that was forked all the same meets the end of its stream and ends.
                self._forks.pop(token, None)
                ours.close()
                os.close(read_end)
                if isinstance(error, (ChildDied, RemoteError, OSError)):
                    raise ChildStartError(f"cannot fork {name}: {error}") from error
                raise
            finally:
                theirs.close()
                os.close(write_end)
            process.identify(pid, pidfd)
            if not self.child.alive:
                process.orphaned()
            return process, ours, read_end

    def _on_event(self, value: Any) -> None:
        ended = msgspec.convert(value, ForkExit)
        process = self._forks.pop(ended.token, None)
        if process is not None:
            process.ended(ended.returncode)

    def _on_died(self, _: object) -> None:
        self._lane.close()
        forks, self._forks = self._forks, {}
        for process in forks.values():
            process.orphaned()
