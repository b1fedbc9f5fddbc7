"""Snapshot and restore: nothing is skipped, nothing counted twice, capacity is not inflated."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from rollart.control.admission import Credits
from rollart.control.assembly import ControlParts
from rollart.control.scheduler import RolloutScheduler, SchedulerSnapshot
from rollart.control.weight_sync import WeightSync
from rollart.core.events import Admitted, BatchTaken, LateResult, LedgerClosed, StepTrained
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, Trainer
from rollart.core.types import Group
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher, ScriptedTrainer
from rollart.testing.script import Script

UNEVEN = Script(step_s=(0.0, 1.5), train_s=(0.5, 4.0))


@dataclass
class Restarts:
    """Two runs: the second goes on from a snapshot that the first takes after some steps."""

    after: int
    tasks: int | None
    alpha: int = 1
    version: int = 0
    taken: list[SchedulerSnapshot] = field(default_factory=list[SchedulerSnapshot])

    def first(self) -> ScriptedRun:
        kept, after = self.taken, self.after

        class TakesSnapshot(WeightSync):
            async def iteration(self, step: int) -> None:
                await super().iteration(step)
                if step + 1 == after:
                    kept.append(self._scheduler.snapshot())

        return self.run(ControlParts(sync=TakesSnapshot), steps=self.after, version=0)

    def second(self, steps: int) -> ScriptedRun:
        kept = self.taken

        class Restored(RolloutScheduler):
            def start(self, group: asyncio.TaskGroup) -> None:
                self.restore(kept[0])
                super().start(group)

        version = self.version or self.after
        return self.run(ControlParts(scheduler=Restored), steps=steps, version=version)

    def run(self, parts: ControlParts, *, steps: int, version: int) -> ScriptedRun:
        tasks = self.tasks

        class Launches(ScriptedLauncher):
            async def trainer(self, binding: Binding) -> Trainer:
                trainer = ScriptedTrainer(self.script)
                trainer._version = PolicyVersion("agent", version)
                self.trainers.append(trainer)
                return trainer

        return run_scripted(
            scripted_job(
                run__steps=max(steps, self.alpha + 1),
                protocol__alpha=self.alpha,
                rollout__batch_groups=2,
                rollout__group_size=2,
            ),
            UNEVEN,
            launcher=lambda script: Launches(script, tasks=tasks),
            parts=parts,
        )


def trained(run: ScriptedRun, steps: int | None = None) -> list[str]:
    batches = [batch for _, batch in run.launcher.trainers[0].batches][:steps]
    return [group.task.key for batch in batches for group in batch.groups]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_after_a_restart_every_task_has_been_trained_exactly_once(after: int) -> None:
    restarts = Restarts(after=after, tasks=8)
    before = trained(restarts.first(), after)
    again = trained(restarts.second(steps=20))
    assert Counter(before + again) == Counter(f"task-{i}" for i in range(8))


def test_a_queue_that_forgets_what_was_in_flight_skips_tasks() -> None:
    restarts = Restarts(after=1, tasks=8)
    before = trained(restarts.first(), 1)
    snapshot = restarts.taken[0]
    forgets = Restarts(after=1, tasks=8)
    positions_only = replace(snapshot.tasks, front=())
    forgets.taken.append(replace(snapshot, tasks=positions_only, buffer=()))
    again = trained(forgets.second(steps=20))
    assert len(before + again) < 8


def test_the_ledger_stays_closed_across_a_restart() -> None:
    restarts = Restarts(after=2, tasks=None)
    restarts.first()
    run = restarts.second(steps=4)
    balances = run.events.of(LedgerClosed)
    assert all(balance.balanced for balance in balances)
    assert balances[0].started > restarts.taken[0].ledger.started > 0
    assert not run.events.of(LateResult)


def test_after_a_restart_at_version_100_capacity_is_not_inflated_and_lags_stay_bounded() -> None:
    restarts = Restarts(after=2, tasks=None, version=100)
    restarts.first()
    snapshot = restarts.taken[0]
    ledger = replace(snapshot.ledger, started=0, dispositions=(), kept=())
    restarts.taken[0] = replace(snapshot, buffer=(), ledger=ledger)
    run = restarts.second(steps=6)
    assert {event.capacity for event in run.events.of(Admitted)} == {4}
    assert max(event.outstanding for event in run.events.of(Admitted)) <= 4
    assert max(event.start_lag_max for event in run.events.of(BatchTaken)) <= 1
    assert max(event.token_lag_max for event in run.events.of(StepTrained)) <= 2


def test_a_buffered_group_holds_its_credit_after_a_restart() -> None:
    restarts = Restarts(after=1, tasks=None, alpha=3)
    restarts.first()
    held = len(restarts.taken[0].buffer)
    assert held > 0
    run = restarts.second(steps=4)
    assert run.events.of(Admitted)[0].outstanding == held + 1


def test_no_request_seed_is_used_again_after_a_restart() -> None:
    restarts = Restarts(after=2, tasks=None)
    first, second = restarts.first(), restarts.second(steps=6)

    def seeds(run: ScriptedRun) -> set[int]:
        return {d.request.seed for engine in run.launcher.engines for d in engine.log.dispatches}

    assert seeds(second)
    assert not seeds(first) & seeds(second)


def test_a_snapshot_with_a_batch_in_hand_is_refused() -> None:
    refused: list[str] = []

    class TooEarly(WeightSync):
        async def _get_batch(self, step: int) -> tuple[Group, ...]:
            batch = await super()._get_batch(step)
            try:
                self._scheduler.snapshot()
            except RuntimeError as error:
                refused.append(str(error))
            return batch

    run_scripted(scripted_job(run__steps=2), parts=ControlParts(sync=TooEarly))
    assert len(refused) == 2
    assert "between two iterations" in refused[0]


def test_credits_count_from_their_own_capacity_whatever_the_version() -> None:
    held = Credits(8)
    for _ in range(8):
        held.take()
    with pytest.raises(RuntimeError, match="all 8 credits are taken"):
        held.take()
