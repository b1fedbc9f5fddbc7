"""A rate and a number of places that all processes of a machine share, by files.

Invariant: whoever holds anything holds it by a lock of the kernel, so that a process that is killed
lets go at once; what a file says is a time and never who owns it, and a damaged one says "now".
Who waits on whom: a place for whoever has it, a turn for those before; both end at a deadline.
"""

import fcntl
import hashlib
import math
import os
import random
import stat
import struct
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rollart.core.errors import ConfigError, RollartError

LOOK_S = 0.02
"""Seconds between two looks at a lock that another holds: the kernel wakes nobody at a deadline."""

LONGEST_S = 86400.0  # a turn further off than a day comes from a damaged file
_TIMES = struct.Struct("<dd")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Late(RollartError):
    """A turn or a place would come after the deadline."""


class Clock(Protocol):
    """Time as a blocking client sees it, in seconds; `monotonic` is one for the whole machine."""

    def monotonic(self) -> float: ...

    def wall(self) -> float:
        """Since 1970."""
        ...

    def sleep(self, seconds: float) -> None: ...


class MachineClock:
    """The machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What a file says: turns are free from `free_at` on, and none begins before `held_until`."""

    free_at: float = 0.0
    held_until: float = 0.0

    def sound(self, now: float) -> "Turns":
        """The same, or nothing where these are no times that anybody wrote."""
        later = (self.free_at - now, self.held_until - now)
        return self if all(math.isfinite(s) and s < LONGEST_S for s in later) else Turns()

    def next(self, now: float) -> float:
        """When the next turn begins."""
        return max(now, self.free_at, self.held_until)


class SharedRate:
    """Places and turns under one name.

    Args:
        name: what is shared; only a hash of it becomes part of a file's name.
        rate_per_s: turns that begin in a second, evenly spaced; None is as many as want to.
        places: held at once.
        folder: None is a private folder of this user among the machine's temporary files.
    """

    def __init__(
        self,
        name: str,
        *,
        rate_per_s: float | None,
        places: int,
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        # Monotonic time begins anew when a machine starts: times of before must not be read.
        boot = _BOOT.read_text() if _BOOT.is_file() else ""
        self._stem = hashlib.sha256(f"{boot}\0{name}".encode()).hexdigest()[:32]
        self._interval = 0.0 if rate_per_s is None else 1.0 / rate_per_s
        self._places = places
        self._clock = clock
        self._folder = private_folder() if folder is None else folder

    @contextmanager
    def place(self, until: float) -> Generator[None]:
        """Hold one of the places. Raises `Late` when none is free before `until`."""
        numbers = list(range(self._places))
        random.shuffle(numbers)  # so that those who look do not all look at the same
        with self._locked([f"place{number}" for number in numbers], until):
            yield

    def take_turn(self, until: float) -> None:
        """Wait for a turn. Raises `Late` at once, and takes none, where it begins after `until`."""
        waiting = True
        while waiting:
            with self._locked(["turns"], until) as descriptor:
                now, turns = self._turns(descriptor)
                begin = turns.next(now)
                if begin > until:
                    raise Late("the next turn comes after the deadline")
                _write(descriptor, replace(turns, free_at=begin + self._interval))
            if begin <= now:
                return
            self._clock.sleep(begin - now)
            with self._locked(["turns"], until) as descriptor:
                now, turns = self._turns(descriptor)
                waiting = turns.held_until > now  # so it was decided meanwhile

    def hold_off(self, seconds: float, until: float) -> None:
        """No turn begins, in any process, before `seconds` have passed. Raises `Late`."""
        with self._locked(["turns"], until) as descriptor:
            now, turns = self._turns(descriptor)
            held = max(turns.held_until, now + seconds)
            _write(descriptor, replace(turns, held_until=held))

    def _turns(self, descriptor: int) -> tuple[float, Turns]:
        """The time, and what a locked file says."""
        now = self._clock.monotonic()
        found = os.pread(descriptor, _TIMES.size, 0)
        if len(found) < _TIMES.size:
            return now, Turns()
        free_at, held_until = _TIMES.unpack(found)
        return now, Turns(free_at=free_at, held_until=held_until).sound(now)

    @contextmanager
    def _locked(self, names: list[str], until: float) -> Generator[int]:
        """A descriptor of the first of these files whose lock comes free.

        `flock` and not `lockf`: it belongs to what was opened, so it tells threads apart too.
        """
        descriptor = -1
        try:
            while descriptor < 0:
                descriptor = next((got for got in map(self._try, names) if got >= 0), -1)
                if descriptor < 0:
                    left = until - self._clock.monotonic()
                    if left <= 0:
                        raise Late("all places are taken")
                    self._clock.sleep(min(left, LOOK_S * (0.5 + random.random())))
            yield descriptor
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _try(self, name: str) -> int:
        """A locked descriptor, or -1 where another holds the lock."""
        file = self._folder / f"{self._stem}.{name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(file, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return -1
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def private_folder() -> Path:
    """This user's folder for shared rates, made if need be. Raises `ConfigError`."""
    folder = Path(tempfile.gettempdir()) / f"rollart-rates-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be made ({error.strerror}); set TMPDIR to a folder that can be "
            "written to"
        ) from error
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise ConfigError(
            f"{folder}: is not this user's alone, so that others could hold rewards up; remove it, "
            "or set TMPDIR to a folder of your own"
        )
    return folder


def _write(descriptor: int, turns: Turns) -> None:
    os.pwrite(descriptor, _TIMES.pack(turns.free_at, turns.held_until), 0)
