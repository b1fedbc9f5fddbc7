import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from rollart.core.types import Disposition
from rollart.observe.bias import (
    DomainBias,
    Leavings,
    Redundancy,
    bias_of,
    bins_of,
    middle,
    redundancy_of,
    survival_of,
    worth_showing,
)

TRAINED, SURPLUS, STALE = Disposition.TRAINED, Disposition.SURPLUS, Disposition.STALE


class One(NamedTuple):
    seconds: float
    reward: float


Draw = Callable[[random.Random], One]


def two_lengths(rng: random.Random) -> One:
    """Half are long, and the long are better: success in 0.6 of them, in 0.2 of the short."""
    long = rng.random() < 0.5
    return One(5.0 if long else 1.0, float(rng.random() < (0.6 if long else 0.2)))


def smeared(rng: random.Random) -> One:
    one = two_lengths(rng)
    return One(one.seconds * rng.uniform(0.8, 1.2), one.reward)


def raced(
    draw: Draw, groups: int, *, started: int, kept: int, seed: int = 1
) -> tuple[Leavings, float, float]:
    """Groups that keep the first to finish and end the others then.

    Returns also the mean reward and the share of long ones of all that were started, which the
    events do not tell.
    """
    rng = random.Random(seed)
    leavings, everyone = Leavings(), list[One]()
    for _ in range(groups):
        members = [draw(rng) for _ in range(started)]
        everyone += members
        members.sort(key=lambda one: one.seconds)
        full_at = members[kept - 1].seconds
        for place, one in enumerate(members):
            if place < kept:
                leavings.add(one.seconds, TRAINED, censored=False, score=one.reward)
            else:
                leavings.add(full_at, SURPLUS, censored=True, score=None)
    rewards = [one.reward for one in everyone]
    longs = [one.seconds > 3.0 for one in everyone]
    return leavings, sum(rewards) / len(rewards), sum(longs) / len(longs)


def fixed(draw: Draw, groups: int, *, members: int, spares: int) -> Leavings:
    """Groups whose members are chosen before the start; spares leave when the members are done."""
    rng = random.Random(2)
    leavings = Leavings()
    for _ in range(groups):
        chosen = [draw(rng) for _ in range(members)]
        done_at = max(one.seconds for one in chosen)
        for one in chosen:
            leavings.add(one.seconds, TRAINED, censored=False, score=one.reward)
        for _ in range(spares):
            spare = draw(rng)
            if spare.seconds > done_at:
                leavings.add(done_at, SURPLUS, censored=True, score=None)
            else:
                leavings.add(spare.seconds, SURPLUS, censored=False, score=spare.reward)
    return leavings


def of(leavings: Leavings) -> DomainBias:
    return bias_of("d", len(leavings), leavings)


@pytest.mark.parametrize("draw", [two_lengths, smeared])
def test_keeping_the_first_to_finish_is_seen_to_favour_the_short_and_by_how_much(
    draw: Draw,
) -> None:
    leavings, true_reward, true_long = raced(draw, 3000, started=12, kept=8)
    found = of(leavings)
    assert (found.started, found.kept, dict(found.dropped)) == (36_000, 24_000, {"surplus": 12_000})
    assert found.censored == 12_000
    # The figures of such a race: long ones are 26 % of the kept, and 0.307 of them succeed.
    assert found.reward_kept == pytest.approx(0.305, abs=0.01)
    assert found.slow_kept is not None
    assert found.slow_started is not None
    # What the events do not tell is estimated from what they do.
    assert true_reward == pytest.approx(0.40, abs=0.01)
    assert found.reward_started == pytest.approx(true_reward, abs=0.02)
    assert found.slow_started == pytest.approx(true_long, abs=0.02)
    assert found.slow_kept == pytest.approx(0.26, abs=0.02)
    assert found.notable


def test_the_error_of_the_estimate_says_how_far_it_may_be_off() -> None:
    off: list[float] = []
    for seed in range(30):
        leavings, true_reward, _ = raced(two_lengths, 40, started=12, kept=8, seed=seed)
        found = of(leavings)
        assert found.reward_started is not None
        assert found.reward_started_error is not None
        off.append(abs(found.reward_started - true_reward) / found.reward_started_error)
    assert sum(one < 2.0 for one in off) >= 0.8 * len(off)
    many, few = (raced(two_lengths, 100, started=12, kept=kept)[0] for kept in (11, 7))
    assert (of(few).reward_started_error or 0.0) > 1.5 * (of(many).reward_started_error or 0.0)


def test_members_chosen_before_the_start_show_no_bias() -> None:
    found = of(fixed(smeared, 2000, members=8, spares=4))
    assert not found.notable
    assert found.reward_kept is not None
    assert found.reward_finished is not None
    assert found.reward_kept == pytest.approx(0.4, abs=0.01)
    assert abs(found.reward_kept - found.reward_finished) < 0.01
    assert found.slow_kept == pytest.approx(found.slow_started, abs=0.02)


def discarding() -> Leavings:
    """48 problems of 1 s are trained; 16 of 5 s are begun again and again, and never are."""
    leavings = Leavings()
    for _ in range(48):
        leavings.add(1.0, TRAINED, censored=False, score=1.0)
    for _ in range(16):
        leavings.add(5.0, STALE, censored=False, score=0.0)
    return leavings


def test_slow_problems_that_are_never_trained_are_listed_by_their_duration() -> None:
    found = of(discarding())
    assert [(b.upto_s, b.left, b.kept, b.dropped) for b in found.bins] == [
        (1.0, 48, 48, ()),
        (5.0, 16, 0, (("stale", 16),)),
    ]
    assert (found.slow_s, found.slow_started, found.slow_kept) == (1.0, 0.25, 0.0)
    assert (found.reward_kept, found.reward_started) == (1.0, 0.75)


def test_slow_problems_that_are_never_trained_are_notable_in_a_whole_run() -> None:
    leavings = Leavings()
    for _ in range(5):
        for _ in range(48):
            leavings.add(1.0, TRAINED, censored=False, score=1.0)
        for _ in range(16):
            leavings.add(2.9, STALE, censored=True, score=None)
    for _ in range(2):
        leavings.add(5.0, TRAINED, censored=False, score=0.0)
    found = of(leavings)
    assert found.notable
    assert found.slow_started == pytest.approx(82 / 322)


def test_bins_are_deciles_that_hold_every_trajectory_once() -> None:
    leavings = Leavings()
    rng = random.Random(3)
    for _ in range(1000):
        leavings.add(rng.expovariate(1.0), TRAINED, censored=False, score=None)
    bins = bins_of(leavings)
    assert [b.left for b in bins] == [100] * 10
    assert sum(b.kept for b in bins) == 1000
    edges = [b.upto_s for b in bins]
    assert edges == sorted(edges)


def test_equal_scores_that_are_filtered_are_no_selection_by_time() -> None:
    leavings = Leavings()
    for _ in range(500):
        leavings.add(1.0, TRAINED, censored=False, score=1.0)
        leavings.add(5.0, Disposition.FILTERED, censored=False, score=0.0)
    found = of(leavings)
    assert found.slow_kept == 0.0
    assert not found.notable


def test_without_censoring_the_estimate_is_the_plain_mean() -> None:
    rng = random.Random(4)
    leavings = Leavings()
    scores = [rng.random() for _ in range(200)]
    for score in scores:
        leavings.add(rng.random(), TRAINED, censored=False, score=score)
    assert of(leavings).reward_started == pytest.approx(np.mean(scores))


def test_shares_are_those_of_the_product_limit_estimate() -> None:
    # A textbook case by hand: ends at 1, 3, 4; censored at 2 and 4.
    survival = survival_of(
        np.array([1.0, 2.0, 3.0, 4.0, 4.0]), np.array([False, True, False, False, True])
    )
    assert survival.shares == pytest.approx([4 / 5, 4 / 5 * 2 / 3, 0.0])
    weights = survival.weights(
        np.array([1.0, 2.0, 3.0, 4.0, 4.0]), np.array([False, True, False, False, True])
    )
    assert weights == pytest.approx([1 / 5, 0, 4 / 15, 8 / 15, 0])


def test_few_or_equal_durations_have_no_middle() -> None:
    assert of(Leavings()).slow_s is None
    leavings = Leavings()
    leavings.add(1.0, TRAINED, censored=False, score=None)
    leavings.add(1.0, SURPLUS, censored=True, score=None)
    found = of(leavings)
    assert (found.slow_s, found.reward_kept, found.notable) == (None, None, False)
    only_censored = Leavings()
    only_censored.add(1.0, SURPLUS, censored=True, score=None)
    assert of(only_censored).reward_started is None
    assert middle(survival_of(np.zeros(0), np.zeros(0, np.bool_))) is None


def test_the_bias_is_shown_where_spares_are_declared_or_time_decides() -> None:
    even = of(fixed(smeared, 50, members=8, spares=0))
    raced_ones, *_ = raced(two_lengths, 100, started=12, kept=8)
    assert not worth_showing([even], Redundancy())
    assert worth_showing([even], redundancy_of('{"redundancy": {"members": 2, "mode": "race"}}'))
    assert worth_showing([even, of(raced_ones)], Redundancy())
    for config in ("", "no json", "{}", '{"redundancy": 3}'):
        assert not redundancy_of(config)
