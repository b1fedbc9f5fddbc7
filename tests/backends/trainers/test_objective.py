"""The objective in float64: hand-worked losses, and gradients that no layout can change."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rollart.backends.trainers.objective import Objective, Outcome, Proximal
from rollart.backends.trainers.scorer import CausalScorer, Portion
from rollart.backends.trainers.sequences import (
    SegmentKey,
    TrainSequence,
    group_shares,
    sequences_by_key,
    sequences_of,
)

Make = Any
Sequences = dict[SegmentKey, TrainSequence]


def load(model_dir: Any, attention: str = "sdpa") -> Any:
    """In float64 throughout; eager attention has a softmax in float32 whatever the model is."""
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float64, attn_implementation=attention
    )
    return model.eval()


def objective(
    model: Any,
    *,
    layout: Any = "padded",
    budget: int = 10_000,
    row_tokens: int | None = None,
    scorer: type[CausalScorer] = CausalScorer,
    may_cut_short: bool = True,
    **settings: Any,
) -> Objective:
    chosen = {
        "correction": "behaviour",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "correction_cap": 2.0,
        "entropy": 0.01,
    }
    return Objective(
        scorer(model, layout=layout, autocast=None, may_cut_short=may_cut_short),
        token_budget=budget,
        row_tokens=row_tokens,
        **{**chosen, **settings},
    )


def gradient(
    made: Objective, model: Any, sequences: Sequences, proximal: Proximal | None = None
) -> tuple[Tensor, Outcome]:
    model.zero_grad(set_to_none=True)
    outcome = made.backward(sequences, proximal=proximal)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), outcome


def batch_sequences(make: Make, groups: Any = None) -> Sequences:
    found = [make.group(members) for members in (groups or make.random_groups(4, 4))]
    shares = group_shares(found, "grpo", eps=1e-4, drop_zero_variance=True)
    return sequences_by_key(shares, {"lake": 1.0})


LAYOUTS = [
    {"layout": "padded", "budget": 10_000},
    {"layout": "padded", "budget": 40},
    {"layout": "padded", "budget": 90},
    {"layout": "packed", "budget": 10_000},
    {"layout": "packed", "budget": 60},
    {"layout": "packed", "budget": 120, "row_tokens": 40},
]


@pytest.mark.parametrize(
    ("attention", "tolerance"), [("eager", 1e-6), ("sdpa", 1e-12), ("short cut", 1e-12)]
)
@pytest.mark.parametrize("correction", ["none", "behaviour", "tis"])
def test_micro_batches_and_packing_change_neither_loss_nor_gradient(
    make: Make, model_dir: Any, attention: str, tolerance: float, correction: str
) -> None:
    sequences = batch_sequences(make)
    short = attention == "short cut"
    model = load(model_dir, "sdpa" if short else attention)
    whole = objective(model, correction=correction, may_cut_short=short)
    wanted, reference = gradient(whole, model, sequences)
    assert float(wanted.norm()) > 0.01
    for layout in LAYOUTS:
        made = objective(model, correction=correction, may_cut_short=short, **layout)
        got, outcome = gradient(made, model, sequences)
        assert float((got - wanted).abs().max()) < tolerance, layout
        assert outcome.loss == pytest.approx(reference.loss, abs=tolerance)
        assert outcome.metrics.tokens == reference.metrics.tokens
        assert outcome.input_tokens == reference.input_tokens


def test_the_order_of_sequences_changes_nothing(make: Make, model_dir: Any) -> None:
    model, sequences = load(model_dir), batch_sequences(make)
    wanted, _ = gradient(objective(model, budget=60), model, sequences)
    backwards = dict(reversed(sequences.items()))
    got, _ = gradient(objective(model, budget=60), model, backwards)
    assert float((got - wanted).abs().max()) < 1e-12


def test_a_pack_whose_sequences_see_each_other_would_be_caught(make: Make, model_dir: Any) -> None:
    class Leaky(CausalScorer):
        def _attention(self, portion: Portion) -> Tensor:
            rows, width = portion.plan.shape
            allowed = torch.ones(width, width).tril().bool().expand(rows, 1, width, width)
            return torch.zeros(rows, 1, width, width).masked_fill(~allowed, -1e30).double()

    class Unrestarted(CausalScorer):
        def _arguments(self, portion: Portion) -> Any:
            rows, width = portion.plan.shape
            positions = torch.arange(width).expand(rows, width) ** 2
            return {**super()._arguments(portion), "position_ids": positions}

    model, sequences = load(model_dir), batch_sequences(make)
    wanted, _ = gradient(objective(model), model, sequences)
    for broken in (Leaky, Unrestarted):
        made = objective(model, layout="packed", scorer=broken, may_cut_short=False)
        got, _ = gradient(made, model, sequences)
        assert float((got - wanted).abs().max()) > 1e-6, broken.__name__


def test_the_loss_of_two_tokens_is_the_one_worked_out_by_hand(make: Make, model_dir: Any) -> None:
    model, temperature, coefficient = load(model_dir), 0.6, 0.02
    trajectory = make.trajectory("oooss")
    segment = trajectory.segments[0]
    first, second = make.logprobs(model, segment, temperature)[3:]
    # Recorded log-probs that make the ratios 1.5 (clipped for A > 0) and 1.1 (not clipped).
    sampled = replace(
        segment.pieces[1],
        logprobs=np.array([first - math.log(1.5), second - math.log(1.1)], np.float32),
    )
    trajectory = replace(
        trajectory, segments=(replace(segment, pieces=(segment.pieces[0], sampled)),)
    )
    ids = torch.from_numpy(segment.ids()).long().unsqueeze(0)
    probabilities = torch.softmax(model(input_ids=ids).logits[0, 2:4] / temperature, -1)
    entropies = -(probabilities * probabilities.log()).sum(-1)
    bonus = coefficient * float(entropies.mean().detach())

    for advantage, hand in ((2.0, (1.28 + 1.1) / 2 * 2.0), (-2.0, (1.5 + 1.1) / 2 * -2.0)):
        (sequence,) = sequences_of(trajectory, temperature=temperature, advantage=advantage)
        made = objective(model, entropy=coefficient)
        _, outcome = gradient(made, model, {sequence.key: sequence})
        assert outcome.loss == pytest.approx(-hand - bonus, abs=1e-6)
        assert outcome.metrics.clipped == (1 if advantage > 0 else 0)
        assert outcome.metrics.ratio_max == pytest.approx(1.5, abs=1e-6)
        # The model's own forward, on this side, has norms in float32 whatever the model is.
        assert outcome.metrics.entropy_mean == pytest.approx(
            float(entropies.mean().detach()), abs=1e-7
        )


def test_the_ratio_is_against_the_recorded_log_prob_and_leaves_one_when_weights_move(
    make: Make, model_dir: Any
) -> None:
    model = load(model_dir)
    trajectory = make.as_sampled(make.trajectory("oosss"), model)
    (sequence,) = sequences_of(trajectory, temperature=1.0, advantage=1.0)
    sequences = {sequence.key: sequence}
    made = objective(model, entropy=0.0)
    _, before = gradient(made, model, sequences)
    assert before.metrics.ratio_max == pytest.approx(1.0, abs=1e-6)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            torch.manual_seed(number)
            parameter.add_(0.02 * torch.randn_like(parameter))
    now = make.logprobs(model, trajectory.segments[0], 1.0)[2:]
    ratios = np.exp(now - sequence.behaviour[sequence.mask])
    assert np.abs(ratios - 1.0).max() > 0.01
    _, after = gradient(made, model, sequences)
    assert after.metrics.ratio_max == pytest.approx(ratios.max(), abs=1e-6)
    assert after.loss == pytest.approx(-np.minimum(ratios, ratios.clip(0.8, 1.28)).mean(), abs=1e-6)


def test_truncated_importance_never_exceeds_its_cap(make: Make, model_dir: Any) -> None:
    model = load(model_dir)
    trajectory = make.as_sampled(make.trajectory("oossss"), model)
    segment = trajectory.segments[0]
    shift = np.log(np.array([8.0, 1.5, 0.5, 1.0], np.float32))
    sampled = replace(segment.pieces[1], logprobs=segment.pieces[1].logprobs - shift)
    trajectory = replace(
        trajectory, segments=(replace(segment, pieces=(segment.pieces[0], sampled)),)
    )
    (sequence,) = sequences_of(trajectory, temperature=1.0, advantage=1.0)
    made = objective(model, correction="tis", correction_cap=2.0, entropy=0.0)
    _, outcome = gradient(made, model, {sequence.key: sequence})
    # The ratio is against the trainer's own log-probs, hence 1; the weight is 8 cut to 2.
    assert outcome.metrics.ratio_max == pytest.approx(1.0)
    assert outcome.metrics.truncated == 1
    assert outcome.metrics.importance_mean == pytest.approx((2.0 + 1.5 + 0.5 + 1.0) / 4, abs=1e-6)
    assert outcome.loss == pytest.approx(-(2.0 + 1.5 + 0.5 + 1.0) / 4, abs=1e-6)


def test_log_probs_recomputed_under_the_same_weights_are_the_models_own(
    make: Make, model_dir: Any
) -> None:
    model, sequences = load(model_dir), batch_sequences(make)
    made = objective(model, correction="tis", budget=70)
    proximal = made.logprobs(sequences)
    assert all(not values[~sequences[key].mask].any() for key, values in proximal.items())
    implied, _ = gradient(made, model, sequences)
    given, _ = gradient(made, model, sequences, proximal)
    assert float((given - implied).abs().max()) < 1e-12


def test_a_trajectory_weighs_the_same_in_one_segment_or_in_several(
    make: Make, model_dir: Any
) -> None:
    model = load(model_dir)
    whole = make.trajectory("ooss" + "oss")
    cut = make.trajectory("ooss", "oss", member=1, seed=9)
    made = objective(model, correction="none", entropy=0.0)
    losses, counts = [], []
    for trajectory in (whole, cut):
        found = {s.key: s for s in sequences_of(trajectory, temperature=1.0, advantage=3.0)}
        _, outcome = gradient(made, model, found)
        losses.append(outcome.loss)
        counts.append((len(found), outcome.metrics.tokens))
    assert losses == pytest.approx([-3.0, -3.0])
    assert counts == [(1, 4), (2, 4)]
    # Two segments of one trajectory count as those of two trajectories with its advantage.
    parts = [replace(cut, segments=(segment,)) for segment in cut.segments]
    parts[1] = replace(parts[1], id=replace(parts[1].id, member=7))
    one = {s.key: s for s in sequences_of(cut, temperature=1.0, advantage=3.0)}
    two = {s.key: s for p in parts for s in sequences_of(p, temperature=1.0, advantage=3.0)}
    assert torch.equal(gradient(made, model, one)[0], gradient(made, model, two)[0])


def test_a_long_trajectory_outweighs_a_short_one_by_its_tokens(make: Make, model_dir: Any) -> None:
    model = load(model_dir)
    long = sequences_of(make.trajectory("o" + "s" * 9), temperature=1.0, advantage=0.0)
    short = sequences_of(make.trajectory("os", member=1), temperature=1.0, advantage=1.0)
    made = objective(model, correction="none", entropy=0.0, budget=9)
    _, outcome = gradient(made, model, {s.key: s for s in (*long, *short)})
    assert outcome.loss == pytest.approx(-0.1)  # and not the mean of means, -0.5


def test_what_stands_at_observed_tokens_has_no_effect(make: Make, model_dir: Any) -> None:
    model, sequences = load(model_dir), batch_sequences(make)
    wanted, reference = gradient(objective(model), model, sequences)
    spoilt = {
        key: replace(
            sequence,
            behaviour=np.where(sequence.mask, sequence.behaviour, np.float32("nan")),
            targets=np.where(sequence.mask, sequence.targets, 0).astype(np.int32),
        )
        for key, sequence in sequences.items()
    }
    got, outcome = gradient(objective(model, layout="packed", budget=80), model, spoilt)
    assert float((got - wanted).abs().max()) < 1e-12
    assert outcome.loss == pytest.approx(reference.loss)


def test_members_without_an_advantage_add_nothing_but_their_share_of_the_mean(
    make: Make, model_dir: Any
) -> None:
    model = load(model_dir)
    flat = [
        [make.trajectory("ooss", group=7, member=m, score=0.5) for m in range(3)],
        [make.trajectory("ooss", group=8, score=9.0)],
    ]
    groups = [make.group(members) for members in flat]
    shares = group_shares(groups, "grpo", eps=1e-4, drop_zero_variance=False)
    sequences = sequences_by_key(shares, {"lake": 1.0})
    assert len(sequences) == 4
    got, outcome = gradient(objective(model, entropy=0.0), model, sequences)
    assert not got.any()
    assert outcome.loss == 0.0


def test_the_gap_is_the_largest_difference_on_tokens_of_the_version(
    make: Make, model_dir: Any
) -> None:
    model = load(model_dir)
    exact = make.as_sampled(make.trajectory("ooss", version=2), model)
    segment = exact.segments[0]
    off = replace(
        segment.pieces[1], logprobs=segment.pieces[1].logprobs + np.array([0.0, 0.25], np.float32)
    )
    shifted = replace(
        make.trajectory("ooss", member=1, version=2),
        segments=(replace(segment, pieces=(segment.pieces[0], off)),),
    )
    older = make.trajectory("ooss", member=2, version=1, logprob=-30.0)
    sequences = {
        s.key: s for t in (exact, shifted, older) for s in sequences_of(t, temperature=1.0)
    }
    made = objective(model, budget=4)
    model.zero_grad()
    assert made.backward(sequences, version=2).gap == pytest.approx(0.25, abs=1e-6)
    assert made.backward(sequences, version=3).gap is None
    assert made.backward(sequences).gap is None
    gap = made.gap(sequences, 2)
    assert (gap.tokens, gap.maximum) == (4, pytest.approx(0.25, abs=1e-6))
    assert gap.mean == pytest.approx(0.0625, abs=1e-6)
    assert made.gap({}, 2).tokens == 0


def test_an_engines_nan_shows_as_an_infinite_gap(make: Make, model_dir: Any) -> None:
    trajectory = make.trajectory("oss", logprob=math.nan)
    (sequence,) = sequences_of(trajectory, temperature=1.0)
    assert objective(load(model_dir)).gap({sequence.key: sequence}, 0).maximum == math.inf


def test_a_sequence_that_no_micro_batch_can_hold_is_refused(make: Make, model_dir: Any) -> None:
    with pytest.raises(ValueError, match="more than the 10 a row may hold"):
        objective(load(model_dir), budget=10).backward(
            {s.key: s for s in sequences_of(make.trajectory("o" * 11 + "s"), temperature=1.0)}
        )
