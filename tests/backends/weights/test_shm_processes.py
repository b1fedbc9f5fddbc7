"""The shared-memory store between processes: slow readers, killed readers, killed writers."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor

TensorsOf = Callable[[int], list[WeightTensor]]
AnswerOf = Callable[[int], str]
ALPHA = 1

WRITER = """
import sys, numpy as np
from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor

def tensors():
    data = np.zeros(4096, np.uint8)
    yield WeightTensor(name="first", shape=(4096,), dtype="uint8", data=data)
    sys.stdout.write("half\\n"); sys.stdout.flush()
    sys.stdin.readline()

store = SharedMemoryWeightStore(sys.argv[1], "run-1")
store.publish(PolicyVersion("agent", 1), tensors())
"""


class Reader(Protocol):
    def tell(self, version: PolicyVersion, seconds: float) -> None: ...
    def answer(self) -> str: ...
    def kill(self) -> None: ...


class Readers(Protocol):
    def start(self) -> Reader: ...


def v(number: int) -> PolicyVersion:
    return PolicyVersion("agent", number)


def test_four_slow_readers_never_miss_a_version_while_old_ones_are_collected(
    store: SharedMemoryWeightStore, readers: Readers, tensors_of: TensorsOf, answer_of: AnswerOf
) -> None:
    delays = random.Random(0)
    four = [readers.start() for _ in range(4)]
    answers: list[str] = []
    most = 0
    for number in range(20):
        # Published while the readers are still at the version before, as training overlaps rollout.
        store.publish(v(number), tensors_of(number))
        store.collect(keep=ALPHA + 1)
        if number:
            answers += [reader.answer() for reader in four]
        for reader in four:
            reader.tell(v(number), delays.uniform(0.0, 0.06))
        assert [reader.answer() for reader in four] == ["pinned"] * 4
        most = max(most, len(store.versions()))
    answers += [reader.answer() for reader in four]
    assert answers == [answer_of(number) for number in range(20) for _ in four]
    assert most <= ALPHA + 2


def test_a_reader_in_another_process_holds_its_version_as_long_as_it_reads(
    store: SharedMemoryWeightStore, readers: Readers, tensors_of: TensorsOf, answer_of: AnswerOf
) -> None:
    store.publish(v(1), tensors_of(1))
    reader = readers.start()
    reader.tell(v(1), 0.3)
    assert reader.answer() == "pinned"
    for number in (2, 3, 4):
        store.publish(v(number), tensors_of(number))
        assert v(1) not in store.collect(keep=1)
    assert reader.answer() == answer_of(1)
    reader.tell(v(9), 0.0)
    assert reader.answer().startswith("WeightsMissing: weights agent@9")
    assert v(1) in store.collect(keep=1)
    assert store.versions() == (v(4),)


def test_a_reader_killed_while_it_reads_loses_its_pin(
    store: SharedMemoryWeightStore, readers: Readers, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    reader = readers.start()
    reader.tell(v(1), 60.0)
    assert reader.answer() == "pinned"
    store.publish(v(2), tensors_of(2))
    assert store.collect(keep=1) == ()
    reader.kill()
    assert store.collect(keep=1) == (v(1),)
    assert len(list(store.directory.glob("*.data"))) == 1


def test_what_a_writer_killed_half_way_left_is_invisible_and_cleared(
    store: SharedMemoryWeightStore, directory: Path, tensors_of: TensorsOf
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        store.collect(keep=1)
        assert len(list(store.directory.glob("*.data"))) == 1  # the writer lives
        assert store.versions() == ()
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    store.publish(v(1), tensors_of(1))
    assert len(list(store.directory.glob("*.data"))) == 1
    with store.read(v(1)) as tensors:
        assert "first" not in tensors
