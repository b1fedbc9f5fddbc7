"""The roofline of an engine's iteration: published medians, its shape, and what fits."""

from dataclasses import replace

import pytest

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import gpu
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.hardware.roofline import EngineConstants, Roofline

USUAL_CONTEXT = 768
"""Tokens; what the benchmarks' context was in the mean is not published. Inferred."""


def roofline(model: str = "Qwen3-8B", hardware: str = "H100", tp: int = 1) -> Roofline:
    return Roofline(model=model_shape(model), gpu=gpu(hardware), tp=tp)


def decode_ms(line: Roofline, batch: int, context: int = USUAL_CONTEXT) -> float:
    return 1e3 * line.step_s(
        decoding=batch, prefill_tokens=0, context_tokens=batch * context, prefill_context=0.0
    )


@pytest.mark.parametrize(
    ("model", "tp", "batch", "context", "median_ms"),
    [
        ("Qwen3-8B", 1, 64, USUAL_CONTEXT, 14.0),
        ("Qwen3-8B", 1, 256, USUAL_CONTEXT, 31.4),
        ("Qwen3-8B", 1, 64, 5400, 26.6),
        ("Qwen3-14B", 1, 64, USUAL_CONTEXT, 18.9),
        ("Qwen3-32B", 2, 64, USUAL_CONTEXT, 22.5),
    ],
)
def test_a_decode_step_takes_what_vllm_takes_on_h100(model, tp, batch, context, median_ms) -> None:
    found = decode_ms(roofline(model, tp=tp), batch, context)
    assert found == pytest.approx(median_ms, rel=0.05)


def test_each_term_of_a_step_is_the_formula_s() -> None:
    """Against the formula written out once more, for a step that has every term."""
    line = roofline("Qwen3-14B", "H800", tp=2)
    constants = EngineConstants()
    batch, prefill, context, prefill_context = 32, 2048, 100_000, 3000.0
    memory, peak = 2 * 3.35e12, 2 * 989.5e12
    parameters = line.model.parameters
    by_hand = (
        1.9e-3
        + 2 * parameters / (memory * 0.87)
        + 163_840 * context / (memory * constants.kv_efficiency)
        + constants.sequence_s * batch
        + 2 * parameters * batch / (peak * 0.55)
        + (2 * parameters + 4 * 40 * 40 * 128 * prefill_context) * prefill / (peak * 0.45)
        + 0.8e-3
    )
    found = line.step_s(
        decoding=batch,
        prefill_tokens=prefill,
        context_tokens=context,
        prefill_context=prefill_context,
    )
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_decoding_prefers_bandwidth_and_prefill_prefers_compute() -> None:
    h20, h800 = roofline(hardware="H20"), roofline(hardware="H800")
    assert decode_ms(h20, 8, 16_000) < decode_ms(h800, 8, 16_000)

    def prefill(line: Roofline) -> float:
        return line.step_s(
            decoding=0, prefill_tokens=8192, context_tokens=0, prefill_context=4096.0
        )

    assert prefill(h20) > 4 * prefill(h800)


def test_more_gpus_make_a_step_shorter_but_not_in_proportion() -> None:
    one, two = decode_ms(roofline("Qwen3-14B"), 64), decode_ms(roofline("Qwen3-14B", tp=2), 64)
    assert one / 2 < two < one


def test_a_mixture_of_experts_reads_more_of_its_weights_as_the_batch_grows() -> None:
    sparse, dense = roofline("Qwen3-30B-A3B"), roofline("Qwen3-32B")
    assert decode_ms(sparse, 1, 0) < decode_ms(dense, 1, 0) / 4

    def growth(line: Roofline) -> float:
        return decode_ms(line, 8, 0) - decode_ms(line, 1, 0)

    assert growth(sparse) > 4 * growth(dense)


def test_kv_takes_what_weights_and_activations_leave() -> None:
    line = roofline("Qwen3-8B", "H800")
    room = 0.9 * 80e9 - 2 * line.model.parameters - 4e9
    assert line.kv_capacity_tokens == int(room / 147_456)
    both = roofline("Qwen3-8B", "H800", tp=2)
    assert both.kv_capacity_tokens == int((2 * 68e9 - 2 * line.model.parameters) / 147_456)


def test_more_gpus_than_heads_of_keys_and_values_hold_them_more_than_once() -> None:
    """Four such heads on eight GPUs: each GPU holds one, so each head is there twice."""
    four, eight = (roofline("Qwen3-30B-A3B", "H800", tp=tp) for tp in (4, 8))
    weights, token = four.model.weight_bytes, 98_304
    assert four.kv_capacity_tokens == int((4 * 68e9 - weights) / token)
    assert eight.kv_capacity_tokens == int((8 * 68e9 - weights) / (2 * token))

    def read_s(line: Roofline) -> float:
        few, many = (decode_ms(line, 1, context) for context in (0, 100_000))
        return (many - few) / 1e3

    assert read_s(four) == pytest.approx(100_000 * token / (4 * 3.35e12 * 0.93))
    assert read_s(eight) == pytest.approx(read_s(four))


def test_a_model_that_does_not_fit_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"does not fit on 1 L40S: .* 65\.5 GB .* use 2 GPUs"):
        _ = roofline("Qwen3-32B", "L40S").kv_capacity_tokens
    assert roofline("Qwen3-32B", "L40S", tp=2).kv_capacity_tokens > 0
    tiny = replace(gpu("L40S"), name="tiny", memory_gb=4.0)
    with pytest.raises(ConfigError, match="use a GPU with more memory"):
        _ = Roofline(model=model_shape("Qwen3-8B"), gpu=tiny, tp=1).kv_capacity_tokens


def test_an_engine_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp = 0"):
        roofline(tp=0)
