import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollart.core.events import (
    DeviceBusy,
    Disposed,
    EngineDown,
    Event,
    GapMeasured,
    LedgerClosed,
    Phase,
    Stamped,
    StepTrained,
    TrajectoryEnded,
    Warned,
    Work,
    is_computing,
)
from rollart.observe.history import gather
from rollart.observe.progress import Progress
from rollart.observe.summary import RunSummary, summary_of
from rollart.observe.summary_json import json_object

Run = Callable[..., list[Stamped]]


def without(events: list[Stamped], *kinds: type) -> list[Stamped]:
    """The events but for some types, numbered anew."""
    kept = [s for s in events if not isinstance(s.event, kinds)]
    return [dataclasses.replace(s, seq=seq) for seq, s in enumerate(kept)]


def with_events(events: list[Stamped], *more: Event) -> list[Stamped]:
    """The events, with more of them before the last."""
    *head, last = events
    added = [dataclasses.replace(last, event=event) for event in more]
    return [dataclasses.replace(s, seq=seq) for seq, s in enumerate([*head, *added, last])]


def edited(events: list[Stamped], change: Callable[[Event], Event]) -> list[Stamped]:
    return [dataclasses.replace(s, event=change(s.event)) for s in events]


def test_the_object_holds_everything_a_report_promises(synthetic_run: Run) -> None:
    found = json_object(summary_of(gather(synthetic_run(steps=20))))
    assert {
        "run", "protocol", "alpha", "seed", "success_before", "success_after", "heldout_tasks",
        "baselines", "steps", "trained_tokens", "wall_s", "tokens_per_s", "start_lag_max",
        "token_lag_max", "token_lag_mean", "ledger", "logprob_gap_max", "logprob_gap_tokens",
        "phase_seconds", "device_busy", "overlap_seconds", "failures", "interruptions", "ended",
    } <= found.keys()  # fmt: skip
    assert found["run"] == "synthetic"
    assert found["success_before"] == {"FrozenLake": {"sampled": 0.11, "greedy": 0.02}}
    assert found["success_after"] == {"FrozenLake": {"sampled": 0.87, "greedy": 0.9}}
    assert found["heldout_tasks"] == {"FrozenLake": 256}
    assert found["baselines"] == {
        "FrozenLake": {"best fixed sequence": 0.27, "right if free, else down": 0.62}
    }
    assert (found["steps"], found["ended"], found["ok"]) == (20, "all steps are done", True)
    assert found["partial"] is None


def test_token_lag_is_a_mean_over_tokens_and_not_over_steps(synthetic_run: Run) -> None:
    summary = summary_of(gather(synthetic_run(steps=20)))
    # Odd steps have lag 0.5 on 100 tokens, even ones lag 0 on 300; the mean over steps is 0.25.
    assert summary.token_lag_mean == pytest.approx(0.5 * 100 / 400)
    assert summary.token_lag_max == 2
    assert summary.start_lag_max == 1


def test_tokens_per_second_leave_start_and_evaluations_out(synthetic_run: Run) -> None:
    events = synthetic_run(steps=20)
    summary = summary_of(gather(events))
    assert summary.trained_tokens == 10 * 300 + 10 * 100
    assert summary.batch_tokens == 20_000
    assert summary.tokens_per_s == pytest.approx(20_000 / summary.train_s)
    # The first weights, four evaluations of two seconds, and the last publish are no training.
    assert summary.wall_s == pytest.approx(summary.train_s + 3 * 0.05 + 4 * 2.0 + 0.05)


def test_train_and_generation_overlap_under_alpha_one_and_never_under_alpha_zero(
    synthetic_run: Run,
) -> None:
    overlapped, alternating = (summary_of(gather(synthetic_run(steps=20, alpha=a))) for a in (1, 0))
    assert overlapped.overlap_s == pytest.approx(20 * 0.8)
    assert alternating.overlap_s == 0.0
    assert alternating.token_lag_max == 0
    busy = {share.device: dict(share.by_work) for share in overlapped.devices}
    assert busy["trainer"]["train"] == pytest.approx(20 * 0.8 / overlapped.train_s)


def test_work_of_other_kinds_is_no_overlap(synthetic_run: Run) -> None:
    events = without(synthetic_run(steps=3), DeviceBusy)
    busy = [
        DeviceBusy(device="trainer", hardware="cpu", work="train", begin=0.0, end=10.0),
        DeviceBusy(device="engine-0", hardware="cpu", work="update", begin=0.0, end=5.0),
        DeviceBusy(device="engine-0", hardware="cpu", work="prefill", begin=8.0, end=12.0),
        DeviceBusy(device="engine-1", hardware="cpu", work="decode", begin=9.0, end=9.5),
    ]
    assert summary_of(gather(with_events(events, *busy))).overlap_s == pytest.approx(2.0)


@pytest.mark.parametrize("work", list(Work))
def test_summary_account_and_live_view_agree_on_what_is_busy(
    work: Work, synthetic_run: Run
) -> None:
    history = gather(without(synthetic_run(steps=3), DeviceBusy))
    window = history.training_window
    middle = sum(window) / 2
    note = DeviceBusy(device="engine-0", hardware="cpu", work=work, begin=window[0], end=middle)
    events = with_events(without(synthetic_run(steps=3), DeviceBusy), note)
    summary = summary_of(gather(events))
    (share,) = (one for one in summary.devices if one.device == "engine-0")
    assert share.busy == pytest.approx(0.5 if is_computing(work) else 0.0)
    assert dict(share.by_work)[work] == pytest.approx(0.5)
    (device,) = (one for one in summary.idle.devices if one.device == "engine-0")
    assert dict(device.shares)["busy"] == pytest.approx(share.busy)
    live = Progress()
    live.take(Stamped(time=0.0, seq=0, incarnation=0, event=replace(note, begin=0.0, end=1.0)))
    live.take(Stamped(time=2.0, seq=1, incarnation=0, event=Warned(message="")))
    assert live.busy_of("engine-0") == pytest.approx(share.busy)


def test_the_ledger_is_the_last_balance_with_every_disposition(synthetic_run: Run) -> None:
    summary = summary_of(gather(synthetic_run(steps=20)))
    ledger = summary.ledger
    counts = dict(ledger.dispositions)
    assert ledger.started == 20 * 8
    assert counts["failed"] > 0
    assert counts["trained"] + counts["failed"] == ledger.started
    assert set(counts) == {
        "trained", "stale", "surplus", "filtered", "incomplete_group", "failed", "invalid",
        "cancelled",
    }  # fmt: skip
    assert ledger.balanced
    assert dict(summary.failures) == {"env_timeout": counts["failed"]}


def test_a_balance_that_does_not_add_up_is_not_balanced_whatever_it_claims(
    synthetic_run: Run,
) -> None:
    def lose_one(event: Event) -> Event:
        if isinstance(event, LedgerClosed):
            return dataclasses.replace(event, started=event.started + 1)
        return event

    assert not summary_of(gather(edited(synthetic_run(steps=3), lose_one))).ledger.balanced


def test_a_log_without_a_balance_is_counted_from_its_trajectories(synthetic_run: Run) -> None:
    events = without(synthetic_run(steps=3), LedgerClosed)
    cut = next(s.seq for s in reversed(events) if isinstance(s.event, Disposed))
    ledger = summary_of(gather(events[:cut])).ledger
    assert ledger.started == 24
    assert sum(count for _, count in ledger.dispositions) == 23
    assert ledger.in_flight == 1


def test_the_log_prob_gap_is_the_largest_of_both_measures(synthetic_run: Run) -> None:
    events = synthetic_run(steps=20)
    summary = summary_of(gather(events))
    assert summary.logprob_gap_max == pytest.approx(20e-6)
    assert summary.logprob_gap_scored == summary.logprob_gap_max
    assert summary.logprob_gap_trained == pytest.approx(2e-6)
    assert summary.logprob_gap_tokens == 20 * 50
    only_steps = summary_of(gather(without(events, GapMeasured)))
    assert only_steps.logprob_gap_max == pytest.approx(2e-6)
    assert summary_of(gather(without(events, GapMeasured, StepTrained))).logprob_gap_max is None


def test_a_gap_that_is_no_number_is_not_hidden_by_smaller_ones(synthetic_run: Run) -> None:
    bad = GapMeasured(version=1, tokens=5, maximum=math.nan, mean=math.nan)
    gap = summary_of(gather(with_events(synthetic_run(steps=3), bad))).logprob_gap_max
    assert gap is not None
    assert math.isnan(gap)


def test_phase_seconds_name_every_phase(synthetic_run: Run) -> None:
    seconds = dict(summary_of(gather(synthetic_run(steps=20))).phase_seconds)
    assert set(seconds) == {phase.value for phase in Phase}
    assert seconds["train_step"] == pytest.approx(16.0)
    assert seconds["suspend"] == pytest.approx(0.6)


def test_failures_are_those_of_training_by_kind(synthetic_run: Run) -> None:
    events = without(synthetic_run(steps=3), TrajectoryEnded)
    ended = next(s.event for s in synthetic_run(steps=3) if isinstance(s.event, TrajectoryEnded))
    ended = dataclasses.replace(ended, status="failed", failure="reward_timeout")
    more = [ended, ended, dataclasses.replace(ended, purpose="eval")]
    assert summary_of(gather(with_events(events, *more))).failures == (("reward_timeout", 2),)


def test_lost_engines_and_moved_requests_are_counted(synthetic_run: Run) -> None:
    down = EngineDown(engine="engine-1", reason="killed", moved_requests=3)
    summary = summary_of(gather(with_events(synthetic_run(steps=3), down, down)))
    assert (summary.engines_lost, summary.requests_moved) == (2, 6)


def test_a_summary_of_a_log_that_is_not_whole_says_so(synthetic_run: Run) -> None:
    events = synthetic_run(steps=3)
    assert says(summary_of(gather(events[:-1])), "no end")
    assert says(summary_of(gather(events[1:])), "gap")
    assert says(summary_of(gather(events[:50] + events[60:])), "event 60 stands where 50 should")
    beheaded = [dataclasses.replace(s, seq=seq) for seq, s in enumerate(events[1:])]
    assert says(summary_of(gather(beheaded)), "no beginning")


def says(summary: RunSummary, words: str) -> bool:
    return summary.partial is not None and words in summary.partial


def test_nothing_is_known_of_no_events() -> None:
    summary = summary_of(gather([]))
    assert summary.steps == 0
    assert summary.token_lag_mean is None
    assert summary.tokens_per_s is None
    assert summary.logprob_gap_max is None
    assert summary.wall_s == 0.0
    assert json_object(summary)["success_after"] == {}
