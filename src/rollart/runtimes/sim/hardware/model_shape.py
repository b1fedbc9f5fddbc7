"""The shape of a model: how many bytes it weighs, what a token of context costs, what is active.

Invariant: parameters are counted from the shapes of a Hugging Face `config.json`, for models of the
catalogue as for any other; nothing is taken from a model's name.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rollart.core.config import largest_divisor
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.model_config import (
    BIASED,
    HEAD_NORMS,
    LINEAR,
    Keys,
    doubts_about,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer with grouped-query attention, dense or with experts.

    Attributes:
        parameters: all of them.
        active_parameters: those that one token passes through, embeddings included.
        layers: all of one kind; where dense layers stand among those with experts, experts are
            spread over all layers.
        experts: routed experts a layer; 0 in a dense model.
        experts_per_token: how many of them a token passes through.
        bytes_per_parameter: of the weights an engine holds and a trainer pushes, in the mean over
            all but routed experts.
        bytes_per_expert_parameter: of those in routed experts.
        bytes_per_kv: of one value in the KV cache.
        linear_layers: those of `layers` with linear attention, which keep no KV.
        doubts: what is not as it is modelled, in words.
    """

    name: str
    parameters: float
    active_parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    experts_per_token: int = 0
    bytes_per_parameter: float = 2.0
    bytes_per_expert_parameter: float = 2.0
    bytes_per_kv: float = 2.0
    linear_layers: int = 0
    doubts: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> float:
        routed = self.experts * self._expert_parameters
        other = (self.parameters - routed) * self.bytes_per_parameter
        return other + routed * self.bytes_per_expert_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers that keep them."""
        layers = self.layers - self.linear_layers
        return 2.0 * layers * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def expert_bytes(self) -> float:
        """One routed expert, in all layers; 0 in a dense model."""
        return self._expert_parameters * self.bytes_per_expert_parameter

    @property
    def _expert_parameters(self) -> float:
        idle = self.experts - self.experts_per_token
        return (self.parameters - self.active_parameters) / idle if idle > 0 else 0.0

    @property
    def attention_flops(self) -> float:
        """Operations of one token's attention to one token of context, forward."""
        return 4.0 * (self.layers - self.linear_layers) * self.heads * self.head_dim

    def read_bytes(self, tokens: float) -> float:
        """Weights that a forward pass over so many tokens reads from memory.

        With experts, those that at least one token chose: their expected number, if each token
        chooses its experts evenly and for itself, grows with the batch until all are read. Routing
        in real models is uneven, so somewhat fewer are touched.
        """
        if not self.expert_bytes:
            return self.weight_bytes
        missed = (1.0 - self.experts_per_token / self.experts) ** tokens
        routed = self.experts * self.expert_bytes
        return self.weight_bytes - routed * missed


def model_shape(name_or_path: str) -> ModelShape:
    """A model of the catalogue by name, or of a Hugging Face directory or `config.json`.

    Raises `ConfigError`: neither, or a config that says too little or another architecture.
    """
    catalogue = _catalogue()
    if name_or_path in catalogue:
        return shape_of(name_or_path, catalogue[name_or_path])
    path = Path(name_or_path)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"model {name_or_path!r} is neither in the catalogue ({', '.join(catalogue)}) nor a "
            "directory with a config.json; give one of these"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON ({error}); give a Hugging Face config") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds {type(config).__name__}; a config is a JSON object")
    return shape_of(file.resolve().parent.name, config)


def shape_of(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face config describes. Raises `ConfigError`."""
    keys = Keys(name, config)
    hidden, layers = keys.number("hidden_size"), keys.number("num_hidden_layers")
    heads, kv_heads, head_dim = _heads(keys, hidden)
    experts = keys.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    chosen = keys.number("num_experts_per_tok") if experts else 0
    if chosen > experts:
        raise ConfigError(
            f"model {name}: num_experts_per_tok = {chosen} of {experts} experts; "
            f"a token chooses at most {experts}"
        )
    embeddings = keys.number("vocab_size") * hidden * (1 if keys.tied else 2)
    attention = keys.attention(layers)
    linear = attention.count(LINEAR)
    mixing = (layers - linear) * _attention(keys, hidden, heads, kv_heads, head_dim)
    mixing += linear * _linear_attention(keys, hidden) if linear else 0
    sparse = keys.sparse(layers) if experts else 0
    dense = layers - sparse
    feeding = dense * 3 * hidden * _dense_width(keys) if dense else 0
    expert = _expert(keys, hidden) if experts else 0
    beside = hidden * experts + _shared_expert(keys, hidden) if experts else 0
    norms = (2 * layers + 1) * hidden
    common = embeddings + mixing + feeding + norms + sparse * beside
    bits, expert_bits = keys.bits()
    return ModelShape(
        name=name,
        parameters=float(common + sparse * experts * expert),
        active_parameters=float(common + sparse * chosen * expert),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        experts=experts,
        experts_per_token=chosen,
        bytes_per_parameter=(16.0 * embeddings + bits * (common - embeddings)) / common / 8,
        bytes_per_expert_parameter=expert_bits / 8,
        linear_layers=linear,
        doubts=tuple(f"model {name}: {words}" for words in doubts_about(keys, attention)),
    )


def published(name: str) -> tuple[float, float]:
    """(parameters, active parameters) that the card of a catalogue model gives."""
    row = _catalogue()[name]
    return row["published_b"] * 1e9, row.get("published_active_b", row["published_b"]) * 1e9


def catalogue_models() -> tuple[str, ...]:
    """Names in the catalogue."""
    return tuple(_catalogue())


def _heads(keys: Keys, hidden: int) -> tuple[int, int, int]:
    """Heads of queries, those of keys and values, and the width of each."""
    heads = keys.number("num_attention_heads")
    kv_heads = keys.number("num_key_value_heads", default=heads)
    if kv_heads > heads or heads % kv_heads:
        raise keys.wrong(
            "num_key_value_heads",
            f"{heads} attention heads cannot share so many evenly; use "
            f"{largest_divisor(heads, kv_heads)}",
        )
    if hidden < heads and not keys.number("head_dim", default=0):
        raise keys.wrong("num_attention_heads", f"more than hidden_size = {hidden}; say head_dim")
    return heads, kv_heads, keys.number("head_dim", default=hidden // heads)


def _attention(keys: Keys, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    queries, values = heads * head_dim, kv_heads * head_dim
    count = hidden * queries + 2 * hidden * values + queries * hidden
    if keys.kind == "qwen3_next":
        count += hidden * queries  # a gate for each output
    if keys.flag("attention_bias") or keys.kind in BIASED:
        count += queries + 2 * values
    if keys.kind in HEAD_NORMS:
        count += 2 * head_dim
    return count


def _linear_attention(keys: Keys, hidden: int) -> int:
    """A gated delta net: queries, keys, values, gate, two rates a head, a short convolution."""
    value_heads = keys.number("linear_num_value_heads")
    wide = keys.number("linear_num_key_heads") * keys.number("linear_key_head_dim")
    values = value_heads * keys.number("linear_value_head_dim")
    inward = hidden * (2 * wide + 2 * values + 2 * value_heads)
    convolution = (2 * wide + values) * keys.number("linear_conv_kernel_dim", default=4)
    return inward + convolution + values * hidden + 2 * value_heads


def _dense_width(keys: Keys) -> int:
    """Of the inner layer where there are no experts; Llama 4 has another beside them."""
    return keys.number("intermediate_size_mlp", "intermediate_size")


def _expert(keys: Keys, hidden: int) -> int:
    return 3 * hidden * keys.number("moe_intermediate_size", "intermediate_size")


def _shared_expert(keys: Keys, hidden: int) -> int:
    """Parameters of the experts that every token of a layer passes through."""
    width = keys.number("shared_expert_intermediate_size", default=0)
    gate = hidden if width else 0
    always = 1 if keys.kind in {"llama4", "llama4_text"} else 0
    count = keys.number("n_shared_experts", default=always)
    return 3 * hidden * width + gate + count * _expert(keys, hidden)


@cache
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    source = files("rollart.runtimes.sim").joinpath("catalogue", "models.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))
