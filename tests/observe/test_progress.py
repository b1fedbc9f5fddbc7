import dataclasses
from collections.abc import Callable

import pytest

from rollart.core.events import (
    BatchTaken,
    DeviceBusy,
    Disposed,
    EngineDown,
    EngineUp,
    Event,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunStarted,
    Stamped,
    TrajectoryStarted,
)
from rollart.core.types import Disposition
from rollart.observe.progress import Progress, time_limit

Run = Callable[..., list[Stamped]]


def feed(progress: Progress, *events: Event, time: float = 0.0) -> Progress:
    for event in events:
        progress.take(Stamped(time=time, seq=0, incarnation=0, event=event))
    return progress


def began(trajectory: str, group: int, purpose: str = "train") -> TrajectoryStarted:
    return TrajectoryStarted(
        trajectory=trajectory,
        purpose=purpose,
        domain="d",
        task="t",
        group=group,
        member=0,
        attempt=0,
    )


def left(trajectory: str, disposition: Disposition) -> Disposed:
    return Disposed(
        trajectory=trajectory,
        domain="d",
        group=0,
        disposition=disposition,
        reason="",
        start_version=0,
        elapsed_s=0.0,
        censored=False,
    )


def ready(group: int) -> GroupReady:
    return GroupReady(group=group, domain="d", members=1, start_version=0)


def test_a_run_is_followed_to_its_end_and_nothing_stays_behind(synthetic_run: Run) -> None:
    progress = Progress()
    rows = [row for s in synthetic_run(steps=15) if (row := progress.take(s)) is not None]
    assert len(rows) == progress.steps_done == progress.steps_planned == 15
    assert (progress.in_flight, progress.buffered_groups, progress.resetting) == (0, 0, 0)
    assert progress.left_s == 0.0
    assert progress.phase is None
    assert {name: engine.version for name, engine in progress.engines.items()} == {
        "engine-0": 14,
        "engine-1": 14,
    }


def test_time_left_is_the_remaining_steps_at_the_pace_of_the_last_ones(synthetic_run: Run) -> None:
    progress = Progress()
    for stamped in synthetic_run(steps=40):
        progress.take(stamped)
        if progress.steps_done == 30:
            break
    # The first step was longer, and is no longer among the last ten of 1.28 s.
    assert progress.left_s == pytest.approx(10 * 1.28)


def test_time_left_is_never_more_than_the_time_limit_leaves(synthetic_run: Run) -> None:
    progress = Progress()
    for stamped in synthetic_run(steps=40):
        event = stamped.event
        if isinstance(event, RunStarted):
            event = dataclasses.replace(event, config='{"run": {"time_limit_s": 30}, "schema": 1}')
        progress.take(dataclasses.replace(stamped, event=event))
        if progress.steps_done == 15:
            break
    assert progress.row is not None
    began = 3 * 0.05 + 2 * 2.0
    assert progress.left_s == pytest.approx(began + 30 - progress.now)
    assert began + 30 - progress.now < 25 * 1.28


def test_a_configuration_without_a_time_limit_has_none() -> None:
    for config in ("", "no json", "{}", '{"run": {"time_limit_s": null}}', '{"run": 3}'):
        assert time_limit(config) is None
    assert time_limit('{"run": {"time_limit_s": 280.0, "steps": 4}}') == 280.0


def test_what_the_trainer_does_is_the_phase_that_began_last_and_still_runs() -> None:
    progress = Progress()
    feed(progress, PhaseBegan(step=0, phase=Phase.RECOMPUTE), time=1.0)
    feed(progress, PhaseBegan(step=0, phase=Phase.TRAIN_STEP), time=2.0)
    assert progress.phase is Phase.TRAIN_STEP
    feed(progress, PhaseEnded(step=0, phase=Phase.RECOMPUTE, seconds=2.0, ok=True), time=3.0)
    assert progress.phase is Phase.TRAIN_STEP
    feed(progress, PhaseEnded(step=0, phase=Phase.TRAIN_STEP, seconds=2.0, ok=True), time=4.0)
    assert progress.phase is None


def test_groups_in_a_batch_are_not_buffered_and_lost_groups_leave() -> None:
    progress = Progress()
    feed(progress, began("a", 1), began("b", 2), began("c", 3), began("v", 9, "eval"))
    assert (progress.in_flight, progress.evaluating, progress.resetting) == (3, 1, 4)
    feed(progress, ready(1), ready(2), ready(3))
    assert progress.buffered_groups == 3
    feed(
        progress,
        BatchTaken(
            step=0,
            groups=1,
            trajectories=1,
            tokens=1,
            start_lag_max=0,
            score_mean=None,
            success_mean=None,
        ),
    )
    assert progress.buffered_groups == 2
    feed(progress, left("b", Disposition.STALE))
    assert progress.buffered_groups == 1


def test_engine_states_follow_busy_time_losses_and_restarts() -> None:
    progress = Progress()
    feed(progress, EngineUp(engine="e", hardware="cpu"))
    feed(progress, DeviceBusy(device="e", hardware="cpu", work="decode", begin=0, end=1), time=4.0)
    assert progress.busy_of("e") == pytest.approx(0.25)
    feed(progress, EngineDown(engine="e", reason="killed", moved_requests=1))
    assert progress.engines["e"].down == "killed"
    feed(progress, EngineUp(engine="e", hardware="cpu"))
    assert progress.engines["e"].down == ""


def test_shares_of_turn_time_are_of_the_step_that_runs(synthetic_run: Run) -> None:
    progress = Progress()
    assert progress.turn_shares is None
    for stamped in synthetic_run(steps=2, ends=False):
        progress.take(stamped)
        if (shares := progress.turn_shares) is not None:
            parts = (shares.queued, shares.prefill, shares.decode, shares.environment)
            assert sum(parts) == pytest.approx(1.0)
            assert shares.decode == pytest.approx(0.5)
            assert shares.queued == pytest.approx(0.2)
