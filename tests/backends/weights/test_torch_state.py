"""Store to torch: dtypes, tied tensors, and what does not fit."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from rollart.backends.trainers.export import weight_tensors
from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.backends.weights.torch_state import torch_state, torch_tensor
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor

VERSION = PolicyVersion("agent", 3)


class Tied(torch.nn.Module):
    """Two names for one matrix, a bfloat16 scale, a buffer of integers, and an empty tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(7, 5)
        self.head = torch.nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.randn(3, 3).to(torch.bfloat16).t())
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("none", torch.zeros(0, 4))


def test_a_module_travels_whole_and_its_tied_tensors_stay_tied(
    store: SharedMemoryWeightStore,
) -> None:
    sender, receiver = Tied(1), Tied(2)
    store.publish(VERSION, weight_tensors(sender))
    with store.read(VERSION) as weights:
        receiver.load_state_dict(torch_state(weights))
    assert receiver.head.weight is receiver.embed.weight
    for name, tensor in sender.state_dict().items():
        got = receiver.state_dict()[name]
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor), name
    (data,) = store.directory.glob("*.data")
    assert data.stat().st_size < 2 * sender.embed.weight.nbytes  # the tied matrix is there once


def test_a_receiver_of_another_architecture_refuses_missing_and_unexpected_names(
    store: SharedMemoryWeightStore,
) -> None:
    store.publish(VERSION, weight_tensors(torch.nn.Linear(5, 7)))
    with (
        store.read(VERSION) as weights,
        pytest.raises(RuntimeError, match=r"(?s)Missing key.*Unexpected key"),
    ):
        Tied(1).load_state_dict(torch_state(weights))


def test_reading_copies_nothing_unless_the_dtype_changes(store: SharedMemoryWeightStore) -> None:
    store.publish(VERSION, weight_tensors(Tied(1)))
    with store.read(VERSION) as weights:
        same, cast = torch_state(weights), torch_state(weights, dtype=torch.bfloat16)
        address = weights["embed.weight"].data.ctypes.data
        assert same["embed.weight"].data_ptr() == address
        assert cast["embed.weight"].dtype == torch.bfloat16
        assert cast["scale"].data_ptr() == weights["scale"].data.ctypes.data
        assert cast["steps"].dtype == torch.int64


@pytest.mark.parametrize(
    ("dtype", "size", "message"),
    [("float99", 8, "torch does not know"), ("nn", 8, "does not know"), ("float32", 7, "7 bytes")],
)
def test_bytes_that_are_no_tensor_are_refused_by_name(dtype: str, size: int, message: str) -> None:
    weight = WeightTensor(name="w", shape=(2,), dtype=dtype, data=np.zeros(size, np.uint8))
    with pytest.raises(ValueError, match=f"w has .*{message}"):
        torch_tensor(weight)


def test_the_store_itself_loads_no_torch() -> None:
    script = (
        "import sys, rollart.backends.weights.shm as shm; "
        "sys.exit(f'{shm.__name__} loaded torch' if 'torch' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
