"""Evaluation: outside the books, each trajectory under one version, greedy and sampled."""

import asyncio
from dataclasses import replace

from rollart.control.evaluation import is_of_version
from rollart.core.events import (
    Admitted,
    Disposed,
    Evaluated,
    GapMeasured,
    LedgerClosed,
    StepTrained,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
)
from rollart.core.identity import Purpose
from rollart.core.tokens import VersionRuns
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.promises import broken_promises
from rollart.testing.samples import sample_trajectory
from rollart.testing.script import Script


def evaluated(script: Script | None = None, **job: object) -> ScriptedRun:
    run = run_scripted(scripted_job(run__steps=2, eval__tasks=12, **job), script)
    assert broken_promises(run) == []
    return run


def test_before_and_after_are_measured_sampled_and_greedily_each_under_one_version() -> None:
    run = evaluated()
    found = [(e.when, e.mode, e.version, e.tasks) for e in run.events.of(Evaluated)]
    assert found == [
        ("before", "sampled", 0, 12),
        ("before", "greedy", 0, 12),
        ("after", "sampled", 2, 12),
        ("after", "greedy", 2, 12),
    ]
    assert all(event.scored == 12 for event in run.events.of(Evaluated))


def test_the_greedy_half_is_asked_at_temperature_0() -> None:
    run = evaluated()
    greedy = [
        d.request.temperature
        for engine in run.launcher.engines
        for d in engine.log.dispatches
        if "eval:" in d.request.id
    ]
    assert set(greedy) == {0.0, 1.0}


def test_evaluation_takes_no_credit_and_enters_no_ledger() -> None:
    run = evaluated()
    started = [e for e in run.events.of(TrajectoryStarted) if e.purpose == Purpose.EVAL]
    assert len(started) == 48
    assert run.events.of(LedgerClosed)[-1].started == len(
        [e for e in run.events.of(TrajectoryStarted) if e.purpose == Purpose.TRAIN]
    )
    assert not any(e.trajectory.startswith("eval:") for e in run.events.of(Disposed))
    assert not any(e.task.startswith("heldout") for e in run.events.of(Admitted))
    given = [t.id.purpose for _, b in run.launcher.trainers[0].batches for t in b.trajectories]
    assert set(given) == {Purpose.TRAIN}


def test_held_out_episodes_that_fail_are_not_counted_as_zero() -> None:
    run = evaluated(replace(Script(), reward_refuses=0.5))
    for event in run.events.of(Evaluated):
        assert 0 < event.scored < event.tasks
        assert event.score is not None
        assert event.score > 0.2


def test_an_engine_that_dies_during_evaluation_costs_no_episode() -> None:
    run = evaluated(Script(engine_deaths=(("engine-0", 20),)), rollout__engines=2)
    assert all(event.scored == 12 for event in run.events.of(Evaluated))


def test_log_probs_are_compared_on_tokens_of_the_evaluated_version() -> None:
    run = evaluated()
    measured = run.events.of(GapMeasured)
    assert [event.version for event in measured] == [0, 2]
    assert all(event.tokens > 0 for event in measured)


def test_a_trajectory_of_another_version_is_not_of_the_evaluated_one() -> None:
    one = sample_trajectory(version=3, sampled=4)
    assert is_of_version(one, 3)
    assert not is_of_version(one, 4)
    segment = one.segments[0]
    mixed = replace(segment.pieces[1], versions=VersionRuns(((2, 1), (3, 3))))
    both = replace(one, segments=(replace(segment, pieces=(segment.pieces[0], mixed)),))
    assert not is_of_version(both, 3)


class TestBesideTraining:
    SLOW_UPDATES = Script(
        turns=(2, 6), token_s=(0.05, 0.2), train_s=(0.5, 1.0), update_s=(0.5, 1.0)
    )

    def run(self, **job: object) -> ScriptedRun:
        run = run_scripted(
            scripted_job(run__steps=9, eval__tasks=12, eval__every=3, **job), self.SLOW_UPDATES
        )
        assert broken_promises(run) == []
        return run

    def test_a_round_is_sampled_after_each_so_many_versions_all_under_one(self) -> None:
        beside = [e for e in self.run().events.of(Evaluated) if e.when.startswith("version")]
        assert [(e.when, e.version, e.mode) for e in beside] == [
            ("version 3", 3, "sampled"),
            ("version 6", 6, "sampled"),
        ]
        assert all(event.scored == 12 for event in beside)

    def test_rollout_and_training_go_on_meanwhile(self) -> None:
        run = self.run()
        begun = [
            time
            for time, event in run.events.events
            if isinstance(event, TrajectoryStarted) and "eval:" in event.trajectory
        ]
        ended = [
            (time - event.seconds, time)
            for time, event in run.events.events
            if isinstance(event, Evaluated) and event.when == "version 3"
        ]
        ((begin, end),) = ended
        assert begin in begun
        turns = [t for t, e in run.events.events if isinstance(e, TurnEnded) and begin < t < end]
        assert len(turns) > 12
        train = [e for t, e in run.events.events if isinstance(e, StepTrained) and begin < t < end]
        assert train

    def test_it_costs_no_more_than_its_own_time(self) -> None:
        with_rounds = self.run()
        without = run_scripted(scripted_job(run__steps=9, eval__tasks=12), self.SLOW_UPDATES)
        own = sum(
            event.seconds
            for event in with_rounds.events.of(Evaluated)
            if event.when.startswith("version")
        )
        ends = [run.events.events[-1][0] for run in (with_rounds, without)]
        assert ends[0] - ends[1] <= own

    def test_synchronous_runs_have_rounds_too(self) -> None:
        beside = self.run(protocol__name="sync").events.of(Evaluated)
        assert [e.version for e in beside if e.when.startswith("version")] == [3, 6, 9]


def test_a_stop_during_evaluation_ends_the_run_at_once_with_everything_let_go() -> None:
    run = run_scripted(
        scripted_job(eval__tasks=12),
        meddle=lambda controller, _: (
            asyncio.get_running_loop().call_at(0.6, controller.stop, "stopped") and None
        ),
    )
    assert run.result.interrupted
    assert run.events.events[-1][0] < 2.0
    assert broken_promises(run) == []
    assert isinstance(run.launcher, ScriptedLauncher)
    assert all(e.purpose == "eval" for e in run.events.of(TrajectoryEnded))
