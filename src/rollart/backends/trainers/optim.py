"""The optimiser and its learning rate: pure of any trainer."""

import torch
from torch import nn


def learning_rate(first: float, final: float, *, progress: float) -> float:
    """The learning rate when the share `progress` of the run is over (0..1, else clamped).

    Linear from `first` to `first` * `final`. A batch has one rate, however many optimiser steps it
    is cut into.
    """
    return first * (1.0 - (1.0 - final) * min(max(progress, 0.0), 1.0))


def adamw(module: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) on all trainable parameters.

    Decay pulls on matrices only: on a norm's scale or a bias it would change the function without
    bounding anything. The rate is set before each step.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=0.0,
    )
