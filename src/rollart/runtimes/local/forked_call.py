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
_LENGTH = struct.Struct("!Q")


class CallCrashed(Exception):
    """The fork ended without an answer; the message says how."""


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """What `work` returns in a fork of this process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(work, write)
    os.close(write)
    try:
        with open(read, "rb") as answers:
            head = answers.read(_LENGTH.size)
            answer = answers.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
    finally:
        os.kill(pid, signal.SIGKILL)  # it has said what it had to say, or nothing comes any more
        _, status = os.waitpid(pid, 0)
    if answer is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        raise CallCrashed(f"the call's process ended with {how}")
    return answer


def _answer(work: Callable[[], bytes], write: int) -> NoReturn:
    """Do the work as the first process of a namespace, whose end ends all others in it."""
    code = 1
    try:
        _end_with_parent()
        if ctypes.CDLL(None).unshare(_CLONE_NEWPID) == 0 and (first := os.fork()):
            _, status = os.waitpid(first, 0)
            code = os.waitstatus_to_exitcode(status)
        else:
            _end_with_parent()
            _tell(work(), write)
            code = 0
    finally:
        if code < 0:  # as the first process ended, so that its end is told
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def _tell(data: bytes, write: int) -> None:
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(write, left) :]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
