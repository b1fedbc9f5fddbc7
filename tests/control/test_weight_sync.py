"""The six steps: their order, what overlaps, and what an update may do to whom."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rollart.control.assembly import ControlParts
from rollart.control.scheduler import RolloutScheduler
from rollart.core.events import (
    BatchTaken,
    Committed,
    Event,
    Phase,
    PhaseBegan,
    PhaseEnded,
    StepTrained,
    TurnEnded,
)
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

LONG = Script(
    turns=(1, 8),
    tokens_per_turn=(5, 20),
    token_s=(0.05, 0.4),
    train_s=(2.0, 4.0),
    update_s=(1.0, 2.0),
)


def kept(run: ScriptedRun) -> ScriptedRun:
    assert broken_promises(run) == []
    return run


def spans(run: ScriptedRun, phase: Phase) -> list[tuple[float, float]]:
    """(begin, end) of every run of a phase, in loop time."""
    began = [t for t, e in run.events.events if isinstance(e, PhaseBegan) and e.phase is phase]
    ended = [t for t, e in run.events.events if isinstance(e, PhaseEnded) and e.phase is phase]
    return list(zip(began, ended, strict=True))


def within_any(time: float, intervals: list[tuple[float, float]]) -> bool:
    return any(begin < time < end for begin, end in intervals)


def times_of(run: ScriptedRun, kind: type[Event]) -> list[float]:
    return [time for time, event in run.events.events if isinstance(event, kind)]


def test_with_alpha_1_turns_end_while_a_step_trains_and_none_during_an_update() -> None:
    run = kept(run_scripted(scripted_job(run__steps=6), LONG))
    turns = times_of(run, TurnEnded)
    assert any(within_any(time, spans(run, Phase.TRAIN_STEP)) for time in turns)
    tokens = spans(run, Phase.UPDATE)
    for engine in run.launcher.engines:
        for dispatch in engine.log.dispatches:
            assert not within_any(dispatch.at, tokens)


def test_with_alpha_0_nothing_overlaps_and_every_token_is_trained_by_its_own_version() -> None:
    run = kept(run_scripted(scripted_job(run__steps=6, protocol__alpha=0), LONG))
    busy = [*spans(run, Phase.TRAIN_STEP), *spans(run, Phase.UPDATE)]
    assert not any(within_any(time, busy) for time in times_of(run, TurnEnded))
    assert {event.token_lag_max for event in run.events.of(StepTrained)} == {0}
    assert {event.start_lag_max for event in run.events.of(BatchTaken)} == {0}


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_start_lag_is_at_most_alpha_and_token_lag_at_most_one_more(alpha: int) -> None:
    run = kept(run_scripted(scripted_job(run__steps=8, protocol__alpha=alpha), LONG))
    assert max(event.start_lag_max for event in run.events.of(BatchTaken)) <= alpha
    lags = [event.token_lag_max for event in run.events.of(StepTrained)]
    assert 1 <= max(lags) <= alpha + 1


def test_stale_work_is_aborted_and_acknowledged_before_the_pause_that_comes_before_the_update() -> (
    None
):
    run = kept(run_scripted(scripted_job(run__steps=10, rollout__batch_groups=2), LONG))
    calls = run.launcher.engines[0].log.calls
    aborts = [i for i, call in enumerate(calls) if call.startswith("abort")]
    assert aborts
    for index in aborts:
        later = [call.split()[0] for call in calls[index:] if not call.startswith(("abort", "add"))]
        assert later[0] in ("pause", "rebuild_kv")
    verbs = [call.split()[0] for call in calls]
    assert all(
        one == "pause"
        for one, other in pairwise(v for v in verbs if v not in ("add", "abort"))
        if other == "update"
    )


def test_an_update_aborts_nothing_that_is_not_stale() -> None:
    short = replace(LONG, turns=(1, 3), token_s=(0.05, 0.1))
    run = kept(run_scripted(scripted_job(run__steps=6, protocol__alpha=3), short))
    assert [e for e in run.events.of(TurnEnded) if e.first_version != e.last_version]
    for engine in run.launcher.engines:
        verbs = [call.split()[0] for call in engine.log.calls]
        updates = [i for i, verb in enumerate(verbs) if verb == "update"]
        assert len(updates) == 7
        assert "abort" not in verbs[: updates[-2]]


def test_each_version_is_committed_once_and_trained_after_it() -> None:
    run = kept(run_scripted(scripted_job(run__steps=5), LONG))
    commits = [event.version for event in run.events.of(Committed)]
    assert commits == [0, 0, 1, 2, 3, 4, 5]
    assert [version for version, _ in run.launcher.trainers[0].batches] == [0, 1, 2, 3, 4]
    assert run.launcher.trainers[0].published == [0, 1, 2, 3, 4, 5]


def test_an_update_that_no_engine_takes_ends_the_run_with_their_words_and_none_is_left_paused() -> (
    None
):
    refusals = [("engine-0", n) for n in range(2, 200)]
    run = kept(run_scripted(scripted_job(), Script(update_failures=refusals)))
    assert (run.result.ok, run.result.steps) == (False, 1)
    assert "no engine acknowledged agent@1 within 10 s" in run.result.reason
    assert "scripted failure of update" in run.result.reason
    calls = run.launcher.engines[0].log.calls
    assert [call for call in calls if call in ("pause", "resume")][-1] == "resume"


def test_kv_of_what_is_in_flight_is_rebuilt_after_each_resume() -> None:
    run = kept(run_scripted(scripted_job(run__steps=4), LONG))
    verbs = [call.split()[0] for call in run.launcher.engines[0].log.calls]
    order = [verb for verb in verbs if verb in ("resume", "rebuild_kv")]
    assert order == ["resume", *["resume", "rebuild_kv"] * 4, "resume"]
    assert run.launcher.engines[0].log.stale_kv_reads == 0


def test_abort_stale_waits_until_engines_have_let_go() -> None:
    held: list[int] = []

    class Watched(RolloutScheduler):
        async def abort_stale(self, version: int) -> int:
            doomed = await super().abort_stale(version)
            if doomed:
                held.append(sum(group.doom is not None for group in self._live.values()))
            return doomed

    job = scripted_job(run__steps=10, rollout__batch_groups=2)
    kept(run_scripted(job, LONG, parts=ControlParts(scheduler=Watched)))
    assert held
    assert set(held) == {0}


def test_the_share_of_the_run_that_is_over_reaches_the_trainer() -> None:
    run = kept(run_scripted(scripted_job(run__steps=4), Script()))
    progress = [batch.progress for _, batch in run.launcher.trainers[0].batches]
    assert progress == [0.0, 0.25, 0.5, 0.75]


def test_a_publication_that_takes_too_long_ends_the_run() -> None:
    run = run_scripted(scripted_job(), Script(publish_s=(1000.0, 1000.0)), max_virtual_time=1e5)
    assert not run.result.ok
    assert "was not committed to the weight store within 10 s" in run.result.reason
