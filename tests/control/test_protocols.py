"""The five protocols, by their traces over one script: never by their names."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rollart.control.assembly import STANDARD, ControlParts
from rollart.control.barrier import FREE, Pace, TurnBarrier
from rollart.control.env_manager import EnvManager
from rollart.control.flight import Flight
from rollart.core.events import (
    Disposed,
    EnvironmentReset,
    Event,
    Phase,
    PhaseBegan,
    PhaseEnded,
    StepTrained,
    TrajectoryEnded,
    TurnEnded,
)
from rollart.core.types import Disposition, Trajectory
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

LONG = Script(
    seed=1,
    turns=(2, 6),
    tokens_per_turn=(5, 20),
    token_s=(0.02, 0.2),
    step_s=(0.0, 1.0),
    train_s=(4.0, 6.0),
    update_s=(1.0, 2.0),
)
"""Trajectories that take as long as a step, so that updates find some of them in flight."""
STRAGGLING = Script(seed=1, turns=(4, 6), slow_tasks={"task-1": 20.0}, train_s=(0.5, 1.0))
"""One task that takes many steps."""


def run_of(
    protocol: str, script: Script = LONG, *, steps: int = 8, parts: ControlParts = STANDARD
) -> ScriptedRun:
    job = scripted_job(protocol__name=protocol, run__steps=steps)
    run = run_scripted(job, script, parts=parts)
    assert run.result.ok, run.result.reason
    return run


def kept(run: ScriptedRun) -> ScriptedRun:
    assert broken_promises(run) == []
    return run


def phases(run: ScriptedRun, phase: Phase) -> list[tuple[float, float]]:
    """(begin, end) of each, in loop time."""
    begun: float | None = None
    spans: list[tuple[float, float]] = []
    for time, event in run.events.events:
        if isinstance(event, PhaseBegan) and event.phase is phase:
            begun = time
        elif isinstance(event, PhaseEnded) and event.phase is phase and begun is not None:
            spans.append((begun, time))
    return spans


def times_of(run: ScriptedRun, *kinds: type[Event]) -> list[float]:
    return [time for time, event in run.events.events if isinstance(event, kinds)]


def turns_beside_training(run: ScriptedRun) -> int:
    """Turns that ended strictly within a train step."""
    spans = phases(run, Phase.TRAIN_STEP)
    return sum(a < t < b for t in times_of(run, TurnEnded) for a, b in spans)


def mixed(run: ScriptedRun) -> int:
    """Completions with tokens of more than one version."""
    return sum(len(turn.versions) > 1 for turn in run.events.of(TurnEnded))


def aborted_in_flight(run: ScriptedRun) -> int:
    return sum(
        event.disposition is Disposition.STALE and event.censored
        for event in run.events.of(Disposed)
    )


def out_of_step(run: ScriptedRun) -> Iterator[str]:
    """Breaches of lockstep: who ends turn n while another at play has not ended n - 1."""
    whole = {event.trajectory: event.turns for event in run.events.of(TrajectoryEnded)}
    at = dict[str, int]()
    for _, event in run.events.events:
        if isinstance(event, EnvironmentReset) and event.ok:
            at[event.trajectory] = 0
        elif isinstance(event, TurnEnded):
            at[event.trajectory] = event.turn + 1
            if at[event.trajectory] == whole.get(event.trajectory):
                del at[event.trajectory]  # it plays no more
            if event.turn > min(at.values(), default=event.turn):
                yield f"{event.trajectory} ended turn {event.turn}, others {min(at.values())}"
        elif isinstance(event, TrajectoryEnded | Disposed):
            at.pop(event.trajectory, None)


def rewards_before_the_end(run: ScriptedRun) -> int:
    """Trajectories judged while another of their step still played."""
    ends = [(time, event.turn) for time, event in run.events.events if isinstance(event, TurnEnded)]
    judged = times_of(run, TrajectoryEnded)
    takes = phases(run, Phase.GET_BATCH)
    return sum(
        any(begin <= judgement < time < end for time, _ in ends)
        for begin, end in takes
        for judgement in judged
        if begin <= judgement <= end
    )


class TestSync:
    def test_every_turn_is_a_barrier_and_nothing_overlaps(self) -> None:
        run = kept(run_of("sync"))
        assert list(out_of_step(run)) == []
        assert turns_beside_training(run) == 0
        assert max(step.token_lag_max for step in run.events.of(StepTrained)) == 0

    def test_rewards_are_asked_when_nobody_plays_any_more(self) -> None:
        assert rewards_before_the_end(run_of("sync")) == 0
        assert rewards_before_the_end(run_of("sync_plus")) > 0

    def test_a_barrier_that_lets_everyone_through_is_found(self) -> None:
        class Open(EnvManager):
            async def rollout(self, flight: Flight, **parts: Any) -> Trajectory:
                parts["pace"] = FREE
                return await super().rollout(flight, **parts)

        assert list(out_of_step(run_of("sync", parts=ControlParts(manager=Open))))

    def test_a_trajectory_that_fails_or_hangs_holds_the_others_no_longer_than_its_deadline(
        self,
    ) -> None:
        hanging = Script(seed=3, turns=(2, 6), step_hangs=0.02, reset_fails=0.1, step_fails=0.05)
        run = kept(run_of("sync", hanging))
        assert [e for e in run.events.of(Disposed) if e.disposition is Disposition.FAILED]


class TestSyncPlus:
    def test_there_is_no_barrier_and_no_overlap(self) -> None:
        run = kept(run_of("sync_plus"))
        assert list(out_of_step(run))
        assert turns_beside_training(run) == 0
        assert max(step.token_lag_max for step in run.events.of(StepTrained)) == 0


class TestOneOff:
    def test_training_overlaps_rollout_and_no_completion_mixes_versions(self) -> None:
        run = kept(run_of("one_off"))
        assert turns_beside_training(run) > 0
        assert mixed(run) == 0
        lags = [step.token_lag_max for step in run.events.of(StepTrained)]
        assert lags == [0, *[1] * 7]

    def test_every_trajectory_is_sampled_by_one_version_and_trained_whole(self) -> None:
        run = run_of("one_off")
        for _, batch in run.launcher.trainers[0].batches:
            for trajectory in batch.trajectories:
                assert len({version for version, _ in trajectory.version_runs()}) == 1
        assert aborted_in_flight(run) == 0


class TestAreal:
    def test_completions_mix_versions_and_nothing_is_aborted_in_flight(self) -> None:
        run = kept(run_of("areal"))
        assert turns_beside_training(run) > 0
        assert mixed(run) > 0
        assert aborted_in_flight(run) == 0
        assert not [e for e in run.events.of(Disposed) if e.disposition is Disposition.STALE]

    def test_what_started_within_the_bound_is_trained_however_late_it_ends(self) -> None:
        run = kept(run_of("areal", STRAGGLING, steps=20))
        assert max(step.token_lag_max for step in run.events.of(StepTrained)) > 2


class TestRollart:
    def test_under_stress_what_is_stale_is_aborted_in_flight_and_lags_stay_bounded(self) -> None:
        run = kept(run_of("rollart", STRAGGLING, steps=20))
        assert aborted_in_flight(run) > 0
        assert max(step.token_lag_max for step in run.events.of(StepTrained)) <= 2

    def test_training_overlaps_rollout_and_completions_may_mix_versions(self) -> None:
        run = kept(run_of("rollart"))
        assert turns_beside_training(run) > 0
        assert mixed(run) > 0


@pytest.mark.parametrize("protocol", ["rollart", "sync", "sync_plus", "one_off", "areal"])
def test_the_same_tasks_are_trained_whatever_the_protocol(protocol: str) -> None:
    run = kept(run_of(protocol))
    assert len(run.launcher.trainers[0].batches) == 8
    assert all(len(b.groups) == 4 for _, b in run.launcher.trainers[0].batches)


def test_who_leaves_a_barrier_holds_nobody_back() -> None:
    async def main() -> list[str]:
        barrier, order = TurnBarrier(lambda: True), list[str]()
        paces = {name: barrier.join(name) for name in ("fast", "slow", "gone")}

        async def play(name: str, pace: Pace, seconds: float) -> None:
            await asyncio.sleep(seconds)
            await pace.turn()
            order.append(f"{name} {asyncio.get_running_loop().time():g}")
            await pace.verdict()
            order.append(f"{name} judged {asyncio.get_running_loop().time():g}")
            barrier.leave(name)

        asyncio.get_running_loop().call_later(5.0, barrier.leave, "gone")
        async with asyncio.TaskGroup() as group:
            group.create_task(play("fast", paces["fast"], 1.0))
            group.create_task(play("slow", paces["slow"], 3.0))
        await paces["gone"].turn()  # who has left may pass
        return order

    assert sorted(run_virtual(main)) == ["fast 5", "fast judged 5", "slow 5", "slow judged 5"]
