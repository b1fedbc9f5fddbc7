"""Places and turns that several processes share, some of which are killed."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.errors import ConfigError
from rollart.core.scoring.shared_rate import (
    Late,
    MachineClock,
    SharedRate,
    Turns,
    private_folder,
)

CLOCK = MachineClock()

TURNS = """
import sys, time
from pathlib import Path
from rollart.core.scoring.shared_rate import MachineClock, SharedRate
clock = MachineClock()
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
shared = SharedRate(name, rate_per_s=4, places=1, clock=clock, folder=folder)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count):
    shared.take_turn(time.monotonic() + 60)
    print(time.monotonic(), flush=True)
"""

HOLD = """
import sys, time
from pathlib import Path
from rollart.core.scoring.shared_rate import MachineClock, SharedRate
shared = SharedRate("x", rate_per_s=None, places=1, clock=MachineClock(), folder=Path(sys.argv[1]))
with shared.place(time.monotonic() + 10):
    print("held", flush=True)
    time.sleep(60)
"""


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def shared_in(folder: Path, *, rate: float | None = None, places: int = 1) -> SharedRate:
    return SharedRate("x", rate_per_s=rate, places=places, clock=CLOCK, folder=folder)


@contextmanager
def started(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has said its first line; killed at the end if it still lives."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def seconds_of_two(folder: Path, names: tuple[str, str]) -> float:
    """How long two processes take for four turns each at 4 a second, from when both may begin."""
    with (
        started(TURNS, str(folder), names[0], "4") as one,
        started(TURNS, str(folder), names[1], "4") as two,
    ):
        began = time.monotonic()
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=60)[0].split() for process in (one, two)]
    assert [len(lines) for lines in said] == [4, 4]
    return max(float(line) for lines in said for line in lines) - began


def test_two_processes_together_keep_to_one_rate(tmp_path: Path) -> None:
    """8 turns at 4 a second take 7 intervals of a quarter second, however late one wakes up."""
    assert seconds_of_two(tmp_path, ("x", "x")) >= 7 / 4


def test_two_processes_that_share_no_name_keep_to_a_rate_each(tmp_path: Path) -> None:
    """The same measure, and it finds the rate exceeded: the test above can fail."""
    assert seconds_of_two(tmp_path, ("x", "y")) < 7 / 4


def test_a_place_is_free_at_once_when_its_holder_is_killed(tmp_path: Path) -> None:
    shared = shared_in(tmp_path)
    with started(HOLD, str(tmp_path)) as holder:
        with pytest.raises(Late), shared.place(soon(0.1)):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        with shared.place(soon()):
            assert time.monotonic() - began < 1.0


def test_no_more_threads_hold_places_than_there_are(tmp_path: Path) -> None:
    shared, guard = shared_in(tmp_path, places=2), threading.Lock()
    held: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with shared.place(soon()):
                with guard:
                    held.append(1)
                    most.append(len(held))
                time.sleep(0.005)
                with guard:
                    held.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (30, 2)


def test_a_turn_beyond_the_deadline_is_not_taken(tmp_path: Path) -> None:
    shared = shared_in(tmp_path, rate=0.01)
    shared.take_turn(soon(0.5))
    for _ in range(3):  # had one been taken, the next would be 100 s further off
        with pytest.raises(Late):
            shared.take_turn(soon(5))
    file = next(tmp_path.glob("*.turns"))
    assert len(file.read_bytes()) == 16


def test_whoever_waits_for_a_turn_waits_on_where_all_are_asked_to(tmp_path: Path) -> None:
    shared, times = shared_in(tmp_path, rate=5.0), list[float]()
    shared.take_turn(soon())

    def take() -> None:
        shared.take_turn(soon())
        times.append(time.monotonic())

    waiting = threading.Thread(target=take)
    waiting.start()
    time.sleep(0.05)
    asked = time.monotonic()
    shared.hold_off(0.6, soon())
    waiting.join()
    assert times[0] - asked >= 0.6


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 16, b"\x7f" * 40])
def test_a_damaged_file_says_now(tmp_path: Path, content: bytes) -> None:
    shared = shared_in(tmp_path, rate=1000.0)
    shared.take_turn(soon())
    next(tmp_path.glob("*.turns")).write_bytes(content)
    began = time.monotonic()
    shared.take_turn(soon(0.5))
    assert time.monotonic() - began < 0.4


@given(st.floats(0, 1e6), st.floats(), st.floats())
def test_a_turn_never_begins_before_now_nor_over_a_day_later(
    now: float, free_at: float, held_until: float
) -> None:
    begin = Turns(free_at=free_at, held_until=held_until).sound(now).next(now)
    assert math.isfinite(begin)
    assert now <= begin <= now + 86400


def test_the_folder_is_this_users_alone_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = private_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        private_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        private_folder()
