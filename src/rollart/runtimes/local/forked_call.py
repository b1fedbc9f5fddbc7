"""One call in a fork of its own: what it does to memory, modules and files it opened ends with it.

Invariant: `in_a_fork` returns what the work returned, or raises `CallCrashed`. Its fork is gone,
and so is whatever that started, also in a session of its own, where the system gives it a process
namespace. For processes of one thread, which must not be where other threads hold locks.
"""

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from typing import NoReturn

_CLONE_NEWPID = 0x20000000
_PR_SET_PDEATHSIG = 1
_HAS_NAMESPACES = os.path.exists("/proc/self/ns/pid")
_LENGTH = struct.Struct("!Q")


class CallCrashed(Exception):
    """The fork ended without an answer; the message says how."""


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """What `work` returns in a fork of this process."""
    read, write = os.pipe()
    pid, first = _fork_into_namespace()
    if pid == 0:
        _answer(work, write, first=first)
    os.close(write)
    answer = None
    try:
        with open(read, "rb") as answers:
            head = answers.read(_LENGTH.size)
            answer = answers.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
    finally:
        if answer is None:  # nothing comes any more; else it ends now, after its namespace
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        raise CallCrashed(f"the call's process ended with {how}")
    return answer


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


def _tell(data: bytes, write: int) -> None:
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(write, left) :]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
