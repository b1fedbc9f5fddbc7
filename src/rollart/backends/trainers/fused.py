"""Pieces of a decoder layer with their gradients by hand: fewer passes over memory than autograd's.

Invariant: each computes what its formula says in the dtype of its input, and its gradient is that
formula's, up to rounding; nothing is approximated. A small model spends most of its time in such
element-wise work, not in matrix products.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone gives it
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class _Normed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        unit, scale = _unit(x, epsilon)
        ctx.save_for_backward(unit, scale, weight)
        return (unit * weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        unit, scale, weight = ctx.saved_tensors
        return *_unit_backward(gradient.to(unit.dtype), unit, scale, weight), None, None


class _Turned(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, epsilon: float, turns: tuple[Tensor, Tensor]
    ) -> Tensor:
        cos, sin = turns
        heads = x.to(cos.dtype)
        if weight is None:
            ctx.save_for_backward(cos, sin)
        else:
            unit, scale = _unit(heads, epsilon)
            ctx.save_for_backward(cos, sin, unit, scale, weight)
            heads = unit * weight
        return _rotate(heads, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        cos, sin, *normed = ctx.saved_tensors
        # The transpose of a rotation turns the other way.
        d_x, d_weight = _rotate(gradient, cos, sin, -1.0), None
        if normed:
            d_x, d_weight = _unit_backward(d_x, *normed)
        return d_x, d_weight, None, None


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, dim=-1)
        torch.mul(gradient, opened, out=d_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=d_gate)
        return out


def normed(x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square normalisation (Zhang and Sennrich, 2019) of [n, d], as `dtype`."""
    return _Normed.apply(x, weight, epsilon, dtype)  # pyright: ignore[reportReturnType]


def turned(
    x: Tensor, weight: Tensor | None, epsilon: float, turns: tuple[Tensor, Tensor]
) -> Tensor:
    """Heads [n, heads, d], normed if there is a weight [d], with rotary positions (Su et al.).

    `turns` are cosine and sine [n, 1, d], the same in both halves of d; the result has their dtype.
    """
    return _Turned.apply(x, weight, epsilon, turns)  # pyright: ignore[reportReturnType]


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [n, 2 * d], the gate being the first half (SwiGLU, arXiv 2002.05202)."""
    return _Gated.apply(gate_up)  # pyright: ignore[reportReturnType]


def _unit(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = size.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return x * scale, scale


def _unit_backward(
    gradient: Tensor, unit: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight, from that of weight * x * scale(x)."""
    product = (gradient * unit).view(-1, weight.shape[0])
    along = (product @ weight).div_(weight.shape[0]).view(scale.shape)
    d_x = (gradient * weight).addcmul_(unit, along, value=-1.0).mul_(scale)
    return d_x, product.sum(0)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    half = heads.shape[-1] // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], sin[..., half:], value=-direction)
    out[..., half:].addcmul_(heads[..., :half], sin[..., :half], value=direction)
    return out
