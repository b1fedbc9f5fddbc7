"""Bounds that a child puts on itself before it runs a user's function; for use in children only.

Invariant: a bound that the system refuses is told on stderr, which is the function's log, and does
not keep the function from running: who needs isolation from hostile code puts it in a container.
"""

import ctypes
import math
import os
import resource
import struct
import sys

MEBIBYTE = 1 << 20

# Landlock, by the numbers of the kernel's interface (linux/landlock.h); no C library wraps it.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITING = 0b1_1111_1111_0010  # write a file, remove and make files of every kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14

_CAPABILITIES = 0x20080522  # version 3 of the kernel's interface (linux/capability.h)

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def bound_memory(mebibytes: int | None) -> None:
    """No more address space than this on top of what is mapped now; beyond it, `MemoryError`."""
    if mebibytes is None:
        return
    most = _mapped() + mebibytes * MEBIBYTE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def bound_processor(seconds: float, *, for_good: bool = False) -> None:
    """One core for the next call: the process ends after these seconds of computing.

    By SIGXCPU; `for_good` by SIGKILL, and the bound cannot be raised again.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = most if hard < 0 else min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, soft if for_good else hard))


def leave_network() -> None:
    """From here on no network, not even loopback; what is already connected stays."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(flags) != 0:
        why = os.strerror(ctypes.get_errno()) if hasattr(libc, "unshare") else "no unshare here"
        _tell(f"keeps its network ({why})")


def give_up_rights() -> None:
    """From here on root may do what its own files allow, and neither it nor what it starts more.

    Else root sees into every process, secrets in environments included, past Landlock. What the
    system refuses later, such as another user's files, is refused.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    libc.capset(struct.pack("=Ii", _CAPABILITIES, 0), struct.pack("=6I", *(6 * [0])))


def write_only_to(folder: str, *, tells: bool = True) -> None:
    """From here on files are written, made and removed in this folder and in /dev only (Landlock).

    Reading is as before; what is open for writing stays so, such as the log. Of two folders only
    what is in both is left.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        why = os.strerror(ctypes.get_errno())
        if tells:
            _tell(f"may write files (no Landlock: {why})")
        return
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = libc.syscall(
        _CREATE_RULESET, struct.pack("Q", rights), ctypes.c_size_t(8), ctypes.c_uint(0)
    )
    for path in filter(None, (folder, "/dev")):
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, at)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, ctypes.c_uint(0))
        os.close(at)
    libc.prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    if libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint(0)) != 0:
        why = os.strerror(ctypes.get_errno())
        if tells:
            _tell(f"may write files ({why})")
    os.close(ruleset)


def _tell(what: str) -> None:
    """Into the function's log."""
    sys.stderr.write(f"rollart: this function {what}\n")


def _mapped() -> int:
    """Bytes of address space that are mapped now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
