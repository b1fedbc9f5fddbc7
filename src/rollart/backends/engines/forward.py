"""A forward pass of a Hugging Face causal language model whose keys and values lie in slots.

Any model runs through its own `forward`, with attention registered with transformers. Decoders of
Llama's shape (Llama, Mistral, Qwen2, Qwen3) take a short cut that computes the same numbers with
fewer operations, and the queries and MLP of the last layer for sampled tokens only.
Invariant: parameters keep their names and their identity, so weights are copied into them in place.
"""

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
        if type(model).__name__ in LLAMA_SHAPED:
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


class _LlamaShaped:
    """The short cut. Hidden states are [tokens, hidden]; only attention mixes tokens."""

    def __init__(self, model: Any) -> None:
        self.body, self.head = model.model, model.lm_head
        for layer in self.body.layers:
            layer.self_attn.kv = _fused(layer.self_attn.k_proj, layer.self_attn.v_proj)
            layer.mlp.gate_up = _fused(layer.mlp.gate_proj, layer.mlp.up_proj)

    def __call__(self, plan: Plan) -> torch.Tensor:
        hidden = self.body.embed_tokens(plan.ids)
        turn = self.body.rotary_emb(hidden, plan.positions[None])
        cos, sin = turn[0][0, :, None], turn[1][0, :, None]
        last = len(self.body.layers) - 1
        for index, layer in enumerate(self.body.layers):
            attention, batches = layer.self_attn, plan.all_rows
            normed = _normed(layer.input_layernorm, hidden)
            key, value = F.linear(normed, *attention.kv).chunk(2, dim=-1)
            key = _turned(attention, "k_norm", key, cos, sin)
            write_kv(plan, index, key, value.unflatten(-1, (-1, attention.head_dim)))
            if index == last and not plan.whole:  # nobody reads what other tokens would become
                hidden, normed = hidden[plan.sampled], normed[plan.sampled]
                cos, sin, batches = cos[plan.sampled], sin[plan.sampled], plan.sampled_rows
            query = _turned(attention, "q_norm", attention.q_proj(normed), cos, sin).flatten(1)
            mixed = attend(plan.kv, index, batches, query.mul_(attention.scaling))
            hidden = hidden + attention.o_proj(mixed)
            normed = _normed(layer.post_attention_layernorm, hidden)
            gate, up = F.linear(normed, *layer.mlp.gate_up).chunk(2, dim=-1)
            hidden = hidden.add_(layer.mlp.down_proj(layer.mlp.act_fn(gate).mul_(up)))
        return self.head(_normed(self.body.norm, hidden))


def _fused(first: Any, second: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Two linear layers as one: their parameters become views of a common weight and bias."""

    def join(name: str) -> torch.Tensor | None:
        if getattr(first, name) is None:
            return None
        both = torch.cat([getattr(first, name).data, getattr(second, name).data])
        half = len(both) // 2
        getattr(first, name).data, getattr(second, name).data = both[:half], both[half:]
        return both

    weight = join("weight")
    assert weight is not None
    return weight, join("bias")


def _normed(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Root-mean-square normalisation (Zhang and Sennrich, 2019), over the last dimension."""
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def _turned(
    attention: Any, norm: str, flat: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Heads [n, heads, head_dim] of `flat`, normed if the model does, with rotary positions."""
    heads = flat.unflatten(-1, (-1, attention.head_dim))
    if hasattr(attention, norm):
        heads = _normed(getattr(attention, norm), heads)
    half = attention.head_dim // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return out
