"""Trajectories without a verdict are no zeros, and too many of them end the run."""

from dataclasses import replace

import pytest

from rollart.control.no_verdicts import LATEST, NoVerdicts
from rollart.core.errors import FailureKind
from rollart.core.events import LedgerClosed, StepTrained, TrajectoryEnded
from rollart.core.types import Status, Trajectory, Verdict
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.samples import sample_trajectory
from rollart.testing.script import Script


def scored() -> Trajectory:
    return replace(sample_trajectory(), verdict=Verdict(score=0.0))


def unscored(kind: FailureKind = FailureKind.REWARD_ERROR) -> Trajectory:
    return replace(
        sample_trajectory(), status=Status.FAILED, failure=kind, detail="gone", verdict=None
    )


def counted(counts: NoVerdicts, trajectories: list[Trajectory]) -> str | None:
    told = None
    for trajectory in trajectories:
        told = counts.count(trajectory)
    return told


def test_a_share_above_the_bound_is_told_with_the_reasons_counted() -> None:
    failing = [unscored(FailureKind.REWARD_TIMEOUT)] * 20 + [unscored()] * 31
    told = counted(NoVerdicts(0.5), [scored()] * 49 + failing)
    assert told is not None
    assert "51 of the latest 100 trajectories have no verdict" in told
    assert "(31 reward_error in lake, 20 reward_timeout in lake)" in told
    assert "faults.max_no_verdict = 0.5" in told
    assert "the last: gone" in told


@pytest.mark.parametrize(
    ("most", "trajectories"),
    [
        (0.5, [scored()] * 50 + [unscored()] * 50),
        (0.5, [unscored()] * (LATEST - 1)),
        (1.0, [unscored()] * 1000),
        (0.1, [unscored()] * 90 + [scored()] * 90 + [unscored()] * 10),
        (0.1, [unscored(FailureKind.ENV_DIED)] * 1000),
    ],
)
def test_less_is_borne(most: float, trajectories: list[Trajectory]) -> None:
    counts = NoVerdicts(most)
    assert [counts.count(one) for one in trajectories][-1] is None


def test_what_was_lost_before_a_verdict_was_asked_is_not_counted() -> None:
    mixed = [unscored(FailureKind.ENV_DIED), unscored()] * 60
    assert counted(NoVerdicts(0.9), mixed) is None
    assert counted(NoVerdicts(0.9), mixed[:2] * LATEST) is not None


def test_a_run_whose_reward_fails_ends_with_the_reason_and_its_ledger_closed() -> None:
    job = scripted_job(run__steps=100, faults__max_no_verdict=0.2)
    run = run_scripted(job, Script(reward_refuses=0.6))
    assert not run.result.ok
    assert "have no verdict" in run.result.reason
    assert "reward_error" in run.result.reason
    balances = run.events.of(LedgerClosed)
    assert balances[-1].in_flight == balances[-1].buffered == 0
    assert all(closed.balanced for closed in balances)


def test_no_verdict_is_no_score_in_what_is_trained() -> None:
    job = scripted_job(run__steps=5, faults__max_no_verdict=1.0)
    run = run_scripted(job, Script(reward_refuses=0.3))
    assert run.result.ok, run.result.reason
    assert len(run.events.of(StepTrained)) == 5
    ended = [event for event in run.events.of(TrajectoryEnded) if event.failure]
    assert ended
    assert all(event.score is None for event in ended)
    trained = [t for _, batch in run.launcher.trainers[0].batches for t in batch.trajectories]
    assert all(trajectory.score is not None for trajectory in trained)
