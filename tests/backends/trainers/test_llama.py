"""The short cut against the model's own forward: the same numbers and the same gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rollart.backends.trainers.llama import LlamaShaped, short_cut

SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
# Around the width of a block, one beyond the width whose weights are kept; in no order of length.
LENGTHS = np.array([5, 130, 64, 1, 520, 65, 9], np.int64)

Build = Callable[[], Any]


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))


def mistral(window: int | None = None) -> Any:
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))


def qwen2() -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))


def made(build: Build) -> Any:
    """A model in float64 all of whose parameters are random, norms and biases too."""
    torch.manual_seed(3)
    model = build().eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def chosen_tokens() -> np.ndarray:
    """One token in six, but none of the second sequence and all of the last."""
    rng = np.random.default_rng(1)
    tokens = int(LENGTHS.sum())
    picked = rng.random(tokens) < 1 / 6
    picked[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]] = False
    picked[tokens - LENGTHS[-1] :] = True
    return np.flatnonzero(picked)


def token_ids() -> Tensor:
    return torch.randint(0, 24, (int(LENGTHS.sum()),), generator=torch.Generator().manual_seed(2))


def one_by_one(model: Any) -> Tensor:
    """Each sequence alone, by the model's own forward."""
    parts = token_ids().split(LENGTHS.tolist())
    hidden = [model.model(input_ids=p[None], use_cache=False).last_hidden_state[0] for p in parts]
    return torch.cat(hidden)[torch.from_numpy(chosen_tokens())]


def gradients(model: Any, hidden: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    weights = torch.randn(
        hidden.shape, dtype=hidden.dtype, generator=torch.Generator().manual_seed(4)
    )
    (hidden * weights).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest(values: Tensor) -> float:
    return float(values.detach().abs().max())


def assert_equal(model: Any, run: LlamaShaped) -> None:
    """Up to float32's rounding: the model's own norms are computed in float32 whatever it is."""
    wanted, got = one_by_one(model), run.hidden(token_ids(), LENGTHS, chosen_tokens(), None)
    assert torch.allclose(got, wanted, rtol=0.0, atol=1e-5 * largest(wanted))
    own, short = gradients(model, wanted), gradients(model, got)
    assert own.keys() == short.keys()
    for name, gradient in own.items():
        size = largest(gradient)
        assert size > 0.0, name
        assert largest(short[name] - gradient) < 1e-5 * size, name


@pytest.mark.parametrize("build", [llama, mistral, qwen2, qwen3])
def test_the_short_cut_gives_the_models_own_numbers_and_gradients(build: Build) -> None:
    model = made(build)
    run = short_cut(model)
    assert run is not None
    assert_equal(model, run)


class SequencesSeeEachOther(LlamaShaped):
    def hidden(
        self, ids: Tensor, lengths: Any, chosen: Any, autocast: torch.dtype | None
    ) -> Tensor:
        return super().hidden(ids, np.array([len(ids)]), chosen, autocast)


def test_sequences_that_see_each_other_would_be_caught() -> None:
    model = made(qwen3)
    with pytest.raises(AssertionError):
        assert_equal(model, SequencesSeeEachOther(model))


def test_bfloat16_products_round_and_change_nothing_else() -> None:
    model = made(qwen3).float()
    run = short_cut(model)
    assert run is not None
    wanted = one_by_one(model)
    exact = run.hidden(token_ids(), LENGTHS, chosen_tokens(), None)
    rounded = run.hidden(token_ids(), LENGTHS, chosen_tokens(), torch.bfloat16)
    assert exact.dtype == rounded.dtype == torch.float32
    size = largest(wanted)
    assert largest(exact - wanted) < 1e-4 * size
    assert 1e-4 * size < largest(rounded - wanted) < 0.2 * size


def with_an_adapter() -> Any:
    class Adapted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name it overrides
            return 2.0 * super().forward(input)

    model = qwen3()
    model.model.layers[1].mlp.up_proj = Adapted(16, 32, bias=False)
    return model


def with_a_hook() -> Any:
    model = qwen3()
    model.model.norm.register_forward_hook(lambda _module, _inputs, output: 2.0 * output)
    return model


def with_another_activation() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))


@pytest.mark.parametrize(
    "build", [lambda: mistral(3), with_an_adapter, with_a_hook, with_another_activation]
)
def test_a_model_that_computes_anything_else_gets_no_short_cut(build: Build) -> None:
    assert short_cut(made(build)) is None
