"""Inside the fork server: a single-threaded loop that forks, reaps and reports.

Invariants: one thread until and at every fork (a forked lock would stay locked); a child is
reported only after its whole group was killed and it was reaped; when the owner is gone, every
child's group is killed before the server ends. It waits only in `poll`, for requests, for ended
children, or for the next heartbeat.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from rollart.process.bootstrap import run_child
from rollart.process.errors import ChannelClosed, ProcessError
from rollart.process.owner import die_with_parent, kill_group
from rollart.process.serve import ChildPort

ENTRY = "rollart.process.forking:entry"
_TOKEN_BYTES = 8
_REAP_LIMIT = 2.0  # seconds to wait for killed children at the end
_CHILD_FDS = 2  # its socket and its output pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkConfig:
    """What a fork server is given.

    Attributes:
        preload: modules imported before the first fork.
        lane: number of the inherited socket over which descriptors travel.
        beat_interval: seconds between heartbeats.
    """

    preload: tuple[str, ...]
    lane: int
    beat_interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkExit:
    """A forked child ended and was reaped: its token, and its return code as subprocess has it."""

    token: int
    returncode: int


def send_with_token(lane: socket.socket, token: int, fds: list[int]) -> None:
    """Send descriptors, named by the token of the fork that they belong to."""
    socket.send_fds(lane, [token.to_bytes(_TOKEN_BYTES, "big")], fds)


def receive_by_token(lane: socket.socket, token: int, count: int) -> list[int]:
    """Receive the descriptors of this token; those of abandoned earlier forks are closed.

    They must already be in the socket: the peer sends them before the message that names them.
    """
    while True:
        data, fds, _, _ = socket.recv_fds(
            lane, _TOKEN_BYTES, count, socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        if not data:
            raise ProcessError("the peer closed the lane for descriptors")
        if int.from_bytes(data, "big") == token and len(fds) == count:
            return list(fds)
        for fd in fds:
            os.close(fd)


def entry(port: ChildPort, config: Any) -> None:
    """Run the fork server."""
    _ForkLoop(port, msgspec.convert(config, ForkConfig)).run()


class _ForkLoop:
    def __init__(self, port: ChildPort, config: ForkConfig) -> None:
        self._port = port
        self._config = config
        self._lane = socket.socket(fileno=config.lane)
        self._lane.set_inheritable(False)
        self._tokens: dict[int, int] = {}  # pid -> token of the children not yet reaped
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> None:
        for module in self._config.preload:
            importlib.import_module(module)
        _require_forkable(self._config.preload)
        gc.collect()
        gc.freeze()  # keeps the collector from writing to, and so copying, the shared pages
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # From here on the end of the stream ends us, after our children's groups; the kernel's
        # signal would leave no time for that.
        die_with_parent(False)
        self._port.ready()
        try:
            self._loop()
        finally:
            self._end_all()

    def _loop(self) -> None:
        poller = select.poll()
        poller.register(self._port.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while not self._port.stopping:
            poller.poll(self._config.beat_interval * 1000.0)
            self._port.beat()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            for request in self._port.poll():
                try:
                    self._port.reply(request.id, self._fork(*request.args))
                except (OSError, ProcessError) as error:  # no memory, no free process id
                    if request.id is None or isinstance(error, ChannelClosed):
                        raise
                    self._port.reply_error(request.id, error)
            self._reap()

    def _fork(self, token: int) -> int:
        sock_fd, output_fd = receive_by_token(self._lane, token, _CHILD_FDS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(sock_fd, output_fd)
        finally:
            os.close(sock_fd)
            os.close(output_fd)
        self._tokens[pid] = token
        if hasattr(os, "pidfd_open"):
            pidfd = os.pidfd_open(pid)  # before any reaping, so it cannot be another process
            send_with_token(self._lane, token, [pidfd])
            os.close(pidfd)
        return pid

    def _reap(self) -> None:
        while self._tokens:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            kill_group(ended.si_pid)  # what it left behind; the id is ours until it is reaped
            _, status = os.waitpid(ended.si_pid, 0)
            token = self._tokens.pop(ended.si_pid, None)
            if token is not None:
                returncode = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(ChannelClosed):  # a dead owner wants no report
                    self._port.event(ForkExit(token=token, returncode=returncode))

    def _end_all(self) -> None:
        """Kill and reap every child; what hangs in the kernel is left to the system."""
        for pid in self._tokens:
            kill_group(pid)
        deadline = time.monotonic() + _REAP_LIMIT
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        while self._tokens and time.monotonic() < deadline:
            self._reap()
            poller.poll(10.0)

    def _become_child(self, sock_fd: int, output_fd: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            for fd in (output_fd, self._port.fileno(), self._wake_read, self._wake_write):
                os.close(fd)
            self._lane.close()
            run_child(socket.socket(fileno=sock_fd))
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _require_forkable(preload: tuple[str, ...]) -> None:
    """Refuse to fork what cannot be forked safely.

    Raises:
        ProcessError: more than one thread runs, or torch was loaded.
    """
    names = ", ".join(preload) or "nothing"
    if "torch" in sys.modules:
        raise ProcessError(
            f"preloading {names} loads torch, whose threads and device contexts do not survive a "
            "fork; leave that module to the child, or spawn the child instead"
        )
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.is_dir() else 1
    if threads > 1:
        raise ProcessError(
            f"preloading {names} started {threads - 1} thread(s), which a fork would lose; set "
            "OPENBLAS_NUM_THREADS=1 and the like, or leave that module to the child"
        )
