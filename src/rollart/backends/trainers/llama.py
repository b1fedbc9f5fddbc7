"""Decoders of Llama's shape (Llama, Mistral, Qwen2, Qwen3) as a differentiable function of tokens.

The short cut of the trainer: the numbers of the model's own `forward`, with fewer operations, on
sequences laid one after another; and in the last layer only what a wanted token's logits need.
Invariant: it holds no weights. Each call reads the modules' parameters, and gradients go to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone gives it
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollart.backends.trainers.fused import gated, normed, turned
from rollart.backends.trainers.ragged import (
    AttentionPlan,
    Heads,
    Ints,
    attend,
    plan_attention,
)

LLAMA_SHAPED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# Token counts are filled up to a multiple of this: a matrix product of a size not seen before
# costs milliseconds on a CPU in bfloat16, where its code is made for the size.
ROUND = 64

_PROBE_LENGTHS = np.array([7, 5], np.int64)


Turns = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What the layers of one pass share. `turns` are for keys, `query_turns` hold the scale too.

    `picked` are the tokens that go on beyond the keys and values; None for all.
    """

    plan: AttentionPlan
    turns: Turns
    query_turns: Turns
    picked: Tensor | None
    dtype: torch.dtype


class LlamaShaped:
    """`model`, which must be in evaluation mode; see `short_cut`."""

    def __init__(self, model: Any) -> None:
        self._body, self._layers = model.model, list(model.model.layers)
        attention, config = self._layers[0].self_attn, model.config
        self._scaling: float = attention.scaling
        self._dim: int = attention.head_dim
        self._heads = Heads(queries=config.num_attention_heads, keys=config.num_key_value_heads)

    def hidden(
        self, ids: Tensor, lengths: Ints, chosen: Ints, autocast: torch.dtype | None
    ) -> Tensor:
        """Normed last hidden states [n, hidden] of tokens `chosen` [n], ascending.

        Args:
            ids: [tokens], sequences of `lengths` one after another.
            autocast: dtype of the matrix products with weights; None for the weights' own.
        """
        tokens, wanted = len(ids), len(chosen)
        fill = -tokens % ROUND
        if fill:  # a sequence that nobody asks for
            ids, lengths = F.pad(ids, (0, fill)), np.append(lengths, fill)
        chosen = np.pad(chosen, (0, -wanted % ROUND), constant_values=len(ids) - 1)
        hidden: Tensor = self._body.embed_tokens(ids)
        turns = self._turns(hidden, lengths)
        # Rotation is linear, so the scale of the scores goes into the queries' turns.
        every = _Pass(
            plan=plan_attention(lengths, self._heads, like=hidden),
            turns=turns,
            query_turns=(turns[0] * self._scaling, turns[1] * self._scaling),
            picked=None,
            dtype=autocast or hidden.dtype,
        )
        picked = torch.from_numpy(chosen).to(ids.device)
        last = replace(
            every,
            plan=plan_attention(lengths, self._heads, like=hidden, asked=chosen),
            query_turns=tuple(turn.index_select(0, picked) for turn in every.query_turns),
            picked=picked,
        )
        for layer in self._layers[:-1]:
            hidden = self._layer(layer, hidden, every)
        hidden = self._layer(self._layers[-1], hidden, last)
        return _norm(self._body.norm, hidden, hidden.dtype)[:wanted]

    def _turns(self, hidden: Tensor, lengths: Ints) -> Turns:
        positions = np.concatenate([np.arange(length) for length in lengths])
        cos, sin = self._body.rotary_emb(
            hidden, torch.from_numpy(positions).to(hidden.device)[None]
        )
        return cos[0, :, None], sin[0, :, None]

    def _layer(self, layer: Any, hidden: Tensor, run: _Pass) -> Tensor:
        attention, mlp = layer.self_attn, layer.mlp
        before = _norm(layer.input_layernorm, hidden, run.dtype)
        if run.picked is None:
            shares = [self._heads.queries, self._heads.keys, self._heads.keys]
            together = _linear(before, attention.q_proj, attention.k_proj, attention.v_proj)
            query, key, value = together.unflatten(-1, (-1, self._dim)).split(shares, dim=1)
        else:
            together = _linear(before, attention.k_proj, attention.v_proj)
            key, value = together.unflatten(-1, (-1, self._dim)).chunk(2, dim=1)
            # Nobody reads what the other tokens would become.
            hidden, before = (t.index_select(0, run.picked) for t in (hidden, before))
            query = _linear(before, attention.q_proj).unflatten(-1, (-1, self._dim))
        query = _turn(getattr(attention, "q_norm", None), query, run.query_turns)
        key = _turn(getattr(attention, "k_norm", None), key, run.turns)
        mixed = attend(query, key, value.to(key.dtype), run.plan).flatten(1).to(run.dtype)
        hidden = hidden + _linear(mixed, attention.o_proj)
        after = _norm(layer.post_attention_layernorm, hidden, run.dtype)
        return hidden + _linear(gated(_linear(after, mlp.gate_proj, mlp.up_proj)), mlp.down_proj)


def short_cut(model: PreTrainedModel) -> LlamaShaped | None:
    """The short cut if `model` has the shape for it and gives the same numbers by it, else None.

    It is for a CPU, where element-wise work and unused queries cost most.
    """
    if type(model).__name__ not in LLAMA_SHAPED or not _plain(model):
        return None
    made = LlamaShaped(model)
    ids = torch.arange(int(_PROBE_LENGTHS.sum())) % model.config.vocab_size
    chosen = np.array([1, 4, 6, 9, 11], np.int64)
    with torch.no_grad():
        got = made.hidden(ids, _PROBE_LENGTHS, chosen, None)
        parts = ids.split(_PROBE_LENGTHS.tolist())
        body: Any = getattr(model, model.base_model_prefix)
        own = [body(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in parts]
    wanted = torch.cat(own)[torch.from_numpy(chosen)]
    return made if torch.allclose(got, wanted, rtol=1e-4, atol=1e-5) else None


def _plain(model: Any) -> bool:
    """Full attention, SwiGLU, ordinary linear layers, no dropout to come, on a CPU."""
    config, layers = model.config, model.model.layers
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "layer_types", None) is None and (
        getattr(config, "sliding_window", None) is not None
    )
    linear = [
        getattr(part, name)
        for layer in layers
        for part, names in (
            (layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")),
            (layer.mlp, ("gate_proj", "up_proj", "down_proj")),
        )
        for name in names
    ]
    return (
        kinds == {"full_attention"}
        and not windowed
        and config.hidden_act == "silu"
        and all(type(module) is nn.Linear for module in linear)
        and model.device.type == "cpu"
    )


def _linear(inputs: Tensor, *modules: nn.Linear) -> Tensor:
    """What the modules make of `inputs`, side by side, in the inputs' dtype."""
    weight = _joined([module.weight for module in modules], inputs.dtype)
    biases = [module.bias for module in modules if module.bias is not None]
    return F.linear(inputs, weight, _joined(biases, inputs.dtype) if biases else None)


def _joined(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    cast = [parameter.to(dtype) for parameter in parameters]
    return cast[0] if len(cast) == 1 else torch.cat(cast)


def _norm(module: Any, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return normed(hidden, module.weight, module.variance_epsilon, dtype)


def _turn(norm: Any, heads: Tensor, turns: Turns) -> Tensor:
    if norm is None:
        return turned(heads, None, 0.0, turns)
    return turned(heads, norm.weight, norm.variance_epsilon, turns)
