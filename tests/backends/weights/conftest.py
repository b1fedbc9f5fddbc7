"""A store on a memory file system, tensors that tell their version, readers in processes."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor

RUN = "run-1"
_READER = Path(__file__).with_name("reader_child.py")


class Reader:
    """A reader process. `kill` is SIGKILL: nothing of it gets to clean up."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_READER), str(directory), RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def tell(self, version: PolicyVersion, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"read {version.policy} {version.number} {seconds}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(timeout=10)


class Readers:
    """Starts readers and ends those that are left."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack

    def start(self) -> Reader:
        reader = Reader(self._directory)
        self._stack.callback(reader.kill)
        return reader


@pytest.fixture
def directory() -> Iterator[Path]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="rollart-test-") as name:
        yield Path(name)


@pytest.fixture
def store(directory: Path) -> Iterator[SharedMemoryWeightStore]:
    store = SharedMemoryWeightStore(directory, RUN)
    yield store
    store.close()


@pytest.fixture
def readers(directory: Path) -> Iterator[Readers]:
    with ExitStack() as stack:
        yield Readers(directory, stack)


def _tensors(number: int) -> list[WeightTensor]:
    rng = np.random.default_rng(number)
    return [
        WeightTensor(
            name=f"layer.{place}",
            shape=(4096,),
            dtype="uint8",
            data=rng.integers(0, 256, 4096, dtype=np.uint8),
        )
        for place in range(4)
    ]


@pytest.fixture
def tensors_of() -> Callable[[int], list[WeightTensor]]:
    """Four tensors of 4 KiB whose bytes depend on the version's number."""
    return _tensors


@pytest.fixture
def answer_of() -> Callable[[int], str]:
    """What a reader process answers when it got exactly the bytes of that version."""
    return lambda number: (
        f"ok {sum(int(tensor.data.sum(dtype='int64')) for tensor in _tensors(number))}"
    )
