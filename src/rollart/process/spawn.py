"""Starting a child as a fresh interpreter, and the hand-shake shared with forked children.

Invariant: whatever goes wrong or is cancelled in a start, no process and no descriptor stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollart.process.channel import PENDING_LIMIT, AsyncChannel
from rollart.process.child import REAP_LIMIT, Child, ProcessHandle
from rollart.process.errors import ChannelClosed, ChildStartError
from rollart.process.frames import FRAME_LIMIT
from rollart.process.messages import Start, ToOwner
from rollart.process.output import OutputTail
from rollart.process.owner import kill_group

BEAT_INTERVAL = 1.0
"""Seconds between two heartbeats, unless the timeout asks for more frequent ones."""

_REAP_RETRY = 0.01  # seconds between two looks where the system has no process descriptors


class SpawnedProcess:
    """A direct child of this process, watched through a pidfd where there is one."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._on_exit: Callable[[int | None], None] | None = None
        self._pidfd = -1

    @property
    def pid(self) -> int:
        return self._popen.pid

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        self._on_exit = on_exit
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self._popen.pid)
            self._loop.add_reader(self._pidfd, self._look)
        else:
            self._loop.call_later(_REAP_RETRY, self._look)

    def kill(self) -> None:
        if self._popen.returncode is None:  # not reaped, so the id is still ours
            kill_group(self._popen.pid)

    def _look(self) -> None:
        if self._pidfd >= 0:
            kill_group(self._popen.pid)  # what the ended child left behind in its group
        if self._popen.poll() is None:
            if self._pidfd < 0:
                self._loop.call_later(_REAP_RETRY, self._look)
            return
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._on_exit is not None:
            callback, self._on_exit = self._on_exit, None
            callback(self._popen.returncode)


async def spawn(
    entry: str,
    config: Any,
    *,
    name: str,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = True,
    python_path: Sequence[str] = (),
    start_timeout: float = 60.0,
    heartbeat_timeout: float = 10.0,
    on_event: Callable[[Any], None] | None = None,
    log_file: Path | None = None,
    frame_limit: int = FRAME_LIMIT,
    pending_limit: int = PENDING_LIMIT,
    pass_fds: Sequence[int] = (),
    pulse: bool = True,
) -> Child:
    """Start ``module:function`` in a new interpreter and wait until it is ready.

    The function is called as ``function(port, config)`` with a `ChildPort`. The child leads its own
    session and process group, ignores SIGINT, ends on SIGTERM, and dies with this process.

    Args:
        entry: ``"module:function"``, importable in the child.
        config: anything msgpack can express, dataclasses included (they arrive as maps).
        name: shown in messages and process lists.
        env: variables put over the inherited ones.
        inherit_env: False starts the child with `env` alone.
        python_path: put in front of the child's ``sys.path``; the working directory is not on it.
        start_timeout: seconds until it must have called ``port.ready()``.
        heartbeat_timeout: seconds of silence after which it is killed. An interpreter whose main
            thread is busy still beats; one that is stopped, or holds its lock in C code, does not.
        on_event: takes the child's unsolicited messages; None drops them.
        log_file: the child's stdout and stderr are appended to it.
        frame_limit: largest message in bytes, both ways.
        pending_limit: bytes that may wait for a child that does not read.
        pass_fds: further descriptors the child inherits.
        pulse: False for a child that must stay single-threaded and beats by itself.

    Raises:
        ChildStartError: it ended, or was not ready in time; with the end of its output.
    """
    variables = {**os.environ, **(env or {})} if inherit_env else dict(env or {})
    popen, sock, output_fd = _start_interpreter(name, variables, pass_fds)
    start = Start(
        entry=entry,
        config=config,
        name=name,
        python_path=[str(folder) for folder in python_path],
        env={},
        beat_interval=beat_interval(heartbeat_timeout),
        frame_limit=frame_limit,
        pulse=pulse,
    )
    return await introduce(
        SpawnedProcess(popen),
        sock,
        output_fd,
        start,
        start_timeout=start_timeout,
        heartbeat_timeout=heartbeat_timeout,
        on_event=on_event,
        log_file=log_file,
        pending_limit=pending_limit,
    )


def _start_interpreter(
    name: str, variables: Mapping[str, str], pass_fds: Sequence[int]
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Return the process, our end of its channel, and the reading end of its output."""
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    try:
        popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollart.process.main", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=variables,
            start_new_session=True,
            pass_fds=(theirs.fileno(), *pass_fds),
        )
    except BaseException as error:
        ours.close()
        os.close(read_end)
        if isinstance(error, OSError):
            raise ChildStartError(f"cannot start {name}: {error}") from error
        raise
    finally:
        theirs.close()
        os.close(write_end)
    return popen, ours, read_end


def beat_interval(heartbeat_timeout: float) -> float:
    """Seconds between beats: at least four fit into the timeout."""
    return min(BEAT_INTERVAL, heartbeat_timeout / 4.0)


async def introduce(
    process: ProcessHandle,
    sock: socket.socket,
    output_fd: int,
    start: Start,
    *,
    start_timeout: float,
    heartbeat_timeout: float,
    on_event: Callable[[Any], None] | None,
    log_file: Path | None,
    pending_limit: int,
) -> Child:
    """Make a `Child` of a process that has just been started, and wait until it is ready.

    Takes over the socket and the pipe, and on failure ends the process.
    """
    try:
        output = OutputTail(output_fd, log_file)
    except BaseException:
        sock.close()
        process.watch(lambda _: None)
        process.kill()
        raise
    child = Child(
        name=start.name,
        process=process,
        output=output,
        heartbeat_timeout=heartbeat_timeout,
        on_event=on_event,
    )
    try:
        try:
            channel = await AsyncChannel.open(
                sock,
                child.handle,
                message_type=ToOwner,
                frame_limit=start.frame_limit,
                pending_limit=pending_limit,
            )
        except BaseException:
            sock.close()
            child.attach(None)
            raise
        child.attach(channel)
        with contextlib.suppress(ChannelClosed):  # it has ended already: see below
            channel.send(start)
        await asyncio.wait((child.ready,), timeout=start_timeout)
        if not child.ready.done() or child.ready.cancelled():
            raise ChildStartError(await _why_not_ready(child, start_timeout))
    except BaseException:
        child.kill()
        await asyncio.wait((child.died,), timeout=REAP_LIMIT)
        raise
    return child


async def _why_not_ready(child: Child, start_timeout: float) -> str:
    if child.alive:
        child.kill()
        await asyncio.wait((child.died,), timeout=REAP_LIMIT)
        return (
            f"{child.name} was not ready within {start_timeout:g} s; "
            f"allow it more time or see its output\n{child.output}"
        ).rstrip()
    return f"{child.name} did not start: {child.died.result()}"
