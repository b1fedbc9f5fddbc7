"""The policy loss: values and gradients by hand in float64, masks, weights, metrics."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from rollart.algorithms.losses import (
    LossInputs,
    LossMetrics,
    LossSettings,
    policy_loss,
    token_weight,
)

NAN, INF = math.nan, math.inf
PLAIN = LossSettings()  # clip 0.2 / 0.28, no entropy bonus


def f64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def make_inputs(
    logprobs: Tensor,
    behaviour: Sequence[float],
    advantages: Sequence[float],
    *,
    mask: Sequence[bool] | None = None,
    weights: Sequence[float] | None = None,
    entropy: Tensor | None = None,
    proximal: Sequence[float] | None = None,
) -> LossInputs:
    n = len(behaviour)
    return LossInputs(
        logprobs=logprobs,
        entropy=torch.zeros(n, dtype=torch.float64) if entropy is None else entropy,
        behaviour_logprobs=f64(behaviour),
        proximal_logprobs=None if proximal is None else f64(proximal),
        advantages=f64(advantages),
        weights=f64([1.0 / n] * n if weights is None else weights),
        mask=torch.tensor([True] * n if mask is None else mask, dtype=torch.bool),
    )


def assert_the_clip_is_the_asymmetric_one(settings: LossSettings) -> None:
    # Ratios e^0.5 = 1.6487213 and e^-0.5 = 0.6065307, each with A = 1 and A = -1:
    #   A =  1, r = 1.6487: min(1.6487, 1.28)   =  1.28     clipped, gradient 0
    #   A = -1, r = 1.6487: min(-1.6487, -1.28) = -1.6487   gradient of -r A: 1.6487
    #   A =  1, r = 0.6065: min(0.6065, 0.8)    =  0.6065   gradient -0.6065
    #   A = -1, r = 0.6065: min(-0.6065, -0.8)  = -0.8      clipped, gradient 0
    # loss = -(1.28 - 1.6487213 + 0.6065307 - 0.8) / 4 = 0.1405477
    logprobs = f64([-1.0, -1.0, -2.0, -2.0]).requires_grad_()
    inputs = make_inputs(logprobs, [-1.5, -1.5, -1.5, -1.5], [1.0, -1.0, 1.0, -1.0])
    loss, metrics = policy_loss(inputs, settings)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == pytest.approx(0.1405477, abs=1e-7)
    assert gradient.tolist() == pytest.approx([0, 1.6487213 / 4, -0.6065307 / 4, 0], abs=1e-7)
    assert metrics.clip_fraction == 0.5


def test_loss_and_gradient_of_the_clipped_surrogate_are_those_by_hand() -> None:
    assert_the_clip_is_the_asymmetric_one(PLAIN)
    with pytest.raises(AssertionError):
        assert_the_clip_is_the_asymmetric_one(LossSettings(clip_low=0.2, clip_high=0.2))


def test_metrics_of_a_micro_batch_are_those_by_hand() -> None:
    # Log-ratios 0.5 and -0.5; the third token is masked.
    #   ratio mean (1.6487213 + 0.6065307) / 2 = 1.1276260, maximum 1.6487213
    #   k3: e^0.5 - 1 - 0.5 = 0.1487213 and e^-0.5 - 1 + 0.5 = 0.1065307, mean 0.1276260
    logprobs = f64([-1.0, -2.0, NAN]).requires_grad_()
    inputs = make_inputs(
        logprobs,
        [-1.5, -1.5, -1.5],
        [-1.0, -1.0, -1.0],
        mask=[True, True, False],
        entropy=f64([0.25, 0.75, NAN]),
    )
    _, metrics = policy_loss(inputs, PLAIN)
    assert metrics.tokens == 2
    assert metrics.clip_fraction == 0.5
    assert metrics.ratio_mean == pytest.approx(1.1276260, abs=1e-7)
    assert metrics.ratio_max == pytest.approx(1.6487213, abs=1e-7)
    assert metrics.approx_kl == pytest.approx(0.1276260, abs=1e-7)
    assert metrics.entropy_mean == pytest.approx(0.5)
    assert metrics.importance_mean == 1.0
    assert metrics.truncated_fraction == 0.0


def test_merged_metrics_weigh_every_token_the_same() -> None:
    # Ratio means 2 over 1 token and 1 over 3 tokens: (2 + 3) / 4 = 1.25, not 1.5.
    one = LossMetrics(tokens=1, ratio_sum=2.0, ratio_max=2.0, clipped=1)
    three = LossMetrics(tokens=3, ratio_sum=3.0, ratio_max=1.5)
    for merged in (one.merge(three), three.merge(one)):
        assert merged.ratio_mean == 1.25
        assert merged.ratio_max == 2.0
        assert merged.clip_fraction == 0.25


def test_the_entropy_bonus_lowers_the_loss_by_its_weighted_entropy() -> None:
    # Advantages 0, so only the bonus is left: -0.01 · (0.75 · 0.5 + 0.25 · 1.5) = -0.0075.
    entropy = f64([0.5, 1.5]).requires_grad_()
    logprobs = f64([-1.0, -1.0]).requires_grad_()
    inputs = make_inputs(logprobs, [-1.0, -1.0], [0.0, 0.0], weights=[0.75, 0.25], entropy=entropy)
    loss, _ = policy_loss(inputs, LossSettings(entropy_coef=0.01))
    (gradient,) = torch.autograd.grad(loss, entropy)
    assert loss.item() == pytest.approx(-0.0075)
    assert gradient.tolist() == pytest.approx([-0.0075, -0.0025])


def assert_importance_is_truncated_and_constant(settings: LossSettings) -> None:
    # New - proximal = 0.1: r = 1.1051709 (inside the clip), A = 1.
    #   proximal - behaviour = 2:   w = min(7.389, 2) = 2 (truncated)
    #   proximal - behaviour = 0.2: w = 1.2214028
    # loss = -(2 + 1.2214028) · 1.1051709 / 2 = -1.7801003; r's derivative is r, w has none.
    logprobs = f64([-0.9, -0.9]).requires_grad_()
    inputs = make_inputs(logprobs, [-3.0, -1.2], [1.0, 1.0], proximal=[-1.0, -1.0])
    loss, metrics = policy_loss(inputs, settings)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss.item() == pytest.approx(-1.7801003, abs=1e-7)
    assert gradient.tolist() == pytest.approx([-1.1051709, -0.6749294], abs=1e-7)
    assert metrics.truncated_fraction == 0.5
    assert metrics.importance_mean == pytest.approx(1.6107014, abs=1e-7)
    assert metrics.clip_fraction == 0.0


def test_truncated_importance_sampling_gives_the_values_by_hand() -> None:
    assert_importance_is_truncated_and_constant(LossSettings(correction="truncated_is"))
    with pytest.raises(AssertionError):  # the planted bug: a weight that is not truncated
        assert_importance_is_truncated_and_constant(
            LossSettings(correction="truncated_is", importance_cap=1e9)
        )


def test_proximal_log_probs_are_constants_even_when_they_come_with_a_graph() -> None:
    # r = 1 and w = min(e^2, 2) = 2, a constant: the derivative of -w r is -2. Through the graph
    # of the proximal policy r would be constant too, and the derivative 0.
    logprobs = f64([-1.0]).requires_grad_()
    data = make_inputs(logprobs, [-3.0], [1.0], proximal=[0.0])
    inputs = dataclasses.replace(data, proximal_logprobs=logprobs * 1.0)
    loss, metrics = policy_loss(inputs, LossSettings(correction="truncated_is"))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert metrics.ratio_mean == 1.0
    assert gradient.item() == -2.0


Behaviour = Callable[[Tensor, Tensor], Tensor]


def assert_the_ratio_is_new_against_behaviour(recorded: Behaviour) -> None:
    """`recorded(at sampling, now)` is what the loss is told about the sampling policy."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 5, dtype=torch.float64)
    states, ids = torch.randn(6, 3, dtype=torch.float64), torch.randint(5, (6, 1))

    def score() -> Tensor:
        return torch.log_softmax(model(states), -1).gather(-1, ids).squeeze(-1)

    sampled = score().detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    now = score()
    behaviour = recorded(sampled, now.detach()).tolist()
    _, metrics = policy_loss(make_inputs(now, behaviour, [1.0] * 6), PLAIN)
    expected = (now.detach() - sampled).exp()
    assert metrics.ratio_max == pytest.approx(expected.max().item())
    assert metrics.ratio_mean == pytest.approx(expected.mean().item())
    assert abs(metrics.ratio_max - 1.0) > 0.05
    assert metrics.clipped > 0


def test_stale_tokens_have_a_ratio_other_than_one() -> None:
    assert_the_ratio_is_new_against_behaviour(lambda sampled, now: sampled)
    with pytest.raises(AssertionError):  # the planted bug: the denominator is recomputed
        assert_the_ratio_is_new_against_behaviour(lambda sampled, now: now)


Loss = Callable[[LossInputs], Tensor]


def assert_masked_positions_reach_neither_loss_nor_gradient(loss_of: Loss) -> None:
    for junk in (NAN, INF, -INF, 1e300):
        logprobs = f64([-1.0, junk, -1.2, junk]).requires_grad_()
        entropy = f64([0.5, junk, 0.7, junk]).requires_grad_()
        inputs = make_inputs(
            logprobs,
            [-1.1, junk, -1.2, -1.0],
            [1.0, junk, -2.0, 1.0],
            mask=[True, False, True, False],
            weights=[0.5, junk, 0.5, junk],
            entropy=entropy,
        )
        loss = loss_of(inputs)
        gradients = torch.autograd.grad(loss, (logprobs, entropy))
        # r = e^0.1 and 1: loss = -(1.1051709 - 2) / 2 - 0.01 · (0.5 + 0.7) / 2
        assert loss.item() == pytest.approx(0.4474145 - 0.006, abs=1e-7)
        assert gradients[0].tolist() == pytest.approx([-0.5525855, 0.0, 1.0, 0.0], abs=1e-7)
        assert gradients[1].tolist() == pytest.approx([-0.005, 0.0, -0.005, 0.0])


def multiply_by_the_mask(inputs: LossInputs) -> Tensor:
    """The planted bug: 0 · NaN."""
    gain = (inputs.logprobs - inputs.behaviour_logprobs).exp() * inputs.advantages
    bonus = 0.01 * inputs.entropy
    return -(inputs.mask * inputs.weights * (gain + bonus)).sum()


def test_whatever_stands_at_a_masked_position_does_not_leak() -> None:
    settings = LossSettings(entropy_coef=0.01)
    assert_masked_positions_reach_neither_loss_nor_gradient(
        lambda inputs: policy_loss(inputs, settings)[0]
    )
    with pytest.raises(AssertionError):
        assert_masked_positions_reach_neither_loss_nor_gradient(multiply_by_the_mask)


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("proximal", [None, NAN])
def test_a_fully_masked_micro_batch_gives_zero_with_a_graph(
    tokens: int, proximal: float | None
) -> None:
    logprobs = f64([-INF] * tokens).requires_grad_()
    entropy = f64([NAN] * tokens).requires_grad_()
    inputs = make_inputs(
        logprobs,
        [NAN] * tokens,
        [NAN] * tokens,
        mask=[False] * tokens,
        weights=[INF] * tokens,
        entropy=entropy,
        proximal=None if proximal is None else [proximal] * tokens,
    )
    correction = "behaviour" if proximal is None else "truncated_is"
    loss, metrics = policy_loss(inputs, LossSettings(entropy_coef=0.01, correction=correction))
    assert loss.requires_grad
    assert loss.shape == ()
    assert loss.item() == 0.0
    for gradient in torch.autograd.grad(loss, (logprobs, entropy)):
        assert gradient.tolist() == [0.0] * tokens
    assert metrics == LossMetrics()
    assert (metrics.clip_fraction, metrics.ratio_mean, metrics.approx_kl) == (0.0, 0.0, 0.0)


def test_one_broken_log_prob_does_not_overflow() -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    inputs = make_inputs(logprobs, [-1.0, -500.0], [-1.0, -1.0])
    loss, metrics = policy_loss(inputs, PLAIN)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert math.isfinite(loss.item())
    assert gradient.tolist() == [0.5, 0.0]
    assert math.isfinite(metrics.approx_kl)


# ---- weights: the share of a token in the loss of the batch ----

Aggregate = Callable[[Sequence[tuple[Tensor, Tensor]]], float]
"""From (advantages, mask) of each rank, all ratios 1, to the loss of the batch."""


def sum_of_shares(ranks: Sequence[tuple[Tensor, Tensor]]) -> float:
    batch_tokens = sum(int(mask.sum()) for _, mask in ranks)
    total = 0.0
    for advantages, mask in ranks:
        count = int(mask.sum())
        weight = token_weight(
            "token_mean",
            trajectory_tokens=count,
            batch_tokens=batch_tokens,
            batch_trajectories=len(ranks),
        )
        logprobs = torch.zeros(len(mask), dtype=torch.float64, requires_grad=True)
        inputs = make_inputs(
            logprobs,
            [0.0] * len(mask),
            advantages.tolist(),
            mask=mask.tolist(),
            weights=[weight] * len(mask),
        )
        total += policy_loss(inputs, PLAIN)[0].item()
    return total


def mean_of_means(ranks: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The planted bug: each rank divides by its own tokens."""
    means = [-advantages[mask].mean().item() for advantages, mask in ranks]
    return sum(means) / len(means)


def assert_ten_tokens_of_loss_one_and_ninety_of_zero_give_a_tenth(aggregate: Aggregate) -> None:
    rank_a = (-torch.ones(12, dtype=torch.float64), torch.arange(12) < 10)
    rank_b = (torch.zeros(95, dtype=torch.float64), torch.arange(95) < 90)
    assert aggregate([rank_a, rank_b]) == pytest.approx(0.10)


def test_the_token_mean_is_taken_over_the_whole_batch() -> None:
    assert_ten_tokens_of_loss_one_and_ninety_of_zero_give_a_tenth(sum_of_shares)
    with pytest.raises(AssertionError):
        assert_ten_tokens_of_loss_one_and_ninety_of_zero_give_a_tenth(mean_of_means)


def test_a_correction_without_its_log_probs_is_refused() -> None:
    inputs = make_inputs(f64([0.0]), [0.0], [1.0])
    with pytest.raises(ValueError, match="needs proximal_logprobs"):
        policy_loss(inputs, LossSettings(correction="truncated_is"))


def test_log_probs_that_the_correction_would_ignore_are_refused() -> None:
    inputs = make_inputs(f64([0.0]), [0.0], [1.0], proximal=[0.0])
    with pytest.raises(ValueError, match="does not use proximal_logprobs"):
        policy_loss(inputs, PLAIN)


def test_shapes_that_would_broadcast_are_refused() -> None:
    inputs = make_inputs(f64([0.0]), [0.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"logprobs has shape \(1,\), the mask \(2,\)"):
        policy_loss(inputs, PLAIN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"entropy_coef": NAN}, "entropy_coef is nan"),
        ({"importance_cap": 0.5}, "importance_cap is 0.5"),
        ({"correction": "none"}, "use one of behaviour, truncated_is"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossSettings(**settings)  # pyright: ignore[reportArgumentType]
