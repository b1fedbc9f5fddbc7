"""Spares: who is kept, who leaves as surplus, and what that does to what is trained."""

import random
from collections import Counter
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.redundancy import (
    Outcome,
    SurvivalCurve,
    fewer_than,
    first_in_order,
    first_to_finish,
    seconds_until_full,
    surplus_groups,
    worthwhile_spares,
)
from rollart.core.events import Admitted, Disposed, StepTrained, TrajectoryEnded, TurnEnded
from rollart.core.types import Disposition, Trajectory, Verdict
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher, ScriptedReward
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

STRAGGLING = Script(
    seed=5,
    turns=(1, 12),
    tokens_per_turn=(2, 6),
    step_s=(0.2, 0.6),
    train_s=(0.5, 1.0),
    reset_s=(0.0, 0.1),
)


def kept(run: ScriptedRun) -> ScriptedRun:
    assert run.result.ok, run.result.reason
    assert broken_promises(run) == []
    return run


def gone_as(run: ScriptedRun, disposition: Disposition) -> list[Disposed]:
    return [event for event in run.events.of(Disposed) if event.disposition is disposition]


class TestWhoIsKept:
    def test_a_race_keeps_the_first_to_finish(self) -> None:
        assert first_to_finish((5, 0), size=3) is None
        assert first_to_finish((5, 0, 3), size=3) == (5, 0, 3)

    def test_without_bias_a_spare_only_replaces_what_was_given_up(self) -> None:
        keep = {"size": 3, "places": 5}
        assert first_in_order({0, 1, 3, 4}, set(), **keep) is None
        assert first_in_order({0, 1, 2, 4}, set(), **keep) == (0, 1, 2)
        assert first_in_order({0, 2, 4}, {1}, **keep) is None
        assert first_in_order({0, 2, 3}, {1}, **keep) == (0, 2, 3)
        assert first_in_order({3, 4}, {0, 1, 2}, **keep) is None

    @given(
        st.permutations(range(6)), st.sets(st.integers(0, 5), max_size=2), st.permutations(range(6))
    )
    def test_without_bias_the_order_of_finishing_changes_nothing(
        self, one: list[int], given_up: set[int], other: list[int]
    ) -> None:
        kept_by = []
        for order in (one, other):
            done = [place for place in order if place not in given_up]
            kept_by.append(first_in_order(done, given_up, size=4, places=6))
        assert kept_by[0] == kept_by[1] is not None

    def test_too_many_groups_are_ended_by_age_or_without_bias_the_newest(self) -> None:
        live: list[tuple[int, int | None]] = [(4, 2), (5, 1), (6, None)]
        assert surplus_groups(live, (3, 7), count=2, unbiased=False) == (5, 4)
        assert surplus_groups(live, (3, 7), count=4, unbiased=False) == (5, 4, 6, 7)
        assert surplus_groups(live, (3, 7), count=2, unbiased=True) == (7, 6)
        assert surplus_groups(live, (3, 7), count=-1, unbiased=True) == ()


class TestWorthwhileSpares:
    def test_equal_times_are_worth_none(self) -> None:
        assert worthwhile_spares([Outcome(seconds=3.0)] * 64, size=8, most=8) == 0

    def test_a_rare_straggler_is_worth_a_few_and_nothing_is_known_before_enough_was_seen(
        self,
    ) -> None:
        tail = [Outcome(seconds=1.0)] * 58 + [Outcome(seconds=20.0)] * 6
        curve = SurvivalCurve.of(tail)
        costs = [
            (8 + m) * seconds_until_full(curve, size=8, places=8 + m, sound=1.0) for m in range(9)
        ]
        assert costs[0] > 7 * min(costs)
        assert worthwhile_spares(tail, size=8, most=8) == costs.index(min(costs)) == 4
        assert worthwhile_spares(tail, size=8, most=1) == 1
        assert worthwhile_spares(tail[:8], size=8, most=8) == 0

    def test_the_expected_wait_is_that_of_the_order_statistic(self) -> None:
        halves = SurvivalCurve(ages=(1.0, 3.0), ended=(0.5, 1.0))
        assert seconds_until_full(halves, size=2, places=2, sound=1.0) == pytest.approx(2.5)
        assert seconds_until_full(halves, size=1, places=2, sound=1.0) == pytest.approx(1.5)
        assert seconds_until_full(halves, size=1, places=1, sound=0.5) == pytest.approx(4.0)
        assert fewer_than(2, of=3, each=0.5) == pytest.approx(0.5)

    def test_failures_are_worth_more(self) -> None:
        sound = [Outcome(seconds=s / 10) for s in range(20, 60)]
        failing = sound + [Outcome(seconds=2.0, failed=True)] * 20
        assert worthwhile_spares(sound, size=8, most=8) < worthwhile_spares(failing, size=8, most=8)

    def test_cancelled_stragglers_are_not_forgotten(self) -> None:
        """Who was cut off at 1 s would have taken longer: the curve keeps room for that."""
        seen = [Outcome(seconds=1.0)] * 40 + [Outcome(seconds=1.0, censored=True)] * 8
        tail = [Outcome(seconds=30.0)] * 2
        curve = SurvivalCurve.of(seen + tail)
        assert curve.quantile(0.75) == 1.0
        assert curve.quantile(0.9) == 30.0
        naive = SurvivalCurve.of([Outcome(seconds=o.seconds) for o in seen + tail])
        assert naive.quantile(0.9) == 1.0


class TestSpareMembers:
    def test_a_full_group_ends_its_spares_as_surplus_at_engine_and_environment(self) -> None:
        job = scripted_job(redundancy__members=2, run__steps=6)
        run = kept(run_scripted(job, STRAGGLING))
        surplus = gone_as(run, Disposition.SURPLUS)
        assert surplus
        assert all(event.reason == "the group is full" for event in surplus)
        for _, batch in run.launcher.trainers[0].batches:
            assert all(len(group.members) == 4 for group in batch.groups)

    def test_the_same_work_is_done_sooner(self) -> None:
        plain = kept(run_scripted(scripted_job(run__steps=8), STRAGGLING))
        spared = kept(run_scripted(scripted_job(run__steps=8, redundancy__members=4), STRAGGLING))
        ends = [run.events.events[-1][0] for run in (plain, spared)]
        assert ends[1] < 0.9 * ends[0]

    def test_adaptive_starts_without_and_finds_what_the_tail_is_worth(self) -> None:
        job = scripted_job(redundancy={"members": 4, "mode": "adaptive"}, run__steps=12)
        run = kept(run_scripted(job, Script(seed=5, turns=(1, 2), step_hangs=0.1)))
        places = {event.group: 0 for event in run.events.of(Admitted)}
        for event in run.events.of(Disposed):
            place = int(event.trajectory.rsplit(".", 2)[1])
            places[event.group] = max(places[event.group], place + 1)
        assert set(list(places.values())[:4]) == {4}
        assert 4 < max(places.values()) <= 8


class TestSpareGroups:
    @pytest.mark.parametrize("protocol", ["sync_plus", "rollart", "one_off"])
    def test_a_full_batch_ends_them_and_carries_none_over(self, protocol: str) -> None:
        job = scripted_job(
            redundancy__groups=2,
            protocol__name=protocol,
            run__steps=8,
            train__drop_zero_variance=False,
        )
        run = kept(run_scripted(job, STRAGGLING))
        surplus = gone_as(run, Disposition.SURPLUS)
        assert len({event.group for event in surplus}) == 2 * 8
        assert {event.reason for event in surplus} == {"the batch is full"}
        assert not [e for e in run.events.of(Admitted) if e.requeued]

    def test_surplus_comes_before_stale(self) -> None:
        slow = Script(seed=1, turns=(4, 6), slow_tasks={"task-1": 20.0}, train_s=(0.5, 1.0))
        plain = run_scripted(scripted_job(run__steps=20), slow)
        assert gone_as(plain, Disposition.STALE)
        run = kept(run_scripted(scripted_job(run__steps=20, redundancy__groups=2), slow))
        assert gone_as(run, Disposition.SURPLUS)
        assert not gone_as(run, Disposition.STALE)


class LongIsBetter(ScriptedReward):
    """Half of the trajectories are long; those succeed with 0.6, the short with 0.2."""

    async def score(self, trajectory: Trajectory) -> Verdict:
        chance = 0.6 if is_long(trajectory) else 0.2
        return Verdict(score=float(random.Random(str(trajectory.id)).random() < chance))


def is_long(trajectory: Trajectory) -> bool:
    return len(trajectory.turns) > 4


class BiasLauncher(ScriptedLauncher):
    async def reward(self, domain: str) -> ScriptedReward:
        self.rewards_of[domain] = LongIsBetter(self.script)
        return self.rewards_of[domain]


def kept_and_true(mode: str) -> tuple[float, float]:
    """Mean reward of what was trained, and of all that an unhurried judge would have seen.

    A trajectory's length follows from its name, so its chance is known whether it ended or not.
    """
    job = scripted_job(
        run__steps=60,
        protocol__name="sync_plus",
        rollout={"batch_groups": 4, "group_size": 8},
        redundancy={"members": 4, "mode": mode},
        domains=[{"tag": "lake", "environment": "none:None", "max_turns": 16}],
        train={"correction": "behaviour", "drop_zero_variance": False},
    )
    script = Script(seed=2, turns=(1, 8), step_s=(0.5, 0.5), token_s=(0.01, 0.01))
    run = kept(run_scripted(job, script, launcher=BiasLauncher))
    trained = [t for _, batch in run.launcher.trainers[0].batches for t in batch.trajectories]
    assert len(trained) == 60 * 4 * 8
    scores = [t.score for t in trained if t.score is not None]
    return mean(scores), mean([0.6 if is_long(t) else 0.2 for t in trained])


def test_a_race_keeps_the_short_and_the_unbiased_mode_does_not() -> None:
    naive, naive_expected = kept_and_true("race")
    fair, fair_expected = kept_and_true("unbiased")
    assert naive == pytest.approx(0.31, abs=0.03)
    assert fair == pytest.approx(0.40, abs=0.03)
    assert naive_expected < 0.34
    assert abs(fair_expected - 0.4) < 0.01


def test_in_the_unbiased_mode_failures_are_replaced_by_spares() -> None:
    job = scripted_job(
        run__steps=10, redundancy={"members": 2, "mode": "unbiased"}, faults__attempts=1
    )
    script = Script(seed=4, step_fails=0.05)
    run = kept(run_scripted(job, script))
    places = Counter(
        member.id.member
        for _, batch in run.launcher.trainers[0].batches
        for member in batch.trajectories
    )
    assert 0 < places[4] + places[5] < places[0]
    assert gone_as(run, Disposition.FAILED)


def test_lags_and_books_hold_with_spares_of_both_kinds_under_faults() -> None:
    job = scripted_job(
        run__steps=15, redundancy={"members": 2, "groups": 2}, rollout__engines=2, protocol__alpha=2
    )
    script = Script(
        seed=8,
        turns=(1, 8),
        step_hangs=0.01,
        reset_fails=0.05,
        reward_hangs=0.02,
        engine_deaths=(("engine-0", 60), ("engine-1", 200)),
    )
    run = kept(run_scripted(job, script))
    assert max(step.token_lag_max for step in run.events.of(StepTrained)) <= 3
    assert gone_as(run, Disposition.SURPLUS)
    ended = {event.trajectory for event in run.events.of(TrajectoryEnded)}
    cut = {event.trajectory for event in gone_as(run, Disposition.SURPLUS) if event.censored}
    assert not ended & cut
    assert run.events.of(TurnEnded)
