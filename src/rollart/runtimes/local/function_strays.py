"""Processes that a function leaves behind: no kill of a group finds one in a session of its own.

Invariant: whoever adopts is the parent of every process below it whose own parent has ended, so
`end_strays` finds them all. Adopted ones that ended are zombies until then.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_strays() -> None:
    """From here on orphans below this process are its children. Linux only; elsewhere nothing."""
    _adopt(True)


def end_strays(spared: frozenset[int] = frozenset()) -> None:
    """Kill and reap whatever is below this process; for when all of its own children have ended.

    Children in `spared` stay, with what is below them.
    """
    while left := _children() - spared:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:  # their children are ours from then on
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextmanager
def no_strays() -> Iterator[None]:
    """What is begun within ends with it; children from before stay. No other thread begins any."""
    before = _children()
    _adopt(True)
    try:
        yield
    finally:
        end_strays(before)
        _adopt(False)


def _adopt(do: bool) -> None:
    if sys.platform.startswith("linux"):
        given, zero = ctypes.c_ulong(do), ctypes.c_ulong(0)
        ctypes.CDLL(None).prctl(ctypes.c_int(_PR_SET_CHILD_SUBREAPER), given, zero, zero, zero)


def _children() -> frozenset[int]:
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that just ended
            found += map(int, file.read_text().split())
    return frozenset(found)
