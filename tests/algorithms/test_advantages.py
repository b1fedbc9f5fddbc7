"""Group advantages: values by hand, bounds, and the groups that have no signal."""

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.algorithms.advantages import (
    ADVANTAGE_ESTIMATORS,
    AdvantageEstimator,
    group_advantages,
)

Scores = Sequence[float | None]
Estimate = Callable[[Scores], Sequence[float | None]]

estimators = st.sampled_from(ADVANTAGE_ESTIMATORS)
score_values = st.floats(-1e6, 1e6, allow_nan=False)
groups = st.lists(st.none() | score_values, max_size=16)


def estimate_with(estimator: AdvantageEstimator, eps: float = 0.0) -> Estimate:
    return lambda scores: group_advantages(scores, estimator, eps=eps)


# By hand for [1, 0, 0, 0]: mean 1/4; squared deviations 9/16 and 3 times 1/16, sum 3/4, divided
# by 4: 3/16; s = √3/4 = 0.4330127.
#   grpo       0.75 / 0.4330127 = √3 = 1.7320508      -0.25 / 0.4330127 = -0.5773503
#   dr_grpo    0.75                                   -0.25
#   rloo       1 - 0 = 1                              0 - (1 + 0 + 0)/3 = -0.3333333
#   rloo_norm  1 / 0.4330127 = 2.3094011              -0.3333333 / 0.4330127 = -0.7698004
BY_HAND: tuple[tuple[AdvantageEstimator, float, float], ...] = (
    ("grpo", 1.7320508, -0.5773503),
    ("dr_grpo", 0.75, -0.25),
    ("rloo", 1.0, -0.3333333),
    ("rloo_norm", 2.3094011, -0.7698004),
)


@pytest.mark.parametrize(("estimator", "winner", "loser"), BY_HAND)
def test_each_estimator_gives_the_value_worked_out_by_hand(
    estimator: AdvantageEstimator, winner: float, loser: float
) -> None:
    got = group_advantages([1.0, 0.0, 0.0, 0.0], estimator, eps=0.0)
    assert got == pytest.approx((winner, loser, loser, loser), abs=1e-7)


def test_eps_is_added_to_the_population_spread() -> None:
    # 0.75 / (0.4330127 + 0.05) = 1.5527541; the sample spread (0.5) would give 1.3636364.
    got = group_advantages([1.0, 0.0, 0.0, 0.0], "grpo", eps=0.05)
    assert got[0] == pytest.approx(1.5527541, abs=1e-6)


def assert_bounded_by_the_group_size(estimate: Estimate) -> None:
    for scores in ([1.0, 0.0, 0.0, 0.0], [0.0] + [0.95] * 7):
        for advantage in estimate(scores):
            assert advantage is not None
            assert abs(advantage) <= len(scores)


def divide_by_the_spread_of_the_others(scores: Scores) -> list[float | None]:
    """The planted bug: the others of the one winner have no spread at all."""
    out: list[float | None] = []
    for member, score in enumerate(scores):
        assert score is not None
        others = [other for i, other in enumerate(scores) if i != member and other is not None]
        spread = math.sqrt(fmean((other - fmean(others)) ** 2 for other in others))
        out.append((score - fmean(others)) / (spread + 1e-6))
    return out


def test_one_odd_member_never_gets_more_than_the_group_size() -> None:
    for estimator in ADVANTAGE_ESTIMATORS:
        assert_bounded_by_the_group_size(estimate_with(estimator))
    with pytest.raises(AssertionError):
        assert_bounded_by_the_group_size(divide_by_the_spread_of_the_others)


@given(st.lists(score_values, min_size=2, max_size=16), st.sampled_from([0.0, 1e-6, 0.05]))
def test_normalised_advantages_keep_the_documented_bounds(scores: list[float], eps: float) -> None:
    n = len(scores)
    slack = 1.0 + 1e-6
    for advantage in group_advantages(scores, "grpo", eps=eps):
        assert advantage is not None
        assert abs(advantage) <= math.sqrt(n - 1) * slack
    for advantage in group_advantages(scores, "rloo_norm", eps=eps):
        assert advantage is not None
        assert abs(advantage) <= n / math.sqrt(n - 1) * slack


def assert_siblings_without_a_verdict_change_nothing(estimate: Estimate) -> None:
    alone = estimate([1.0, 0.0, 0.5])
    beside = estimate([None, 1.0, None, 0.0, 0.5, None])
    assert [beside[i] for i in (1, 3, 4)] == pytest.approx(alone)
    assert [beside[i] for i in (0, 2, 5)] == [None, None, None]
    assert estimate([100.0, None]) == (0.0, None)
    assert estimate([None, 1.0]) == (None, 0.0)


def take_no_verdict_for_zero(scores: Scores) -> tuple[float | None, ...]:
    """The planted bug: the statistics see a reward of 0 where nobody judged."""
    got = group_advantages([score or 0.0 for score in scores], "grpo", eps=0.05)
    return tuple(None if s is None else a for s, a in zip(scores, got, strict=True))


def test_a_member_without_a_verdict_enters_no_statistic() -> None:
    for estimator in ADVANTAGE_ESTIMATORS:
        assert_siblings_without_a_verdict_change_nothing(estimate_with(estimator, 0.05))
    with pytest.raises(AssertionError):
        assert_siblings_without_a_verdict_change_nothing(take_no_verdict_for_zero)


def test_groups_with_four_three_and_one_valid_members_each_stand_alone() -> None:
    # Means 0.5, 1/3, 7: deviations by hand; the group of one is no signal, not a reward of 7.
    four = group_advantages([1.0, 0.0, 1.0, 0.0], "dr_grpo")
    three = group_advantages([None, 1.0, 0.0, 0.0], "dr_grpo")
    one = group_advantages([None, None, 7.0, None], "dr_grpo")
    assert four == pytest.approx((0.5, -0.5, 0.5, -0.5))
    assert three[0] is None
    assert three[1:] == pytest.approx((2 / 3, -1 / 3, -1 / 3))
    assert one == (None, None, 0.0, None)


@given(groups, estimators)
def test_members_with_a_score_get_a_finite_advantage_and_the_others_none(
    scores: list[float | None], estimator: AdvantageEstimator
) -> None:
    got = group_advantages(scores, estimator, eps=0.0)
    assert [a is None for a in got] == [s is None for s in scores]
    assert all(math.isfinite(a) for a in got if a is not None)


@given(score_values, st.integers(1, 16), estimators)
def test_a_group_without_variance_gives_exactly_zero(
    score: float, size: int, estimator: AdvantageEstimator
) -> None:
    assert group_advantages([score] * size, estimator, eps=0.0) == (0.0,) * size


@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
def test_scores_that_differ_by_rounding_alone_are_equal(estimator: AdvantageEstimator) -> None:
    scores = [0.1 + 0.2, 0.3, 0.3, 0.3]
    assert scores[0] != scores[1]
    assert group_advantages(scores, estimator, eps=0.0) == (0.0,) * 4


@given(groups, estimators, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(
    scores: list[float | None], estimator: AdvantageEstimator, rng: random.Random
) -> None:
    order = list(range(len(scores)))
    rng.shuffle(order)
    straight = group_advantages(scores, estimator, eps=0.05)
    shuffled = group_advantages([scores[i] for i in order], estimator, eps=0.05)
    for place, member in enumerate(order):
        if straight[member] is None:
            assert shuffled[place] is None
        else:
            assert shuffled[place] == pytest.approx(straight[member], rel=1e-12, abs=1e-9)


@given(st.lists(score_values, min_size=2, max_size=16), estimators)
def test_advantages_of_a_group_add_up_to_zero(
    scores: list[float], estimator: AdvantageEstimator
) -> None:
    got = [a for a in group_advantages(scores, estimator, eps=0.05) if a is not None]
    assert math.fsum(got) == pytest.approx(0.0, abs=1e-7 * max(1.0, *map(abs, scores)))


def assert_a_large_mean_costs_no_digits(estimate: Estimate) -> None:
    # Deviations are ±1/2 around 10^8 + 1/2, so the quotients are exactly ±1.
    assert estimate([1e8, 1e8 + 1]) == pytest.approx((-1.0, 1.0), abs=1e-6)


def variance_in_one_pass(scores: Scores) -> list[float]:
    """The planted bug: E[x²] - m², in which 10^16 cancels against itself."""
    values = np.array([score for score in scores if score is not None])
    spread = math.sqrt(max(0.0, float((values**2).mean() - values.mean() ** 2)))
    return [float(value - values.mean()) / (spread + 1e-6) for value in values]


def test_the_variance_does_not_cancel_when_the_mean_is_large() -> None:
    assert_a_large_mean_costs_no_digits(estimate_with("grpo"))
    # Leave-one-out deviations are ±1, the spread 1/2: with eps 1/2 the quotients are ±1 again.
    assert_a_large_mean_costs_no_digits(estimate_with("rloo_norm", eps=0.5))
    with pytest.raises(AssertionError):
        assert_a_large_mean_costs_no_digits(variance_in_one_pass)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="give None for a member"):
        group_advantages([1.0, bad], "grpo")


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_an_impossible_eps_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="eps is"):
        group_advantages([1.0, 0.0], "grpo", eps=bad)
