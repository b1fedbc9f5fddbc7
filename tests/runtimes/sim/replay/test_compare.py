"""Comparing two logs: what may differ, and what the first difference says."""

import math
from dataclasses import replace

import pytest

from rollart.core.events import EngineDown, Event, LedgerClosed, Phase, PhaseEnded, Stamped, Warned
from rollart.runtimes.sim.replay.compare import compare, differs
from rollart.testing.samples import every_event

ENDED = PhaseEnded(step=1, phase=Phase.UPDATE, seconds=2.0, ok=True)


def stamped(*events: tuple[float, Event]) -> list[Stamped]:
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(events)
    ]


def test_every_event_equals_itself():
    for event in every_event():
        assert differs(event, event, tolerance_s=0.0) is None


def test_seconds_may_differ_by_the_tolerance_and_no_more():
    later = replace(ENDED, seconds=2.5)
    assert differs(ENDED, later, tolerance_s=0.5) is None
    assert "seconds was 2.0 and is 2.5" in str(differs(ENDED, later, tolerance_s=0.4))


@pytest.mark.parametrize("change", [{"step": 2}, {"ok": False}, {"phase": Phase.RESUME}])
def test_everything_else_must_be_equal_whatever_the_tolerance(change):
    assert differs(ENDED, replace(ENDED, **change), tolerance_s=math.inf) is not None


def test_seconds_within_a_text_follow_the_tolerance_and_its_words_do_not():
    down = EngineDown(engine="e", reason="no token for 10.0 s with 2 requests", moved_requests=2)
    later = replace(down, reason="no token for 10.1 s with 2 requests")
    fewer = replace(down, reason="no token for 10.0 s with 1 requests")
    assert differs(down, later, tolerance_s=0.2) is None
    assert differs(down, later, tolerance_s=0.05) is not None
    assert differs(down, fewer, tolerance_s=9.0) is not None


def test_nan_equals_nan():
    events = [event for event in every_event() if type(event).__name__ == "GapMeasured"]
    gap = replace(events[0], mean=math.nan)
    assert differs(gap, replace(gap), tolerance_s=0.0) is None


def test_the_first_difference_has_its_place_and_both_events():
    mine = stamped((0.0, Warned(message="a")), (1.0, ENDED), (2.0, Warned(message="b")))
    theirs = stamped((0.25, Warned(message="a")), (1.0, replace(ENDED, ok=False)))
    found = compare(mine, theirs, tolerance_s=0.5)
    assert not found.equal
    assert found.events == 1
    assert found.apart_s == 0.25
    assert found.difference is not None
    assert found.difference.position == 1
    assert "ok was True and is False" in str(found.difference)


def test_a_log_that_ends_early_differs_where_it_ends():
    mine = stamped((0.0, Warned(message="a")), (1.0, ENDED))
    found = compare(mine, mine[:1], tolerance_s=0.0)
    assert found.difference is not None
    assert found.difference.recorded == mine[1]
    assert "nothing more" in str(found.difference)


def test_loop_times_too_far_apart_differ():
    one = stamped((0.0, ENDED))
    assert compare(one, stamped((0.1, ENDED)), tolerance_s=0.2).equal
    assert not compare(one, stamped((0.3, ENDED)), tolerance_s=0.2).equal


def test_the_balance_is_compared_number_by_number():
    closed = LedgerClosed(
        step=1, started=3, dispositions=(("trained", 3),), buffered=0, in_flight=0, balanced=True
    )
    other = replace(closed, dispositions=(("trained", 2),))
    assert differs(closed, other, tolerance_s=1.0) is not None
