"""Shapes of models: what is counted from a config, and what a batch reads of the experts."""

import json
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.model_shape import (
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
# huggingface.co/meta-llama/Llama-4-Scout-17B-16E: 109e9, 17e9 active, with what it sees
SCOUT = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "interleave_moe_layer_step": 1,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "vocab_size": 202048,
    "attention_chunk_size": 8192,
}
# huggingface.co/meta-llama/Llama-4-Maverick-17B-128E: 400e9, 17e9 active
MAVERICK = {**SCOUT, "interleave_moe_layer_step": 2, "num_local_experts": 128}
# huggingface.co/google/gemma-2-2b: 2.61e9, embeddings tied without a key that says so
GEMMA = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
}
# huggingface.co/openai/gpt-oss-120b: 116.8e9, 5.1e9 active without the input embeddings
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "attention_bias": True,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
}
# huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct: 80e9, of four layers three with linear attention
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
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


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        (SCOUT, 109e9, 17e9),
        (MAVERICK, 400e9, 17e9),
        (GEMMA, 2.61e9, 2.61e9),
        (GPT_OSS, 116.8e9, 5.1e9 + 201088 * 2880),
        (QWEN3_NEXT, 80e9, 3.9e9),
    ],
    ids=["scout", "maverick", "gemma2", "gpt_oss", "qwen3_next"],
)
def test_models_whose_layers_differ_are_counted_within_three_per_cent(
    config, parameters, active
) -> None:
    shape = shape_of("other", config)
    assert shape.parameters == pytest.approx(parameters, rel=0.03)
    assert shape.active_parameters == pytest.approx(active, rel=0.03)


def test_layers_with_linear_attention_keep_no_kv_and_attend_to_nothing() -> None:
    shape = shape_of("next", QWEN3_NEXT)
    assert shape.kv_bytes_per_token == 2 * 12 * 2 * 256 * 2
    assert shape.attention_flops == 4 * 12 * 16 * 256
    listed = {**QWEN3_NEXT, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    del listed["full_attention_interval"]
    assert shape_of("next", listed) == shape


@pytest.mark.parametrize(
    ("quantised", "layers", "experts"),
    [
        (None, 16, 16),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8, 8),
        ({"quant_method": "mxfp4"}, 16, 4.25),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128, 4 + 20 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, 4.5),
    ],
)
def test_quantised_weights_take_the_bits_of_their_method(quantised, layers, experts) -> None:
    plain = shape_of("plain", MIXTRAL)
    shape = shape_of("small", {**MIXTRAL, "quantization_config": quantised})
    embeddings = 2 * 32000 * 4096
    routed = 32 * 8 * 3 * 4096 * 14336
    rest = plain.parameters - embeddings - routed
    bits = 16 * embeddings + layers * rest + experts * routed
    assert shape.weight_bytes == pytest.approx(bits / 8)
    assert shape.parameters == plain.parameters
    assert shape.read_bytes(1e9) == pytest.approx(shape.weight_bytes)
    assert shape.read_bytes(1) == pytest.approx(shape.weight_bytes - 6 / 8 * experts / 8 * routed)


def test_the_weights_of_gpt_oss_take_about_as_many_bytes_as_its_files() -> None:
    assert shape_of("oss", GPT_OSS).weight_bytes == pytest.approx(65.2e9, rel=0.03)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GPT_OSS, "18 of 36 layers attend to 128 tokens at most"),
        (SCOUT, "layers attend to 8192 tokens at most"),
        (QWEN3_NEXT, "the constant state of linear attention"),
        ({**LLAMA, "model_type": "roses"}, "model_type 'roses' is not known"),
    ],
)
def test_what_is_not_modelled_as_it_is_is_said(config, said) -> None:
    (doubt,) = shape_of("other", config).doubts
    assert said in doubt


def test_of_a_plain_model_there_is_no_doubt() -> None:
    window = {"sliding_window": 4096, "use_sliding_window": False}
    assert shape_of("llama", LLAMA).doubts == ()
    assert shape_of("qwen", {**QWEN2, **window}).doubts == ()


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
        ({"kv_lora_rank": 512}, "latent attention: not modelled"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "chooses at most 4"),
        ({"num_key_value_heads": 7}, "num_key_value_heads = 7.*use 4"),
        ({"num_key_value_heads": 64}, "num_key_value_heads = 64.*use 32"),
        ({"mlp_only_layers": 3, "num_experts": 4, "num_experts_per_tok": 1}, "mlp_only_layers = 3"),
        ({"text_config": [1]}, r"text_config = \[1\].*JSON object"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no'.*true or false"),
        ({"model_type": 7}, "model_type = 7"),
        ({"layer_types": ["full_attention"]}, "each of 32 layers"),
        ({"layer_types": ["mamba"] * 32}, "'mamba' is not modelled"),
        ({"full_attention_interval": 4}, "no linear_num_value_heads"),
        ({"mamba_d_state": 16}, "state-space layers: not modelled"),
        ({"num_kv_shared_layers": 10}, "KV shared by layers"),
        ({"quantization_config": 8}, "quantization_config = 8"),
        ({"quantization_config": {"quant_method": ["x"]}}, "how many bits"),
        ({"quantization_config": {"quant_method": "gptq"}}, "how many bits"),
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
