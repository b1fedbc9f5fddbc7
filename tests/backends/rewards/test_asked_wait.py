"""Retry-After, as all platforms read it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.backends.rewards.asked_wait import asked_wait
from rollart.core.scoring.judge_calls import MOST_ASKED_S

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (" 120 ", 120.0),
        ("0.5", 0.5),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0.0),
    ],
)
def test_it_is_seconds_or_a_date(header: str, seconds: float) -> None:
    assert asked_wait(header, now=NOW) == seconds


@pytest.mark.parametrize("header", ["86400", "9" * 400, "Sun, 06 Nov 2094 08:49:47 GMT"])
def test_nobody_is_waited_for_longer_than_300_s(header: str) -> None:
    assert asked_wait(header, now=NOW) == MOST_ASKED_S == 300.0


@pytest.mark.parametrize(
    "header", [None, "", "soon", "-1", "1e9", "nan", "inf", "٣", "Sun, 06 Nov 99999 08:49:47 GMT"]
)
def test_nonsense_asks_for_nothing(header: str | None) -> None:
    assert asked_wait(header, now=NOW) is None


@given(st.text())
def test_whatever_is_said_is_bounded_or_nothing(header: str) -> None:
    asked = asked_wait(header, now=NOW)
    assert asked is None or (math.isfinite(asked) and 0.0 <= asked <= MOST_ASKED_S)
