"""Gradients by hand against finite differences, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rollart.backends.trainers.fused import gated, normed, turned
from rollart.backends.trainers.ragged import Heads, attend, plan_attention


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    return made.requires_grad_()


def turns(tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(tokens * dim // 2, dtype=torch.float64).view(tokens, 1, -1)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def check(function: Any, *inputs: Any) -> None:
    assert torch.autograd.gradcheck(function, inputs)


def test_a_norm_and_its_gradient_agree_with_the_formula() -> None:
    x, weight = numbers(5, 6), numbers(6)
    wanted = torch.nn.functional.rms_norm(x, (6,), weight, 1e-3)
    assert torch.allclose(normed(x, weight, 1e-3, torch.float64), wanted)
    check(lambda x, weight: normed(x, weight, 1e-3, torch.float64), x, weight)


@pytest.mark.parametrize("weighted", [True, False])
def test_turned_heads_and_their_gradient_agree_with_the_formula(weighted: bool) -> None:
    x, weight, (cos, sin) = numbers(3, 2, 4), numbers(4) if weighted else None, turns(3, 4)
    plain = x if weight is None else torch.nn.functional.rms_norm(x, (4,), weight, 1e-3)
    first, second = plain.chunk(2, -1)
    wanted = plain * cos + torch.cat([-second, first], -1) * sin
    assert torch.allclose(turned(x, weight, 1e-3, (cos, sin)), wanted)
    check(lambda x, weight: turned(x, weight, 1e-3, (cos, sin)), x, weight)


def test_a_gate_and_its_gradient_agree_with_the_formula() -> None:
    x = numbers(4, 6)
    assert torch.allclose(gated(x), torch.nn.functional.silu(x[:, :3]) * x[:, 3:])
    check(gated, x)


@pytest.mark.parametrize("asked", [None, [0, 3, 3, 7, 8, 8]])
def test_attention_of_sequences_and_its_gradient_agree_with_a_masked_product(
    asked: list[int] | None,
) -> None:
    lengths = np.array([3, 1, 5], np.int64)
    owner = torch.from_numpy(np.repeat(np.arange(3), lengths))
    chosen = torch.arange(9) if asked is None else torch.tensor(asked)
    query, key, value = numbers(len(chosen), 4, 2), numbers(9, 2, 2), numbers(9, 2, 2)
    plan = plan_attention(
        lengths, Heads(queries=4, keys=2), like=key, asked=None if asked is None else chosen.numpy()
    )
    allowed = (owner[chosen][:, None] == owner) & (chosen[:, None] >= torch.arange(9))
    wide_key, wide_value = (t.repeat_interleave(2, 1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, wide_key).masked_fill(~allowed, -torch.inf)
    wanted = torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide_value)
    assert torch.allclose(attend(query, key, value, plan), wanted)
    check(lambda q, k, v: attend(q, k, v, plan), query, key, value)
