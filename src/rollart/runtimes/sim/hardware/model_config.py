"""A Hugging Face `config.json` as numbers: keys with their defaults, each layer's kind, weights.

Invariant: a key that changes a model's shape is either read or refused with one line; what is read
and modelled in part is told by `doubts_about`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rollart.core.errors import ConfigError

BIASED = frozenset({"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"})
"""Types with biases on query, key and value that no key of the config tells."""

HEAD_NORMS = frozenset({"qwen3", "qwen3_moe", "qwen3_next", "gemma3_text"})
"""Types with norms of queries and keys, likewise."""

TIED = {
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "smollm3"), True
    ),
    **dict.fromkeys(
        ("llama", "llama4", "llama4_text", "mistral", "ministral", "mixtral", "phi3", "gpt_oss"),
        False,
    ),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "glm4", "glm4_moe"), False
    ),
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), False
    ),
    **dict.fromkeys(("granite", "minimax_m2", "olmo2", "olmo3", "olmoe", "seed_oss"), False),
}
"""Known types, and whether input and output embeddings are one where the config does not say."""

FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)

_NOT_MODELLED = {
    "kv_lora_rank": "latent attention",
    "linear_attn_config": "this kind of linear attention",
    "attn_type_list": "this kind of linear attention",
    "hybrid_override_pattern": "state-space layers",
    "attn_layer_period": "state-space layers",
    "mamba_d_state": "state-space layers",
    "state_size": "state-space layers",
    "num_kv_shared_layers": "KV shared by layers",
    "cla_share_factor": "KV shared by layers",
    "hidden_size_per_layer_input": "embeddings of each layer",
    "global_head_dim": "heads that differ by layer",
    "num_global_key_value_heads": "heads that differ by layer",
    "cross_attention_layers": "attention to what is seen",
    "is_encoder_decoder": "an encoder",
    "block_configs": "layers that differ in width",
    "moe_num_experts": "this way to say how many experts there are",
    "moe_layer_interval": "this way to say which layers have experts",
}
"""Keys that change the shape, and what they stand for."""

_EXPERTS_ONLY = {"mxfp4": 4.0 + 8.0 / 32}
"""Bits of a routed expert's weight; all else is as it was. Blocks of 32 share a scale of 8 bits."""

_ALL_LAYERS = {"fp8": 8.0, "fbgemm_fp8": 8.0}
"""Bits of a weight of all layers; embeddings are as they were."""

_SCALES_BITS = 16
"""Of a group's scale; its zero is as wide as a weight."""


class Keys:
    """Reads a config's keys, the language part first, and refuses what is of another type."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        text = config.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise ConfigError(f"model {name}: text_config = {text!r}; it must be a JSON object")
        self.name = name
        self._whole = config
        # Models that also see keep the language part there.
        self._text = config if text is None else cast("Mapping[str, Any]", text)
        for key, words in _NOT_MODELLED.items():
            if self._text.get(key):
                raise self.wrong(
                    key,
                    f"{words}: not modelled; use a model with grouped-query attention and "
                    "layers of one width",
                )

    def wrong(self, key: str, rule: str) -> ConfigError:
        """The refusal of a key."""
        return ConfigError(f"model {self.name}: {key} = {self._text.get(key)!r}: {rule}")

    @property
    def kind(self) -> str:
        """The model's type."""
        found = self._text.get("model_type")
        if found is not None and not isinstance(found, str):
            raise self.wrong("model_type", 'it must be a name, such as "llama"')
        return found or ""

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these keys that is given; `default` if none is."""
        for key in keys:
            value = self._text.get(key)
            if value is None:
                continue
            if not _is_count(value):
                raise self.wrong(key, "it must be a whole number, 0 or more")
            if value == 0 and default != 0:
                raise self.wrong(key, "it must be 1 or more")
            return value
        if default is None:
            raise ConfigError(
                f"model {self.name}: its config has no {keys[0]}; "
                "give the config.json of a decoder-only transformer"
            )
        return default

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self._text.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "it must be true or false")
        return value

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of counts; None where the key is not given."""
        found = self._list(key)
        if found is not None and not all(map(_is_count, found)):
            raise self.wrong(key, "it must be a list of whole numbers, such as [0, 1]")
        return None if found is None else tuple(cast("Sequence[int]", found))

    def _list(self, key: str) -> list[Any] | None:
        value = self._text.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, "it must be a list, such as []")
        return cast("list[Any] | None", value)

    @property
    def tied(self) -> bool:
        """Whether input and output embeddings are the same parameters."""
        above = self._whole.get("tie_word_embeddings")
        default = above if isinstance(above, bool) else TIED.get(self.kind, False)
        return self.flag("tie_word_embeddings", default=default)

    def attention(self, layers: int) -> tuple[str, ...]:
        """The kind of attention of each layer."""
        listed = self._list("layer_types")
        if listed is not None:
            if len(listed) != layers:
                raise self.wrong("layer_types", f"it must name each of {layers} layers")
            known = (FULL, SLIDING, CHUNKED, LINEAR)
            if strange := [kind for kind in listed if kind not in known]:
                raise self.wrong(
                    "layer_types",
                    f"{strange[0]!r} is not modelled; use a model of {', '.join(known)}",
                )
            return tuple(listed)
        hybrid = self.kind == "qwen3_next"
        every = self.number("full_attention_interval", default=4 if hybrid else 1)
        return tuple(LINEAR if (layer + 1) % every else FULL for layer in range(layers))

    def sparse(self, layers: int) -> int:
        """How many layers have experts."""
        listed = self.numbers("moe_layers")
        if listed is not None:
            return sum(layer < layers for layer in set(listed))
        every = self.number("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        frequency = self._text.get("moe_layer_freq")
        if frequency not in (None, 1):
            raise self.wrong(
                "moe_layer_freq", "only 1 is modelled; say decoder_sparse_step instead"
            )
        first_dense = self.number("first_k_dense_replace", default=0)
        plain = set(self.numbers("mlp_only_layers") or ())
        return sum(
            layer >= first_dense and layer not in plain and (layer + 1) % every == 0
            for layer in range(layers)
        )

    def bits(self) -> tuple[float, float]:
        """Bits of a weight in layers, and of one in routed experts; embeddings have 16.

        A few weights in layers that stay at 16 bits (routers, norms) count with the others.
        """
        found = self._text.get("quantization_config", self._whole.get("quantization_config"))
        if found is None:
            return 16.0, 16.0
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"model {self.name}: quantization_config = {found!r}: it must be a JSON object"
            )
        given = cast("Mapping[str, Any]", found)
        method = str(given.get("quant_method"))
        if method in _EXPERTS_ONLY:
            return 16.0, _EXPERTS_ONLY[method]
        bits = _ALL_LAYERS.get(method)
        if method in {"gptq", "awq"}:
            bits = _grouped(given)
        elif method == "bitsandbytes" and given.get("load_in_4bit") is True:
            bits = 4.0 + 32 / 64  # blocks of 64 share a float32 scale
        elif method == "bitsandbytes" and given.get("load_in_8bit") is True:
            bits = 8.0
        if bits is None:
            methods = (*_ALL_LAYERS, *_EXPERTS_ONLY, "gptq", "awq", "bitsandbytes")
            raise ConfigError(
                f"model {self.name}: quantization_config.quant_method = {method!r}: how many bits "
                f"its weights take is not known; use one of {', '.join(methods)}, with its bits, "
                "or leave quantization_config out for 16"
            )
        return bits, bits


def doubts_about(keys: Keys, layers: Sequence[str]) -> Iterator[str]:
    """What of a model is not as it is modelled, in words."""
    if keys.kind not in TIED:
        kind = f"model_type {keys.kind!r}" if keys.kind else "a model without a model_type"
        yield f"{kind} is not known, and counted as if its layers were those of llama"
    bounded = [kind for kind in layers if kind in {SLIDING, CHUNKED}]
    windowed = _window(keys)
    if bounded or windowed:
        which = f"{len(bounded)} of {len(layers)} layers attend" if bounded else "layers attend"
        yield (
            f"{which} to {windowed or 'a part'} tokens at most; modelled as if they attended to, "
            "and kept, the whole context, so KV is overrated in contexts that are longer"
        )
    if LINEAR in layers:
        yield "the constant state of linear attention takes no memory"


def _window(keys: Keys) -> int:
    """Tokens that some layers attend to at most; 0 where all attend to all."""
    if not keys.flag("use_sliding_window", default=True):
        return 0
    return keys.number("sliding_window", "attention_chunk_size", default=0)


def _grouped(given: Mapping[str, Any]) -> float | None:
    """Bits of a weight whose group shares a scale and a zero; None where they are not said."""
    bits, size = given.get("bits", given.get("w_bit")), given.get("group_size")
    if not _is_count(bits) or not isinstance(size, int) or isinstance(size, bool):
        return None
    return bits + ((_SCALES_BITS + bits) / size if size > 0 else 0.0)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
