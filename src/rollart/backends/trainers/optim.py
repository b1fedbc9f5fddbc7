"""The optimiser and its learning rate: pure of any trainer."""

import torch
from torch import nn

WARM_UP = 0.04
"""Share of a run over which the rate rises: Adam's first steps are as large as its rate, whatever
the gradient, and at the full rate they can destroy what the model could do before."""

FIRST_SHARE = 0.05
"""Share of the rate that the first step has."""


def learning_rate(first: float, final: float, *, progress: float) -> float:
    """The learning rate when the share `progress` of the run is over (0..1, else clamped).

    It rises over the first `WARM_UP` of the run and falls linearly from `first` to
    `first` * `final` over the whole. A batch has one rate, however many optimiser steps it is cut
    into.
    """
    over = min(max(progress, 0.0), 1.0)
    warm = FIRST_SHARE + (1.0 - FIRST_SHARE) * min(over / WARM_UP, 1.0)
    return first * warm * (1.0 - (1.0 - final) * over)


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
