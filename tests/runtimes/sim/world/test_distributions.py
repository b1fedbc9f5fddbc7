"""Distributions: what they draw, and what is no distribution."""

import math
import subprocess
import sys
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollart.runtimes.sim.world.distributions import (
    Distribution,
    Lognormal,
    Normal,
    Tail,
    counter,
    drawer,
    least,
    mean_of,
    most_of,
    place,
    places_of,
)

PLACES = [place("draw", number) for number in range(20_000)]


def read(spelled: object) -> Distribution:
    return Distribution.model_validate(spelled)


def draws(spelled: object) -> list[float]:
    draw = drawer(read(spelled))
    return [draw(at) for at in PLACES]


def test_places_lie_within_0_and_1_and_are_spread_evenly() -> None:
    assert all(0 < at < 1 for at in PLACES)
    tenths = [sum(int(at * 10) == tenth for at in PLACES) for tenth in range(10)]
    assert all(abs(count - 2000) < 200 for count in tenths)


def test_a_place_follows_from_its_name_in_every_process() -> None:
    script = "from rollart.runtimes.sim.world.distributions import place; print(place('a', 1, 'b'))"
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "src"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said == [f"{place('a', 1, 'b')}\n"] * 2
    assert place("a", 1) != place("a", "1")


def test_the_short_way_to_a_place_leads_there() -> None:
    at = places_of(7, "step")
    for name in ("", "lake/task-1/g1.0.0", "Wörter/日本"):
        for turn in (0, 1, 99):
            assert at(name, turn) == place(7, "step", name, turn)


@pytest.mark.parametrize(
    ("spelled", "mean"),
    [
        (2.5, 2.5),
        ({"uniform": [10, 30]}, 20.0),
        ({"exponential": 60}, 60.0),
        ({"lognormal": {"median": 150, "sigma": 0.7}}, 150 * math.exp(0.245)),
        ({"lognormal": {"mean": 4000, "sigma": 0.9}}, 4000.0),
        ({"normal": {"mean": 10, "sigma": 3}}, 10.0),
        ({"normal": {"mean": 10, "sigma": 10}}, 12.876),
        ({"normal": {"mean": 10, "sigma": 0}}, 10.0),
        ({"values": [1, 1, 4]}, 2.0),
    ],
)
def test_draws_have_the_mean_that_is_said_of_them(spelled: object, mean: float) -> None:
    assert mean_of(read(spelled)) == pytest.approx(mean, rel=2e-3)
    assert fmean(draws(spelled)) == pytest.approx(mean, rel=0.03)


def test_a_lognormal_by_its_median_has_it() -> None:
    assert median(draws({"lognormal": {"median": 12, "sigma": 0.55}})) == pytest.approx(
        12, rel=0.02
    )


def test_nothing_below_0_is_drawn_from_a_normal() -> None:
    assert min(draws({"normal": {"mean": 1, "sigma": 100}})) >= 0


@given(st.floats(min_value=2**-53, max_value=1 - 2**-53))
def test_every_place_gives_a_finite_value_that_is_not_negative(at: float) -> None:
    tail = Tail(chance=0.3, up_to=9)
    for distribution in (
        Distribution(exponential=3, tail=tail),
        Distribution(lognormal=Lognormal(median=3, sigma=2), tail=tail),
        Distribution(normal=Normal(mean=3, sigma=50), tail=tail),
        Distribution(uniform=(0, 4), tail=tail),
        Distribution(values=(1, 2), tail=tail),
    ):
        assert 0 <= drawer(distribution)(at) < math.inf
        assert counter(distribution)(at) >= 1


def test_a_tail_comes_as_often_and_reaches_as_far_as_it_says() -> None:
    found = draws({"constant": 10, "tail": {"chance": 0.1, "up_to": 40}})
    tail = [value for value in found if value != 10]
    assert len(tail) / len(found) == pytest.approx(0.1, rel=0.1)
    assert min(tail) >= 10
    assert 380 < max(tail) <= 400
    assert max(draws({"exponential": 10, "tail": {"chance": 0.1, "up_to": 40}, "most": 50})) == 50


def test_counts_are_whole_from_1_on_and_a_uniform_one_has_both_its_ends() -> None:
    count = counter(read({"uniform": [1, 4]}))
    found = [count(at) for at in PLACES]
    assert all(abs(found.count(value) - 5000) < 300 for value in (1, 2, 3, 4))
    assert set(found) == {1, 2, 3, 4}
    assert {counter(read({"exponential": 0.01}))(at) for at in PLACES} == {1}


@pytest.mark.parametrize(
    ("spelled", "told"),
    [
        ({}, "says no shape"),
        ({"constant": 1, "exponential": 2}, "says constant and exponential"),
        ({"uniform": [4, 1]}, "from more to less"),
        ({"exponential": -1}, "greater than 0"),
        (-1, "greater than or equal to 0"),
        (True, "valid dictionary"),
        ({"lognormal": {"sigma": 1}}, "needs a median or a mean"),
        ({"lognormal": {"median": 1, "mean": 1, "sigma": 1}}, "needs a median or a mean"),
        ({"values": []}, "at least 1 item"),
        ({"tail": {"chance": 0.1, "up_to": 2}}, "says no shape"),
    ],
)
def test_what_is_no_distribution_is_refused(spelled: object, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        read(spelled)


@pytest.mark.parametrize(
    ("spelled", "low", "high"),
    [
        (3, 3, 3),
        ({"uniform": [2, 9]}, 2, 9),
        ({"values": [4, 1, 7]}, 1, 7),
        ({"uniform": [2, 9], "most": 5}, 2, 5),
        ({"exponential": 5}, 0, math.inf),
        ({"exponential": 5, "most": 50}, 0, 50),
        ({"constant": 3, "tail": {"chance": 0.5, "up_to": 4}}, 3, 12),
        ({"normal": {"mean": 3, "sigma": 1}}, 0, math.inf),
    ],
)
def test_what_no_draw_is_below_or_above_is_known(spelled: object, low: float, high: float) -> None:
    distribution, drawn = read(spelled), draws(spelled)
    assert least(distribution) == pytest.approx(low, abs=1e-6)
    assert most_of(distribution) == high
    assert least(distribution) <= min(drawn)
    assert max(drawn) <= high
