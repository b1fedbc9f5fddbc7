from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.observe.intervals import (
    Interval,
    append_joined,
    busy_share,
    clipped,
    intersection,
    merged,
    total,
)

MOST = 40
intervals = st.lists(
    st.tuples(st.integers(0, MOST), st.integers(0, MOST)).map(
        lambda pair: (float(min(pair)), float(max(pair)))
    ),
    max_size=12,
)


def cells(spans: list[Interval]) -> set[int]:
    """The unit cells that intervals with whole bounds cover: the slow, plain truth."""
    return {cell for begin, end in spans for cell in range(int(begin), int(end))}


@given(intervals)
def test_the_union_covers_the_same_once_in_order(spans: list[Interval]) -> None:
    union = merged(spans)
    assert cells(union) == cells(spans)
    assert total(spans) == len(cells(spans))
    assert all(one[1] < two[0] for one, two in pairwise(union))


@given(intervals, intervals)
def test_the_intersection_covers_what_both_cover(one: list[Interval], two: list[Interval]) -> None:
    common = intersection(one, two)
    assert cells(common) == cells(one) & cells(two)
    assert merged(common) == common
    assert total(intersection(two, one)) == total(common)


@given(intervals, st.integers(0, MOST), st.integers(0, MOST))
def test_clipping_keeps_what_is_inside(spans: list[Interval], begin: int, end: int) -> None:
    window = (float(begin), float(end))
    assert cells(clipped(spans, window)) == cells(spans) & set(range(begin, end))


@given(intervals)
def test_joining_as_they_come_changes_nothing_that_is_covered(spans: list[Interval]) -> None:
    kept: list[Interval] = []
    for span in spans:
        append_joined(kept, span)
    assert cells(kept) == cells(spans)


def test_intervals_that_follow_on_each_other_are_kept_as_one() -> None:
    kept: list[Interval] = []
    for tick in range(1000):
        append_joined(kept, (tick * 0.5, tick * 0.5 + 0.5))
    assert kept == [(0.0, 500.0)]


def test_a_share_is_of_the_window_and_zero_in_an_empty_one() -> None:
    assert busy_share([(0.0, 2.0), (1.0, 3.0), (8.0, 99.0)], (0.0, 10.0)) == pytest.approx(0.5)
    assert busy_share([(0.0, 2.0)], (5.0, 5.0)) == 0.0
