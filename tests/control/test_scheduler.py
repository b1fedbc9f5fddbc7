"""The scheduler over whole runs: groups end whole, losses are named, nothing is held back."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rollart.control.assembly import ControlParts
from rollart.control.controller import Controller
from rollart.control.env_manager import EnvManager
from rollart.control.flight import Flight
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler
from rollart.control.task_queue import QueuedTask, TaskQueue
from rollart.core.events import (
    Admitted,
    BatchTaken,
    CreditsReturned,
    Disposed,
    LedgerClosed,
    Phase,
    PhaseBegan,
    PhaseEnded,
    TrajectoryEnded,
    TrajectoryStarted,
)
from rollart.core.ports import Reward, TaskSource
from rollart.core.types import Disposition, Group, Trajectory, Verdict
from rollart.runtimes.sim.chaos.evidence import group_of
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import CountedTasks, ScriptedLauncher, ScriptedReward
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

FINITE = Script(turns=(1, 3), step_s=(0.1, 0.3))


def kept(run: ScriptedRun) -> ScriptedRun:
    assert broken_promises(run) == []
    return run


def left(run: ScriptedRun) -> Counter[Disposition]:
    return Counter(event.disposition for event in run.events.of(Disposed))


def get_batch_seconds(run: ScriptedRun) -> list[float]:
    return [e.seconds for e in run.events.of(PhaseEnded) if e.phase is Phase.GET_BATCH]


def test_members_that_vanish_are_resampled_and_every_batch_is_full() -> None:
    job = scripted_job(
        protocol__alpha=0, rollout__batch_groups=8, rollout__group_size=16, run__steps=2
    )
    run = kept(run_scripted(job, replace(FINITE, step_hangs=0.04)))
    assert run.result.ok
    assert [taken.trajectories for taken in run.events.of(BatchTaken)] == [128, 128]
    lost = [e.failure for e in run.events.of(TrajectoryEnded) if e.status == "failed"]
    assert len(lost) >= 3
    assert set(lost) == {"env_timeout"}


def test_a_hung_environment_is_killed_its_member_resampled_and_a_ready_group_is_not_held_back() -> (
    None
):
    script = replace(FINITE, step_hangs_for=("task-0",))
    job = scripted_job(rollout__batch_groups=1, rollout__group_size=2, run__steps=3)
    run = kept(run_scripted(job, script))
    assert run.result.ok
    first = run.launcher.trainers[0].batches[0][1].groups[0]
    assert first.task.key == "task-1"
    assert get_batch_seconds(run)[0] < job.timeouts.env_step_s
    hung = [e for e in run.events.of(TrajectoryEnded) if "/task-0/" in e.trajectory]
    assert {e.failure for e in hung} <= {"env_timeout"}


def test_when_every_group_is_filtered_the_run_stops_with_counts_per_reason() -> None:
    job = scripted_job(run__steps=2, train__drop_zero_variance=True, faults__max_dead_groups=20)
    run = kept(run_scripted(job, replace(FINITE, equal_scores=1.0)))
    assert not run.result.ok
    assert "20 groups in a row could not be trained (20 filtered)" in run.result.reason
    assert f"{left(run)[Disposition.FILTERED]} filtered" in run.result.reason


def test_when_every_reward_refuses_the_run_stops_and_names_the_failures() -> None:
    job = scripted_job(faults__max_dead_groups=10, faults__max_no_verdict=1.0)
    run = kept(run_scripted(job, replace(FINITE, reward_refuses=1.0)))
    assert not run.result.ok
    assert "incomplete" in run.result.reason
    assert set(left(run)) <= {Disposition.FAILED, Disposition.CANCELLED}


def test_with_nine_groups_of_ten_filtered_every_batch_is_still_full() -> None:
    job = scripted_job(run__steps=4, train__drop_zero_variance=True)
    run = kept(run_scripted(job, replace(FINITE, equal_scores=0.9)))
    assert run.result.ok
    assert [len(batch.groups) for _, batch in run.launcher.trainers[0].batches] == [4] * 4
    assert left(run)[Disposition.FILTERED] > left(run)[Disposition.TRAINED]


def test_groups_beyond_a_batch_stay_for_the_next_one_and_no_task_is_lost() -> None:
    script = replace(FINITE, train_s=(60.0, 60.0))
    job = scripted_job(protocol__alpha=3, run__steps=8, timeouts__train_s=100.0)
    run = kept(run_scripted(job, script, tasks=30))
    trained = [g.task.key for _, b in run.launcher.trainers[0].batches for g in b.groups]
    assert sorted(trained) == sorted(f"task-{i}" for i in range(30))
    assert [len(b.groups) for _, b in run.launcher.trainers[0].batches] == [4] * 7 + [2]


def test_ten_ids_in_batches_of_four_over_two_epochs_are_twenty_trainings() -> None:
    class TwoEpochs(ScriptedLauncher):
        async def tasks(self, domain: str) -> TaskSource:
            return CountedTasks(domain, 20, distinct=10)

    run = kept(run_scripted(scripted_job(run__steps=50), FINITE, launcher=TwoEpochs))
    assert run.result.ok
    trained = Counter(g.task.key for _, b in run.launcher.trainers[0].batches for g in b.groups)
    assert trained == {f"task-{i}": 2 for i in range(10)}


def test_a_producer_fifty_times_faster_than_the_trainer_waits_and_nothing_grows() -> None:
    script = Script(
        turns=(1, 1),
        tokens_per_turn=(1, 1),
        token_s=(0.1, 0.1),
        reset_s=(0.1, 0.1),
        step_s=(0.0, 0.0),
        reward_s=(0.0, 0.0),
        train_s=(50.0, 50.0),
    )
    most = [0]

    class Measured(SampleBuffer):
        def put(self, group: Group) -> None:
            super().put(group)
            most[0] = max(most[0], len(self))

    job = scripted_job(run__steps=10)
    run = kept(run_scripted(job, script, parts=ControlParts(buffer=Measured)))
    assert run.result.ok
    assert most[0] <= job.capacity_groups
    assert left(run)[Disposition.TRAINED] == 160
    assert left(run).total() <= 160 + job.capacity_trajectories


def test_a_judge_that_takes_a_minute_holds_back_no_complete_batch_and_is_cancelled_at_the_end() -> (
    None
):
    job = scripted_job(
        run__steps=2,
        rollout__batch_groups=1,
        timeouts__reward_s=60.0,
        timeouts__episode_s=300.0,
    )
    run = kept(run_scripted(job, replace(FINITE, reward_hangs_for=("task-0",), train_s=(1.0, 1.0))))
    assert run.result.ok
    assert max(get_batch_seconds(run)) < 6.0
    assert run.launcher.rewards_of["lake"].running == 0
    assert left(run)[Disposition.CANCELLED] > 0


def test_a_member_without_a_score_is_kept_out_and_counted_and_the_others_are_trained() -> None:
    run = kept(run_scripted(scripted_job(run__steps=6), replace(FINITE, reward_refuses=0.35)))
    members = [g.members for _, b in run.launcher.trainers[0].batches for g in b.groups]
    assert len({len(group) for group in members}) > 1
    assert all(member.score is not None for group in members for member in group)
    assert all(len(group) >= 2 for group in members)
    refused = [e for e in run.events.of(TrajectoryEnded) if e.failure == "reward_error"]
    assert left(run)[Disposition.FAILED] == len(refused) > 0


def test_a_group_with_a_single_scored_member_leaves_as_incomplete_and_its_task_is_tried_again() -> (
    None
):
    class RefusesGroupZero(ScriptedReward):
        async def score(self, trajectory: Trajectory) -> Verdict:
            ident = trajectory.id
            if ident.group == 0 and ident.member > 0:
                return Verdict(score=None, reason="not today")
            return await super().score(trajectory)

    class Launches(ScriptedLauncher):
        async def reward(self, domain: str) -> Reward:
            return RefusesGroupZero(self.script)

    run = run_scripted(scripted_job(run__steps=6), FINITE, launcher=Launches)
    assert run.result.ok
    first = [e for e in run.events.of(Disposed) if group_of(e.trajectory) == 0]
    assert Counter(e.disposition for e in first) == {
        Disposition.FAILED: 9,
        Disposition.INCOMPLETE_GROUP: 1,
    }
    again = [e for e in run.events.of(Admitted) if e.task == "task-0"]
    assert [e.requeued for e in again] == [False, True]
    trained = [g.task.key for _, b in run.launcher.trainers[0].batches for g in b.groups]
    assert trained.count("task-0") == 1


def test_members_are_joined_by_identity_and_groups_may_differ_in_size() -> None:
    run = kept(run_scripted(scripted_job(run__steps=6), replace(FINITE, reward_refuses=0.35)))
    for _, batch in run.launcher.trainers[0].batches:
        for group in batch.groups:
            assert {member.id.group for member in group.members} == {group.id}
            numbers = [member.id.member for member in group.members]
            assert numbers == sorted(set(numbers))
            assert all(member.task == group.task for member in group.members)


def test_every_attempt_has_its_own_identity_and_leaves_once() -> None:
    run = kept(run_scripted(scripted_job(), replace(FINITE, step_fails=0.4, reset_fails=0.2)))
    started = Counter(event.trajectory for event in run.events.of(TrajectoryStarted))
    assert set(started.values()) == {1}
    attempts = {int(name.rsplit(".", 1)[1]) for name in started}
    assert attempts == {0, 1, 2}


def test_an_error_that_is_nobodys_failure_ends_the_run_with_its_words() -> None:
    class Buggy(EnvManager):
        async def rollout(self, flight: Flight, **options: Any) -> Trajectory:
            if flight.id.group == 5:
                raise KeyError("a bug of ours")
            return await super().rollout(flight, **options)

    run = run_scripted(scripted_job(), FINITE, parts=ControlParts(manager=Buggy))
    assert not run.result.ok
    assert "KeyError: 'a bug of ours'" in run.result.reason
    last = run.events.of(LedgerClosed)[-1]
    assert (last.balanced, last.in_flight) == (True, 0)


def test_a_stale_group_leaves_whole_and_its_task_comes_back_under_a_new_group() -> None:
    script = Script(turns=(1, 8), tokens_per_turn=(5, 20), token_s=(0.05, 0.4), train_s=(2.0, 4.0))
    job = scripted_job(run__steps=10, rollout__batch_groups=2)
    run = kept(run_scripted(job, script))
    stale = [e for e in run.events.of(Disposed) if e.disposition is Disposition.STALE]
    assert stale
    for group in {group_of(event.trajectory) for event in stale}:
        ends = [e for e in run.events.of(Disposed) if group_of(e.trajectory) == group]
        assert {e.disposition for e in ends} == {Disposition.STALE}
        task = ends[0].trajectory.split("/")[1]
        later = [e for e in run.events.of(Admitted) if e.task == task and e.group > group]
        assert later[0].requeued
    assert all(e.censored or e.elapsed_s > 0 for e in stale)


def test_what_waited_in_the_buffer_past_the_bound_is_counted_stale_and_not_trained() -> None:
    job = scripted_job(protocol__alpha=1, run__steps=3)

    class FromLongAgo(SampleBuffer):
        """Its first group says that it began four versions ago."""

        def put(self, group: Group) -> None:
            super().put(replace(group, start_version=-4) if group.id == 0 else group)

    run = run_scripted(job, FINITE, parts=ControlParts(buffer=FromLongAgo))
    gone = [e for e in run.events.of(Disposed) if group_of(e.trajectory) == 0]
    assert {e.disposition for e in gone} == {Disposition.STALE}
    assert all(g.id != 0 for _, b in run.launcher.trainers[0].batches for g in b.groups)


def test_domains_share_rollout_by_their_weights() -> None:
    job = scripted_job(
        run__steps=6,
        domains=[
            {"tag": "lake", "environment": "none:None", "weight": 3.0},
            {"tag": "maze", "environment": "none:None", "weight": 1.0},
        ],
    )
    run = kept(run_scripted(job, FINITE))
    trained = Counter(g.task.domain for _, b in run.launcher.trainers[0].batches for g in b.groups)
    assert trained["lake"] / trained.total() == pytest.approx(0.75, abs=0.1)


def test_credits_of_a_batch_return_at_its_resume_and_not_before() -> None:
    run = kept(run_scripted(scripted_job(), FINITE))
    order = [
        type(event).__name__ + (f" {event.phase}" if isinstance(event, PhaseBegan) else "")
        for _, event in run.events.events
        if isinstance(event, BatchTaken | CreditsReturned)
        or (isinstance(event, PhaseBegan) and event.phase is Phase.RESUME)
    ]
    taken = order.index("BatchTaken")
    assert order[taken + 1 : taken + 3] == ["PhaseBegan resume", "CreditsReturned"]


def test_a_task_that_is_slow_is_trained_as_often_as_it_is_drawn() -> None:
    assert share_of_slow(ControlParts()) == pytest.approx(0.25, abs=0.03)


def test_a_queue_that_drops_stale_tasks_and_batches_newest_first_starves_the_slow_ones() -> None:
    class Discards(TaskQueue):
        def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
            return

    class Naive(RolloutScheduler):
        def __init__(self, *, tasks: TaskQueue, **parts: Any) -> None:
            super().__init__(tasks=Discards(tasks._sources, tasks._weights, tasks._events), **parts)

    class TakesNewest(SampleBuffer):
        def take(self, count: int, *, in_order: bool = False) -> tuple[Group, ...]:
            newest = sorted(self._groups.values(), key=lambda group: -group.start_version)
            return self.evict(lambda group: group in newest[:count])

    naive = share_of_slow(ControlParts(scheduler=Naive, buffer=TakesNewest))
    assert naive < 0.22


def share_of_slow(parts: ControlParts) -> float:
    """48 tasks of about 1 s and 16 of about 5 s, over and over, with steps of 3 s and alpha 1."""

    class SixtyFour(ScriptedLauncher):
        async def tasks(self, domain: str) -> TaskSource:
            return CountedTasks(domain, None, distinct=64)

    slow = {f"task-{4 * i}" for i in range(16)}
    script = Script(
        turns=(1, 1),
        tokens_per_turn=(1, 1),
        token_s=(0.01, 0.01),
        reset_s=(0.4, 0.5),
        step_s=(0.4, 0.5),
        reward_s=(0.01, 0.01),
        train_s=(3.0, 3.0),
        publish_s=(0.01, 0.01),
        update_s=(0.01, 0.01),
        slow_tasks=dict.fromkeys(slow, 5.0),
    )
    job = scripted_job(run__steps=60, rollout__batch_groups=16, rollout__group_size=2)
    run = run_scripted(job, script, launcher=SixtyFour, parts=parts)
    assert run.result.ok
    trained = [g.task.key for _, b in run.launcher.trainers[0].batches for g in b.groups]
    return sum(key in slow for key in trained) / len(trained)


def test_what_is_in_flight_can_be_read_by_people() -> None:
    seen: list[Counter[str]] = []

    def look(controller: Controller, _: ScriptedLauncher) -> None:
        scheduler = controller._scheduler
        asyncio.get_running_loop().call_at(1.0, lambda: seen.append(scheduler.waiting()))

    run_scripted(scripted_job(), FINITE, meddle=look)
    assert seen[0].total() > 0
    assert set(seen[0]) <= {"environment", "engine", "reward"}
