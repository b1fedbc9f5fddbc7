"""From a store's tensors to torch's: the reading half of a weight update.

Invariant: nothing is interpreted but the dtype's name, which is torch's own, so every dtype torch
has travels unchanged, bfloat16 and the 8-bit floats included.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rollart.core.ports import WeightTensor


def torch_tensor(weight: WeightTensor) -> Tensor:
    """The tensor in the store's own memory: valid as long as the buffer, no copy made.

    Raises:
        ValueError: the dtype is not torch's, or the bytes are not as many as the shape needs.
    """
    dtype = getattr(torch, weight.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{weight.name} has dtype {weight.dtype!r}, which torch does not know")
    flat = torch.from_numpy(weight.data)
    expected = torch.Size(weight.shape).numel() * dtype.itemsize
    if flat.numel() != expected:
        raise ValueError(
            f"{weight.name} has {flat.numel()} bytes; "
            f"{dtype} of shape {weight.shape} has {expected}"
        )
    return flat.view(dtype).view(weight.shape)


def torch_state(
    weights: Mapping[str, WeightTensor], *, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """All tensors by name, in the store's own memory; floating ones as `dtype` if it is given.

    `module.load_state_dict(torch_state(weights))` then writes every name exactly once or raises,
    and leaves tied tensors tied. A cast is a copy; what has `dtype` already is not copied.
    """
    state = {name: torch_tensor(weight) for name, weight in weights.items()}
    if dtype is None:
        return state
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
