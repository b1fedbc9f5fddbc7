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

from rollart.core.errors import ConfigError

_BIASED = ("qwen2", "qwen2_moe")  # biases on query, key and value that no key of the config tells
_HEAD_NORMS = ("qwen3", "qwen3_moe")  # norms of queries and keys, likewise


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
        bytes_per_parameter: of the weights an engine holds and a trainer pushes.
        bytes_per_kv: of one value in the KV cache.
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
    bytes_per_kv: float = 2.0

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def expert_bytes(self) -> float:
        """One routed expert, in all layers; 0 in a dense model."""
        idle = self.experts - self.experts_per_token
        if idle <= 0:
            return 0.0
        return (self.parameters - self.active_parameters) / idle * self.bytes_per_parameter

    @property
    def attention_flops(self) -> float:
        """Operations of one token's attention to one token of context, forward."""
        return 4.0 * self.layers * self.heads * self.head_dim

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
    text = config.get("text_config", config)  # models that also see keep the language part there
    if text.get("kv_lora_rank"):
        raise ConfigError(
            f"model {name}: kv_lora_rank = {text['kv_lora_rank']}: latent attention is not "
            "modelled; use a model with grouped-query attention"
        )
    keys = _Keys(name, text)
    hidden, layers = keys.number("hidden_size"), keys.number("num_hidden_layers")
    heads = keys.number("num_attention_heads")
    kv_heads = keys.number("num_key_value_heads", default=heads)
    head_dim = keys.number("head_dim", default=hidden // heads)
    experts = keys.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    chosen = keys.number("num_experts_per_tok") if experts else 0
    if chosen > experts:
        raise ConfigError(
            f"model {name}: num_experts_per_tok = {chosen} of {experts} experts; "
            f"a token chooses at most {experts}"
        )
    outside = keys.number("vocab_size") * hidden * (1 if keys.flag("tie_word_embeddings") else 2)
    outside += hidden  # the last norm
    each = _attention(keys, hidden, heads, kv_heads, head_dim) + 2 * hidden
    sparse = _sparse_layers(keys, layers) if experts else 0
    dense = layers - sparse
    dense_mlp = 3 * hidden * keys.number("intermediate_size") if dense else 0
    expert = _expert(keys, hidden) if experts else 0
    beside = hidden * experts + _shared_expert(keys, hidden) if experts else 0
    common = outside + layers * each + dense * dense_mlp + sparse * beside
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
    )


def published(name: str) -> tuple[float, float]:
    """(parameters, active parameters) that the card of a catalogue model gives."""
    row = _catalogue()[name]
    return row["published_b"] * 1e9, row.get("published_active_b", row["published_b"]) * 1e9


def catalogue_models() -> tuple[str, ...]:
    """Names in the catalogue."""
    return tuple(_catalogue())


class _Keys:
    """Reads a config's keys and refuses what is missing or no count."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name = name
        self._config = config

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these keys that is given; `default` if none is."""
        for key in keys:
            value = self._config.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(
                    f"model {self._name}: {key} = {value!r}; it must be a whole number, 0 or more"
                )
            if value == 0 and default != 0:
                raise ConfigError(f"model {self._name}: {key} = 0; it must be 1 or more")
            return value
        if default is None:
            raise ConfigError(
                f"model {self._name}: its config has no {keys[0]}; "
                "give the config.json of a decoder-only transformer"
            )
        return default

    def flag(self, key: str) -> bool:
        return bool(self._config.get(key, False))

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(self._config.get(key) or ())

    @property
    def kind(self) -> str:
        return str(self._config.get("model_type", ""))


def _attention(keys: _Keys, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    queries, values = heads * head_dim, kv_heads * head_dim
    count = hidden * queries + 2 * hidden * values + queries * hidden
    if keys.flag("attention_bias") or keys.kind in _BIASED:
        count += queries + 2 * values
    if keys.kind in _HEAD_NORMS:
        count += 2 * head_dim
    return count


def _expert(keys: _Keys, hidden: int) -> int:
    return 3 * hidden * keys.number("moe_intermediate_size", "intermediate_size")


def _shared_expert(keys: _Keys, hidden: int) -> int:
    """Parameters of the experts that every token of a layer passes through."""
    width = keys.number("shared_expert_intermediate_size", default=0)
    gate = hidden if width else 0
    count = keys.number("n_shared_experts", default=0)
    return 3 * hidden * width + gate + count * _expert(keys, hidden)


def _sparse_layers(keys: _Keys, layers: int) -> int:
    """How many layers have experts."""
    every = keys.number("decoder_sparse_step", default=1)
    first_dense = keys.number("first_k_dense_replace", default=0)
    plain = set(keys.numbers("mlp_only_layers"))
    return sum(
        layer >= first_dense and layer not in plain and (layer + 1) % every == 0
        for layer in range(layers)
    )


@cache
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    source = files("rollart.runtimes.sim").joinpath("catalogue", "models.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))
