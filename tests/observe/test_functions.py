import dataclasses

import pytest

from rollart.core.events import (
    CANCELLED,
    Event,
    FunctionInstance,
    PlatformDown,
    PlatformUp,
    RewardCalled,
    Stamped,
)
from rollart.observe.functions import FunctionBooks, FunctionUse, as_object, quantile
from rollart.observe.history import gather
from rollart.observe.summary import summary_of
from rollart.observe.summary_json import json_object

URL = "lambda://judge"


def call(took: float = 1.0, **changes: object) -> RewardCalled:
    made = RewardCalled(
        trajectory="lake/t/g0.0.0",
        url=URL,
        served_by=URL,
        begin=10.0,
        end=10.0 + took,
        function_s=0.9,
    )
    return dataclasses.replace(made, **changes)


def used(*events: Event) -> FunctionUse:
    books = FunctionBooks()
    assert all(books.take(event) for event in events)
    (use,) = books.uses()
    return use


def test_calls_are_counted_by_how_they_ended() -> None:
    use = used(call(), call(), call(outcome="reward_timeout"), call(outcome="reward_no_verdict"))
    assert use.calls == 4
    assert use.outcomes == (("reward_no_verdict", 1), ("reward_timeout", 1), ("verdict", 2))


def test_a_call_that_nobody_waits_for_any_more_is_no_failure_and_has_no_time() -> None:
    use = used(call(1.0), call(99.0, outcome=CANCELLED))
    assert use.outcomes == (("cancelled", 1), ("verdict", 1))
    assert use.latency_p99_s == 1.0


def test_the_busy_share_is_of_the_time_that_processes_were_kept() -> None:
    kept = FunctionInstance(url=URL, instance="a", begin=0.0, end=2.0)
    use = used(call(), call(), kept, dataclasses.replace(kept, instance="b"))
    assert (use.busy_s, use.reserved_s, use.processes) == (pytest.approx(1.8), 4.0, 2)
    assert use.busy_share == pytest.approx(0.45)


def test_where_the_platform_bills_by_the_call_nothing_is_reserved() -> None:
    use = used(call())
    assert (use.reserved_s, use.busy_share) == (None, None)


def test_overhead_is_what_neither_the_function_nor_a_wait_explains_on_warm_single_tries() -> None:
    use = used(
        call(1.0),
        call(2.0, waited_s=1.0),
        call(9.0, cold=True),
        call(9.0, tries=2),
        call(9.0, function_s=None),
    )
    assert use.overhead_p50_s == pytest.approx(0.1)
    assert use.overhead_p99_s == pytest.approx(0.1)
    assert use.latency_p99_s == 9.0


def test_a_fallback_and_the_time_that_a_platform_was_down_are_told() -> None:
    use = used(
        PlatformDown(url=URL, reason="gone", fallback="local://judge:score"),
        call(served_by="local://judge:score"),
        PlatformUp(url=URL, down_s=12.0),
    )
    assert (use.elsewhere, use.down_s) == (1, 12.0)


def test_other_events_are_not_theirs_and_a_report_has_every_function() -> None:
    assert not FunctionBooks().take(object())
    calls = (call(), call(outcome="reward_no_verdict"))
    history = gather(
        Stamped(time=float(seq), seq=seq, incarnation=0, event=event)
        for seq, event in enumerate(calls)
    )
    summary = summary_of(history)
    assert [use.url for use in summary.functions] == [URL]
    told = json_object(summary)["functions"]
    assert told == {URL: as_object(summary.functions[0])}


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 4.0), (0.01, 1.0), (1.0, 4.0)])
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(
    share: float, value: float
) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == value
    assert quantile([], share) is None
