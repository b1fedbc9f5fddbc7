"""Shapes of models: what is counted from a config, and what a batch reads of the experts."""

import json
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.model_shape import (
    ModelShape,
    catalogue_models,
    model_shape,
    published,
    shape_of,
)

# huggingface.co/meta-llama/Llama-3.1-8B: 8.03e9 parameters
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
# huggingface.co/Qwen/Qwen2.5-0.5B: 0.494e9, embeddings tied, biases that no key tells
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
# huggingface.co/mistralai/Mixtral-8x7B-v0.1: 46.7e9, 12.9e9 active
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
# huggingface.co/Qwen/Qwen1.5-MoE-A2.7B: 14.3e9, 2.7e9 active, with a shared expert
QWEN2_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
}


@pytest.mark.parametrize("name", catalogue_models())
def test_counted_parameters_are_within_two_per_cent_of_the_published_ones(name: str) -> None:
    shape = model_shape(name)
    parameters, active = published(name)
    assert shape.parameters == pytest.approx(parameters, rel=0.02)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        (LLAMA, 8.03e9, 8.03e9),
        (QWEN2, 0.494e9, 0.494e9),
        (MIXTRAL, 46.7e9, 12.9e9),
        (QWEN2_MOE, 14.3e9, 2.7e9),
    ],
    ids=["llama", "qwen2", "mixtral", "qwen2_moe"],
)
def test_models_outside_the_catalogue_are_counted_too(config, parameters, active) -> None:
    shape = shape_of("other", config)
    assert shape.parameters == pytest.approx(parameters, rel=0.005)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Qwen3-8B", 147_456),
        ("Qwen3-14B", 163_840),
        ("Qwen3-32B", 262_144),
        ("Qwen3-30B-A3B", 98_304),
    ],
)
def test_a_token_of_context_takes_the_bytes_of_its_keys_and_values(name, per_token) -> None:
    assert model_shape(name).kv_bytes_per_token == per_token


def test_a_directory_and_its_config_file_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    by_folder = model_shape(str(folder))
    assert by_folder.name == "llama"
    assert by_folder == model_shape(str(folder / "config.json"))
    assert by_folder.head_dim == 128


def test_of_a_model_that_also_sees_the_language_part_is_read() -> None:
    assert shape_of("sees", {"model_type": "any_vl", "text_config": LLAMA}).layers == 32


def test_a_dense_model_reads_all_its_weights_whatever_the_batch() -> None:
    shape = model_shape("Qwen3-8B")
    assert shape.expert_bytes == 0
    assert shape.read_bytes(1) == shape.read_bytes(512) == shape.weight_bytes


def test_one_token_reads_the_active_experts_and_many_tokens_read_all() -> None:
    shape = model_shape("Qwen3-30B-A3B")
    active = shape.active_parameters * shape.bytes_per_parameter
    assert shape.read_bytes(1) == pytest.approx(active)
    read = [shape.read_bytes(tokens) for tokens in (1, 4, 16, 64, 1024)]
    assert read == sorted(set(read))
    assert read[-1] == pytest.approx(shape.weight_bytes, rel=1e-6)


def test_expected_distinct_experts_are_those_of_a_draw() -> None:
    """Two tokens that each choose 1 of 2 experts touch 1.5 of them in the mean."""
    shape = ModelShape(
        name="two",
        parameters=30.0,
        active_parameters=20.0,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        experts=2,
        experts_per_token=1,
    )
    assert shape.expert_bytes == 20.0
    assert shape.read_bytes(2) == pytest.approx(20.0 + 1.5 * 20.0)


def test_layers_without_experts_are_told_apart() -> None:
    dense_first = {**MIXTRAL, "first_k_dense_replace": 1, "moe_intermediate_size": 1024}
    every = shape_of("every", {**MIXTRAL, "moe_intermediate_size": 1024})
    fewer = shape_of("fewer", dense_first)
    mlp, expert = 3 * 4096 * 14336, 3 * 4096 * 1024
    router = 4096 * 8
    assert every.parameters - fewer.parameters == 8 * expert + router - mlp


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers = 'many'"),
        ({"kv_lora_rank": 512}, "latent attention is not modelled"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "chooses at most 4"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused(change, said) -> None:
    with pytest.raises(ConfigError, match=said):
        shape_of("broken", {**LLAMA, **change})


def test_a_model_that_is_nowhere_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Qwen3-235B-A22B"):
        model_shape("Qwen9-1T")
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_shape(str(tmp_path))


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), ("[]", "holds list")])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        model_shape(str(file))
