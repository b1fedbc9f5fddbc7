"""A forward pass of a Hugging Face causal language model whose keys and values lie in slots.

Any model runs through its own `forward`, with attention registered with transformers. Decoders of
Llama's shape (Llama, Mistral, Qwen2, Qwen3) take a short cut that computes the same numbers with
fewer operations, and the queries and MLP of the last layer for sampled tokens only.
Invariant: parameters keep their names and their identity, so weights are copied into them in place.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone gives it
from transformers import AttentionInterface, PreTrainedModel

from rollart.backends.engines.kv_slots import KVSlots
from rollart.backends.engines.ragged import Ints, Plan, attend, make_plan, write_kv

ATTENTION = "rollart_slots"
LLAMA_SHAPED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    slot_plan: Plan,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: [1, heads, n, head_dim] to [1, n, heads, head_dim]."""
    layer: int = module.layer_idx
    write_kv(slot_plan, layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    queries = query[0].transpose(0, 1).flatten(1) * scaling
    mixed = attend(slot_plan.kv, layer, slot_plan.all_rows, queries)
    return mixed.view(1, query.shape[2], query.shape[1], query.shape[3]), None


class RaggedModel:
    """Runs `model`, which it owns from here on, on rows of unequal length."""

    def __init__(self, model: PreTrainedModel, kv: KVSlots) -> None:
        self.model, self.kv = model.eval(), kv
        if type(model).__name__ in LLAMA_SHAPED and model.config.hidden_act == "silu":
            self._logits = _LlamaShaped(model)
        else:
            AttentionInterface.register(ATTENTION, slot_attention)
            model.set_attn_implementation(ATTENTION)
            self._logits = self._own_forward

    @torch.inference_mode()
    def run(self, slots: Ints, counts: Ints, sampled: npt.NDArray[np.bool_]) -> torch.Tensor:
        """Compute the next `counts` [rows] tokens of `slots` [rows] (all different, counts > 0).

        Returns the logits [k, vocabulary] at the last token of the k rows marked in `sampled`.
        """
        logits = self._logits(make_plan(self.kv, slots, counts, sampled))
        self.kv.cached[slots] += counts
        return logits

    def _own_forward(self, plan: Plan) -> torch.Tensor:
        return self.model(
            input_ids=plan.ids[None],
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=plan.sampled,
            slot_plan=plan,
        ).logits[0]


Linear = tuple[torch.Tensor, torch.Tensor | None]  # weight [out, in], bias [out]
Norm = tuple[torch.Tensor, float]  # weight, epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer's parameters at hand: for few tokens, finding them in modules costs like products."""

    before: Norm
    query: Linear
    key_value: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    out: Linear
    between: Norm
    gate_up: Linear
    down: Linear


class _LlamaShaped:
    """The short cut. Hidden states are [tokens, hidden]; only attention mixes tokens."""

    def __init__(self, model: Any) -> None:
        self.body, self.head = model.model, model.lm_head
        self.layers = [_layer(layer) for layer in self.body.layers]
        attention = self.body.layers[0].self_attn
        self.scaling: float = attention.scaling
        self.dim: int = attention.head_dim

    def __call__(self, plan: Plan) -> torch.Tensor:
        hidden = self.body.embed_tokens(plan.ids)
        cos, sin = (t[0, :, None] for t in self.body.rotary_emb(hidden, plan.positions[None]))
        # Rotation is linear, so the scale of the queries goes into theirs once for all layers.
        q_cos, q_sin = cos * self.scaling, sin * self.scaling
        for index, layer in enumerate(self.layers):
            batches, normed = plan.all_rows, _normed(layer.before, hidden)
            key, value = F.linear(normed, *layer.key_value).chunk(2, dim=-1)
            key = _turned(layer.key_norm, key.unflatten(-1, (-1, self.dim)), cos, sin)
            write_kv(plan, index, key, value.unflatten(-1, (-1, self.dim)))
            if index == len(self.layers) - 1 and not plan.whole:
                # Nobody reads what the tokens that are not sampled from would become.
                hidden, normed = hidden[plan.sampled], normed[plan.sampled]
                q_cos, q_sin = q_cos[plan.sampled], q_sin[plan.sampled]
                batches = plan.sampled_rows
            query = F.linear(normed, *layer.query).unflatten(-1, (-1, self.dim))
            query = _turned(layer.query_norm, query, q_cos, q_sin).flatten(1)
            hidden += F.linear(attend(plan.kv, index, batches, query), *layer.out)
            gate, up = F.linear(_normed(layer.between, hidden), *layer.gate_up).chunk(2, dim=-1)
            hidden += F.linear(F.silu(gate, inplace=True).mul_(up), *layer.down)
        return self.head(_normed(_norm(self.body.norm), hidden))


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        before=_norm(layer.input_layernorm),
        query=(attention.q_proj.weight, attention.q_proj.bias),
        key_value=_fused(attention.k_proj, attention.v_proj),
        query_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=(attention.o_proj.weight, attention.o_proj.bias),
        between=_norm(layer.post_attention_layernorm),
        gate_up=_fused(mlp.gate_proj, mlp.up_proj),
        down=(mlp.down_proj.weight, mlp.down_proj.bias),
    )


def _norm(module: Any) -> Norm:
    return module.weight, module.variance_epsilon


def _fused(first: Any, second: Any) -> Linear:
    """Two linear layers of one shape as one: their parameters become views of a common one."""

    def join(name: str) -> torch.Tensor | None:
        if getattr(first, name) is None:
            return None
        both = torch.cat([getattr(first, name).data, getattr(second, name).data])
        getattr(first, name).data, getattr(second, name).data = both.chunk(2)
        return both

    weight = join("weight")
    assert weight is not None
    return weight, join("bias")


def _normed(norm: Norm, hidden: torch.Tensor) -> torch.Tensor:
    """Root-mean-square normalisation (Zhang and Sennrich, 2019), over the last dimension."""
    weight, epsilon = norm
    size = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
    scale = size.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
    return (hidden * scale).to(hidden.dtype).mul_(weight)


def _turned(
    norm: Norm | None, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Heads [n, heads, head_dim], normed if the model does, with rotary positions (Su et al.)."""
    if norm is not None:
        heads = _normed(norm, heads)
    half = heads.shape[-1] // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return out
