"""From a module's state to the tensors a weight store takes: the writing half of a weight update.

Invariant: every name of the module's state comes exactly once, tied names included, so a receiver
can insist on its whole state; bytes are torch's own layout, whatever the dtype.
"""

from collections.abc import Iterator

import torch
from torch import nn

from rollart.core.ports import WeightTensor


def weight_tensors(module: nn.Module) -> Iterator[WeightTensor]:
    """All parameters and saved buffers of `module`, one at a time.

    A tensor in contiguous host memory is not copied: use each before the module changes again.
    `named_parameters` would leave out the second name of a tied tensor; the state has it.
    """
    for name, tensor in module.state_dict().items():
        host = tensor.detach().cpu().contiguous()
        yield WeightTensor(
            name=name,
            shape=tuple(host.shape),
            dtype=str(host.dtype).removeprefix("torch."),
            data=host.view(-1).view(torch.uint8).numpy(),
        )
