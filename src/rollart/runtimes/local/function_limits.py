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
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_SCOPED = 0b11  # neither abstract sockets nor signals reach who is not below

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))

SHARED_MEMORY = "/dev/shm"
SHARED_MIB = 64
"""Of a function's own shared memory, which semaphores of `multiprocessing` lie in."""

_CAPABILITIES = 0x20080522  # version 3 of the kernel's interface (linux/capability.h)

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18


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


def leave_system() -> bool:
    """From here on no network, not even loopback, and shared memory that nobody else sees.

    What is already connected stays. True where shared memory is its own. It must have one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        _tell("keeps its network (no unshare here)")
        return False
    user, group = os.geteuid(), os.getegid()
    wanted = _CLONE_NEWNET | _CLONE_NEWNS
    if (user != 0 or libc.unshare(wanted) != 0) and libc.unshare(_CLONE_NEWUSER | wanted) != 0:
        _tell(f"keeps its network ({os.strerror(ctypes.get_errno())})")
        return False
    if os.geteuid() != user:  # in a user namespace, where it is nobody yet
        _map_ids(user, group)
    own = ctypes.c_ulong(_MS_REC | _MS_PRIVATE)
    safe = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    room = f"size={SHARED_MIB}m,mode=1777".encode()
    shared = SHARED_MEMORY.encode()
    return (
        libc.mount(b"none", b"/", None, own, None) == 0
        and libc.mount(b"tmpfs", shared, b"tmpfs", safe, room) == 0
    )


def _map_ids(user: int, group: int) -> None:
    """In a new user namespace, be who one was."""
    try:
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{file}", "w", encoding="ascii") as settings:
                settings.write(text)
    except OSError as error:
        _tell(f"is nobody to the system ({error})")


def give_up_rights() -> None:
    """From here on root may do what its own files allow, and neither it nor what it starts more.

    Else root sees into every process, secrets in environments included, past Landlock. What the
    system refuses later, such as another user's files, is refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.prctl(_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0
        or libc.capset(struct.pack("=Ii", _CAPABILITIES, 0), struct.pack("=6I", *(6 * [0]))) != 0
    ):
        _tell(f"keeps its rights ({os.strerror(ctypes.get_errno())})")


def write_only_to(*folders: str, tells: bool = True) -> None:
    """From here on files are written, made and removed in these folders only (Landlock).

    And in devices such as /dev/null. Reading is as before; what is open for writing stays so, such
    as the log. Called again, only what is in both is left. Signals reach who is below only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        why = os.strerror(ctypes.get_errno())
        if tells:
            _tell(f"may write files (no Landlock: {why})")
        return
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = (
        struct.pack("=3Q", rights, 0, _SCOPED) if version >= 6 else struct.pack("=Q", rights)
    )
    ruleset = libc.syscall(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)
    )
    for path in (*folders, *filter(os.path.exists, _DEVICES)):
        of_files = rights & (_WRITE_FILE | _TRUNCATE)
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights if os.path.isdir(path) else of_files, at)
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
