"""Ties between a child and its owner, and the means to end a child with all it started.

Invariant: a child never outlives its owner by more than a few seconds. Three ties hold it, each
enough by itself: the kernel's parent-death signal (also while the interpreter is stuck in C code),
the end of the stream on the channel, and the change of the parent's process id. The last two are
the portable ones; a daemon thread watches them (see `rollart.process.pulse`).

The parent-death signal is sent when the *thread* that started the child ends, so a loop that
spawns children must run in a thread that lives as long as they do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

RUN_ID_VARIABLE = "ROLLART_RUN_ID"
"""Environment variable that marks every process of one run; descendants inherit it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NAME_BYTES = 15  # the kernel keeps 15 bytes of a process's short name


def die_with_parent(enabled: bool = True) -> bool:
    """Ask the kernel to SIGKILL this process when its parent dies; False where it cannot.

    It does not survive a fork: each child has to ask for itself.
    """
    return _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if enabled else 0)


def set_process_name(name: str) -> bool:
    """Set the short name that `ps` and `top` show; False where the system has none."""
    return _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:_NAME_BYTES]))


def _prctl(option: int, value: int | ctypes.c_char_p) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    zero = ctypes.c_ulong(0)
    return ctypes.CDLL(None).prctl(ctypes.c_int(option), argument, zero, zero, zero) == 0


def owner_gone(owner_pid: int, channel_fd: int, wait: float) -> bool:
    """Wait up to `wait` seconds for the owner's end; True as soon as it is gone.

    Args:
        owner_pid: the parent's process id when this process started.
        channel_fd: a Unix stream socket whose other end only the owner holds.
    """
    poller = select.poll()
    poller.register(channel_fd, getattr(select, "POLLRDHUP", 0))  # hang-up is always reported
    return bool(poller.poll(wait * 1000.0)) or os.getppid() != owner_pid


def end_own_group() -> None:
    """SIGKILL this process, and its whole group if it leads one. Does not return."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL a child and its process group.

    Safe only while `pid` cannot have been reused: before the child was reaped.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # Not yet a group leader (it was forked a moment ago), or already gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProcess:
    """A process found by its run marker."""

    pid: int
    parent_pid: int
    name: str


def live_processes(run_id: str) -> tuple[LiveProcess, ...]:
    """Find the processes, other than this one, that carry the marker of a run.

    Reads ``/proc``, so it finds nothing on systems without it. A process that set the variable for
    itself after it started is not found; its children are. Zombies are not found.
    """
    marker = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found: list[LiveProcess] = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        # A process may end while it is looked at, or belong to another user.
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                name, parent_pid = _name_and_parent((folder / "stat").read_text())
                found.append(LiveProcess(pid=int(folder.name), parent_pid=parent_pid, name=name))
    return tuple(found)


def _name_and_parent(stat: str) -> tuple[str, int]:
    # "pid (name) state ppid ...": the name may itself hold spaces and parentheses.
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], int(tail.split()[1])
