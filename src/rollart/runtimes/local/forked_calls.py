"""Calls in forks of their own: what one does to memory, modules and open files ends with it.

Owns the fork of the next call, made before that comes, so that a call does not wait for it.
Invariant: a fork answers one call, or `CallCrashed` is raised; then it is gone and so is whatever
it started, also in a session of its own, where the system gives it a process namespace. For
processes of one thread, which must not be where other threads hold locks.
"""

import ctypes
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from typing import BinaryIO, NoReturn

from rollart.process.owner import die_with_parent

_CLONE_NEWPID = 0x20000000
_HAS_NAMESPACES = os.path.exists("/proc/self/ns/pid")
_ASK, _ANSWER = struct.Struct("!dQ"), struct.Struct("!Q")  # seconds, and bytes that follow
_PATIENCE_S = 1.0  # for a fork that has answered

Work = Callable[[bytes, float], bytes]
"""Answers a request, which may take these seconds."""

Around = Callable[[int], None]
"""Done with a call's number, before it or after it."""


class CallCrashed(Exception):
    """The fork ended without an answer; the message says how, and `code` as in `Popen`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the call's process ended with {_how(code)}")
        self.code = code


def end_as(code: int) -> NoReturn:
    """End this process as another did, whose `code` is as in `Popen`."""
    try:
        if code < 0:
            with suppress(OSError, ValueError):  # of SIGKILL, which has no other way anyway
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    finally:
        os._exit(code & 0xFF)


class ForkedCalls:
    """Does `work` for one call after another, each in a fork of this process as it is now.

    Args:
        begin: done in a fork before its call comes.
        end: done in this process when a fork is gone.
    """

    def __init__(
        self, work: Work, *, begin: Around | None = None, end: Around | None = None
    ) -> None:
        self._work = work
        self._begin = begin
        self._end = end
        self._number = 0
        self._next: _Fork | None = None

    def prepare(self) -> None:
        """Make the fork of the next call, unless it is there."""
        if self._next is None:
            self._number += 1
            self._next = _forked(self._work, self._begin, self._number)

    @contextmanager
    def answer(self, body: bytes, seconds: float) -> Generator[bytes]:
        """What `work` says to this; its fork ends with the block, which need not wait for that.

        Raises:
            CallCrashed: instead of an answer.
        """
        self.prepare()
        assert self._next is not None
        fork, self._next = self._next, None
        answer: bytes | None = None
        try:
            with fork.asks, fork.answers:
                with suppress(BrokenPipeError):  # it has ended; its end says how
                    _write(fork.asks.fileno(), _ASK.pack(seconds, len(body)))
                    _write(fork.asks.fileno(), body)
                head = fork.answers.read(_ANSWER.size)
                if len(head) == _ANSWER.size:
                    answer = fork.answers.read(*_ANSWER.unpack(head))
            if answer is not None:
                yield answer
        finally:
            # One that is not first ends by itself, after all below it; it need not be trusted to.
            patience_s = _PATIENCE_S if answer is not None and not fork.first else 0.0
            status = _end(fork.pid, patience_s)
            if self._end is not None:
                self._end(fork.number)
        if answer is None:
            raise CallCrashed(os.waitstatus_to_exitcode(status))


@dataclass(frozen=True, slots=True)
class _Fork:
    """A fork that waits for its call; `first` in a namespace, whose end ends all in it."""

    number: int
    pid: int
    first: bool
    asks: FileIO
    answers: BinaryIO


def _forked(work: Work, begin: Around | None, number: int) -> _Fork:
    asked, asks = os.pipe()
    answers, answered = os.pipe()
    try:
        pid, first = _fork_into_namespace()
    except OSError:
        for pipe in (asked, asks, answers, answered):
            os.close(pipe)
        raise
    if pid == 0:
        os.close(asks)
        os.close(answers)

        def serve() -> None:
            if begin is not None:
                begin(number)
            _serve_one(work, asked, answered)

        _run(serve, first=first)
    os.close(asked)
    os.close(answered)
    return _Fork(number, pid, first, open(asks, "wb", buffering=0), open(answers, "rb"))


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


def _run(serve: Callable[[], None], *, first: bool) -> NoReturn:
    """Serve the one call; where this is not `first` in a namespace yet, in a fork that is."""
    code = 1
    try:
        die_with_parent()
        if first or not (inner := _fork_as_first()):
            serve()
            code = 0
        else:
            _, status = os.waitpid(inner, 0)
            code = os.waitstatus_to_exitcode(status)
    except BaseException:  # into the log; the owner is told the status
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        end_as(code)  # as the inner one, so that its end is told


def _fork_as_first() -> int:
    """The id of a fork that does the work, 0 in that one, and where there are no namespaces."""
    if not _HAS_NAMESPACES or ctypes.CDLL(None).unshare(_CLONE_NEWPID) != 0:
        return 0
    pid = os.fork()
    if pid == 0:
        die_with_parent()
    return pid


def _serve_one(work: Work, asked: int, answered: int) -> None:
    with open(asked, "rb") as requests:
        head = requests.read(_ASK.size)
        if len(head) < _ASK.size:  # no call came, and none will
            return
        seconds, size = _ASK.unpack(head)
        body = requests.read(size)
    data = work(body, seconds)
    _write(answered, _ANSWER.pack(len(data)) + data)


def _write(pipe: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(pipe, left) :]


def _end(pid: int, patience_s: float) -> int:
    """Kill a fork that has not ended in time; how it ended, as `os.waitpid` says."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
