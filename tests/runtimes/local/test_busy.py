"""Busy intervals: few records, none lost, none invented."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rollart.runtimes.local.busy import GAP_S, BusyLog


def test_close_neighbours_of_one_work_become_one():
    log = BusyLog()
    log.add("decode", 0.0, 1.0)
    log.add("decode", 1.0 + GAP_S / 2, 2.0)
    log.add("decode", 2.0 + 2 * GAP_S, 3.0)
    log.add("prefill", 3.0, 4.0)
    log.add("decode", 4.0, 5.0)
    assert log.take() == [
        ("decode", 0.0, 2.0),
        ("decode", 2.0 + 2 * GAP_S, 3.0),
        ("prefill", 3.0, 4.0),
        ("decode", 4.0, 5.0),
    ]
    assert log.empty
    assert log.take() == []


def test_nothing_is_due_while_there_is_nothing_to_tell():
    assert not BusyLog().due


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.1), st.floats(0, 0.1))))
def test_merged_time_is_the_time_worked_and_at_most_the_gaps_between(steps):
    log, now, worked = BusyLog(), 0.0, 0.0
    for work, idle, busy in steps:
        begin = now + idle
        now = begin + busy
        log.add(work, begin, now)
        worked += busy
    merged = log.take()
    total = sum(end - begin for _, begin, end in merged)
    assert worked - 1e-9 <= total <= worked + GAP_S * len(steps) + 1e-9
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(merged))
