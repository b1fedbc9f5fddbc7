"""The model as a function: other architectures, layouts it cannot serve, and precision."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from rollart.backends.trainers.scorer import CausalScorer, portions_of
from rollart.backends.trainers.sequences import sequences_of

Make = Any
SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def granite() -> Any:
    return GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0))


def gpt2() -> Any:
    config = GPT2Config(
        vocab_size=24, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )
    return GPT2LMHeadModel(config)


def mistral() -> Any:
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=3))


def scored(model: Any, make: Make, *, layout: Any, autocast: torch.dtype | None = None) -> Any:
    """Largest difference to a plain forward pass of each sequence by itself, and the spread."""
    scorer = CausalScorer(model, layout=layout, autocast=autocast)
    trajectories = [make.trajectory("oosso" * (1 + m), member=m) for m in range(4)]
    sequences = {s.key: s for t in trajectories for s in sequences_of(t, temperature=0.8)}
    differences = []
    for portion in portions_of(sequences, token_budget=40, layout=layout):
        with torch.no_grad():
            got = portion.per_sequence(scorer.score(portion).logprobs.numpy())
        for key, values in got.items():
            segment = trajectories[key.trajectory.member].segments[0]
            plain = make.logprobs(model, segment, 0.8)[1 : 1 + len(values)]
            differences.append(np.abs(values - plain)[sequences[key].mask])
    return np.concatenate(differences)


@pytest.mark.parametrize(
    ("build", "layout"),
    [
        (granite, "padded"),
        (granite, "packed"),
        (gpt2, "padded"),
        (gpt2, "packed"),
        (mistral, "padded"),
    ],
)
def test_models_that_scale_logits_learn_positions_or_use_windows_are_scored_as_they_are(
    make: Make, build: Any, layout: str
) -> None:
    torch.manual_seed(1)
    model = build().eval().double()
    differences = scored(model, make, layout=layout)
    assert len(differences) == 20
    assert differences.max() < 1e-6


def test_a_head_mistaken_for_a_plain_one_would_be_caught(make: Make) -> None:
    torch.manual_seed(1)
    model = granite().eval().double()

    class Careless(CausalScorer):
        def __init__(self, model: Any, **settings: Any) -> None:
            super().__init__(model, **settings)
            self._plain_head = model.get_output_embeddings()

    sequence = sequences_of(make.trajectory("ooss"), temperature=1.0)[0]
    (portion,) = portions_of({sequence.key: sequence}, token_budget=9, layout="padded")
    right = CausalScorer(model, layout="padded", autocast=None).score(portion).logprobs
    wrong = Careless(model, layout="padded", autocast=None).score(portion).logprobs
    assert float((right - wrong).abs().max().detach()) > 0.01


def test_windowed_attention_is_refused_in_packs_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r'mistral model has sliding.*layout = "padded"'):
        CausalScorer(mistral(), layout="packed", autocast=None)


def test_bfloat16_rounds_and_exact_does_not(make: Make, model_dir: Any) -> None:
    model = make.trainer().model
    rounded = scored(model, make, layout="padded", autocast=torch.bfloat16)
    assert 1e-6 < rounded.max() < 0.2
    scorer = CausalScorer(model, layout="padded", autocast=torch.bfloat16)
    sequence = sequences_of(make.trajectory("oosss"), temperature=1.0)[0]
    (portion,) = portions_of({sequence.key: sequence}, token_budget=9, layout="padded")
    with torch.no_grad():
        exact = scorer.score(portion, exact=True)
        assert exact.logprobs.dtype == scorer.score(portion).logprobs.dtype == torch.float32
    plain = make.logprobs(model, make.trajectory("oosss").segments[0], 1.0)[2:]
    assert np.abs(exact.logprobs.numpy() - plain).max() < 1e-5


def test_a_micro_batch_holds_one_temperature(make: Make) -> None:
    sequences = {
        s.key: s
        for member, temperature in enumerate((1.0, 0.5, 1.0))
        for s in sequences_of(make.trajectory("oos", member=member), temperature=temperature)
    }
    portions = portions_of(sequences, token_budget=100, layout="packed")
    assert [(p.temperature, len(p.plan.keys())) for p in portions] == [(0.5, 1), (1.0, 2)]


def test_values_laid_out_come_back_to_the_sequence_they_belong_to(make: Make) -> None:
    sequences = {
        s.key: s
        for member in range(5)
        for s in sequences_of(make.trajectory("oss" * (1 + member), member=member), temperature=1.0)
    }
    for layout in ("padded", "packed"):
        for portion in portions_of(sequences, token_budget=20, layout=layout):
            behaviour = portion.tokens(lambda sequence: sequence.behaviour)
            for key, values in portion.per_sequence(behaviour).items():
                assert np.array_equal(values, sequences[key].behaviour)
