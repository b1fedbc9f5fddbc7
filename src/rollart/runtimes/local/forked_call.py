"""One call in a fork of its own: what it does to memory, modules and files it opened ends with it.

Invariant: `in_a_fork` returns what the work returned or raises `CallCrashed`; the fork is gone.
For processes of one thread, which must not be where other threads hold locks.
"""

import os
import signal
import struct
from collections.abc import Callable
from typing import NoReturn

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
    code = 1
    try:
        data = work()
        left = memoryview(_LENGTH.pack(len(data)) + data)
        while left:
            left = left[os.write(write, left) :]
        code = 0
    finally:
        os._exit(code)
