"""`ForkServer`: starts light children in milliseconds from a warmed process.

Owns one child (the server) and the handles of its forks. Invariants: forks are requested one at a
time, so descriptors and requests arrive in the same order; a fork is killed through a descriptor or
an id that cannot have been reused. Forks die with the server, the server with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import signal
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
    """A grandchild: reaped by the fork server, watched and killed from here."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = pid
        self._pidfd = pidfd
        self._on_exit: Callable[[int | None], None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._returncode: int | None = None
        self._ended = False

    @property
    def pid(self) -> int:
        return self._pid

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        self._on_exit = on_exit
        if self._ended:
            self._loop.call_soon(self._report)
        elif self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._on_pidfd)

    def kill(self) -> None:
        if self._ended or (self._pidfd >= 0 and _readable(self._pidfd)):
            return  # it has ended; the server kills what it left behind
        kill_group(self._pid)

    def ended(self, returncode: int | None) -> None:
        """The server reaped it, or died itself (None)."""
        if self._ended:
            return
        if returncode is None:
            self._kill_orphan()
        self._ended = True
        self._returncode = returncode
        if self._patience is not None:
            self._patience.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._report()

    def _on_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._patience = self._loop.call_later(_STATUS_WAIT, self.ended, None)

    def _kill_orphan(self) -> None:
        # Nobody here may reap it, so without a pidfd its id could be another process by now.
        if self._pidfd >= 0 and not _readable(self._pidfd):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _report(self) -> None:
        if self._on_exit is not None:
            callback, self._on_exit = self._on_exit, None
            callback(self._returncode)


def _readable(fd: int) -> bool:
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
        self._early_exits: dict[int, int] = {}
        self._awaited: int | None = None
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
            pulse=True,
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
            self._awaited = token
            try:
                send_with_token(self._lane, token, [theirs.fileno(), write_end])
                pid = await self.child.call("fork", token, timeout=timeout)
                pidfd = -1
                if hasattr(os, "pidfd_open"):
                    (pidfd,) = receive_by_token(self._lane, token, 1)
            except BaseException as error:
                # A child that was forked all the same meets the end of its stream and ends.
                ours.close()
                os.close(read_end)
                if isinstance(error, (ChildDied, RemoteError, OSError)):
                    raise ChildStartError(f"cannot fork {name}: {error}") from error
                raise
            finally:
                self._awaited = None
                theirs.close()
                os.close(write_end)
            process = ForkedProcess(pid, pidfd)
            self._forks[token] = process
            if not self.child.alive:
                process.ended(None)
            elif token in self._early_exits:
                self._forks.pop(token).ended(self._early_exits.pop(token))
            return process, ours, read_end

    def _on_event(self, value: Any) -> None:
        ended = msgspec.convert(value, ForkExit)
        process = self._forks.pop(ended.token, None)
        if process is not None:
            process.ended(ended.returncode)
        elif ended.token == self._awaited:
            self._early_exits[ended.token] = ended.returncode

    def _on_died(self, _: object) -> None:
        self._lane.close()
        for process in self._forks.values():
            process.ended(None)
        self._forks.clear()
