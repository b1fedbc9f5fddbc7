"""One call in a fork of its own: what it does to memory, modules and files it opened ends with it.

Invariant: `in_a_fork` gives what the work returned, or raises `CallCrashed`. After its block the
fork is gone, and so is whatever that started, also in a session of its own, where the system gives
it a process namespace; the answer need not wait for that. For processes of one thread, which must
not be where other threads hold locks.
"""

import ctypes
import os
import select
import signal
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn

_CLONE_NEWPID = 0x20000000
_PR_SET_PDEATHSIG = 1
_HAS_NAMESPACES = os.path.exists("/proc/self/ns/pid")
_LENGTH = struct.Struct("!Q")
_PATIENCE_S = 1.0  # for a fork that has answered


class CallCrashed(Exception):
    """The fork ended without an answer; the message says how."""


@contextmanager
def in_a_fork(work: Callable[[], bytes]) -> Generator[bytes]:
    """What `work` returns in a fork of this process; the fork ends with the block."""
    read, write = os.pipe()
    pid, first = _fork_into_namespace()
    if pid == 0:
        _answer(work, write, first=first)
    os.close(write)
    answer: bytes | None = None
    status = 0
    try:
        with open(read, "rb") as answers:
            head = answers.read(_LENGTH.size)
            if len(head) == _LENGTH.size:
                answer = answers.read(_LENGTH.unpack(head)[0])
        if answer is not None:
            yield answer
    finally:
        if answer is not None and not first:  # that one ends after all below it
            _await_end(pid, _PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        raise CallCrashed(f"the call's process ended with {how}")


def _fork_into_namespace() -> tuple[int, bool]:
    """As `os.fork`, and whether the fork is the first of a namespace: all in it end with that.

    One fork instead of two where this process has the rights to come back into its own namespace;
    where it has not, and would be stuck after one call, `_fork_as_first` takes the longer way.
    """
    libc = ctypes.CDLL(None)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if _HAS_NAMESPACES else -1
    try:
        # Going where one already is tells whether one could come back.
        first = own >= 0 and libc.setns(own, _CLONE_NEWPID) == 0 == libc.unshare(_CLONE_NEWPID)
        pid = os.fork()
        if first and pid:
            libc.setns(own, _CLONE_NEWPID)
        return pid, first
    finally:
        if own >= 0:
            os.close(own)


def _answer(work: Callable[[], bytes], write: int, *, first: bool) -> NoReturn:
    """Do the work; where this is not `first` in a namespace yet, in one more fork that is."""
    code = 1
    try:
        _end_with_parent()
        if first or not (inner := _fork_as_first()):
            _tell(work(), write)
            code = 0
        else:
            _, status = os.waitpid(inner, 0)
            code = os.waitstatus_to_exitcode(status)
    finally:
        if code < 0:  # as the inner one ended, so that its end is told
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def _fork_as_first() -> int:
    """The id of a fork that does the work, 0 in that one, and where there are no namespaces."""
    if not _HAS_NAMESPACES or ctypes.CDLL(None).unshare(_CLONE_NEWPID) != 0:
        return 0
    pid = os.fork()
    if pid == 0:
        _end_with_parent()
    return pid


def _await_end(pid: int, seconds: float) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(1000 * seconds)
    finally:
        os.close(pidfd)


def _tell(data: bytes, write: int) -> None:
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(write, left) :]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
