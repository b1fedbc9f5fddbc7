import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.observe.sweep import Edges, Meter, sweep

moments = st.integers(-3, 13).map(float)
spans = st.lists(st.tuples(moments, moments), max_size=12)
WINDOW = (0.0, 10.0)


@settings(deadline=None)
@given(rows=st.lists(spans, min_size=1, max_size=4))
def test_counts_are_those_of_looking_at_every_moment(rows: list[list[tuple[float, float]]]) -> None:
    found = sweep(WINDOW, [[Edges(row)] for row in rows])
    assert found.bounds[0] == WINDOW[0]
    assert found.bounds[-1] == WINDOW[1]
    assert np.all(found.lengths > 0)
    for begin, end, counts in zip(found.bounds, found.bounds[1:], found.counts.T, strict=False):
        middle = (begin + end) / 2
        assert counts.tolist() == [sum(b < middle < e for b, e in row) for row in rows]


def test_what_changed_before_the_window_holds_in_it() -> None:
    level = Edges()
    level.step(-5.0, 3)
    level.step(4.0, -1)
    found = sweep(WINDOW, [[level]])
    assert found.bounds.tolist() == [0.0, 4.0, 10.0]
    assert found.counts.tolist() == [[3, 2]]


def test_several_edges_of_one_row_add_up() -> None:
    found = sweep((0.0, 4.0), [[Edges([(0.0, 2.0)]), Edges([(1.0, 3.0)])], []])
    assert found.counts.tolist() == [[1, 2, 1, 0], [0, 0, 0, 0]]


@settings(deadline=None)
@given(spans=spans)
def test_a_meter_says_how_many_seconds_of_each_code_lie_within(
    spans: list[tuple[float, float]],
) -> None:
    found = sweep(WINDOW, [[Edges([(1.0, 3.0), (6.0, 7.0)])]])
    meter = Meter(found.bounds, (found.counts[0] > 0).astype(np.int8), 3)
    inside = [(max(b, 0.0), min(e, 10.0)) for b, e in spans if min(e, 10.0) > max(b, 0.0)]
    begins, ends = np.array(inside, np.float64).reshape(-1, 2).T
    seconds = meter.between(begins, ends)
    ones = sum(max(0.0, min(e, t) - max(b, s)) for b, e in inside for s, t in ((1, 3), (6, 7)))
    assert seconds[1] == pytest.approx(ones)
    assert seconds.sum() == pytest.approx(sum(e - b for b, e in inside))
    assert seconds[2] == 0.0
