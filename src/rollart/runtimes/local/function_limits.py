"""Bounds that a child puts on itself before it runs a user's function; for use in children only.

Invariant: a bound that the system refuses is told on stderr, which is the function's log, and does
not keep the function from running: who needs isolation from hostile code puts it in a container.
"""

import ctypes
import math
import os
import resource
import sys

MEBIBYTE = 1 << 20
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def bound_memory(mebibytes: int | None) -> None:
    """No more address space than this on top of what is mapped now; beyond it, `MemoryError`."""
    if mebibytes is None:
        return
    most = _mapped() + mebibytes * MEBIBYTE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def bound_processor(seconds: float) -> None:
    """One core for the next call: the process ends (SIGXCPU) after these seconds of computing."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def leave_network() -> None:
    """From here on no network, not even loopback; what is already connected stays."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(flags) != 0:
        why = os.strerror(ctypes.get_errno()) if hasattr(libc, "unshare") else "no unshare here"
        print(f"rollart: this function keeps its network ({why})", file=sys.stderr)  # noqa: T201


def _mapped() -> int:
    """Bytes of address space that are mapped now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
