"""Suites of trainers, tasks, launchers, inventories and event sinks."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from rollart.core.errors import WorkerFailed
from rollart.core.events import Event
from rollart.core.identity import PolicyVersion
from rollart.core.ports import (
    Binding,
    ClassPath,
    Engine,
    EventSink,
    Inventory,
    Launcher,
    PoolState,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.types import LogprobGap, Task, TrainBatch, TrainStats, Trajectory
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import (
    ConformanceError,
    LauncherTrial,
    TaskSourceTrial,
    TrainerTrial,
    check_event_sink,
    check_inventory,
    check_launcher,
    check_task_source,
    check_trainer,
)
from rollart.testing.engine import ScriptedEngine
from rollart.testing.parts import CountedTasks, EventRecorder, ScriptedLauncher, ScriptedTrainer
from rollart.testing.samples import every_event, sample_batch, sample_group
from rollart.testing.script import Script
from rollart.testing.workers import Parrot, ScriptedWorker

QUICK = Script(train_s=(0.01, 0.02), publish_s=(0.0, 0.01))


def silent_batch(version: int) -> TrainBatch:
    """A batch whose members all score alike."""
    group = sample_group(members=2, start=version)
    members = tuple(replace(m, verdict=group.members[0].verdict) for m in group.members)
    return TrainBatch(step=version, groups=(replace(group, members=members),))


def kill_trainer(trainer: Trainer) -> None:
    assert isinstance(trainer, ScriptedTrainer)
    trainer.die("killed")


TRAINER = TrainerTrial(
    batch=sample_batch, silent=silent_batch, kill=kill_trainer, patience_s=2.0, quiet_s=0.05
)


async def check_training(kind: type[ScriptedTrainer]) -> None:
    made: list[ScriptedTrainer] = []

    async def make() -> Trainer:
        made.append(kind(QUICK))
        return made[-1]

    def stored() -> tuple[PolicyVersion, ...]:
        return tuple(PolicyVersion("agent", number) for number in made[-1].published)

    def saved(directory: str) -> bool:
        return directory in made[-1].saved

    await check_trainer(make, replace(TRAINER, stored=stored, saved=saved))


def test_the_scripted_trainer_conforms_on_either_loop() -> None:
    run_virtual(lambda: check_training(ScriptedTrainer))
    asyncio.run(check_training(ScriptedTrainer))


class SkipsTheVersion(ScriptedTrainer):
    """A step that trained nothing does not count."""

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        before = self._version
        stats = await super().train_step(batch)
        if stats.skipped:
            self._version = before
        return stats


class CountsEarly(ScriptedTrainer):
    async def train_step(self, batch: TrainBatch) -> TrainStats:
        self._version = self._version.next()
        stats = await super().train_step(batch)
        self._version = PolicyVersion("agent", stats.version - 1)
        return replace(stats, version=stats.version - 1)


class PublishesLater(ScriptedTrainer):
    async def publish(self) -> PolicyVersion:
        return self._version


class ScoresOldTokens(ScriptedTrainer):
    """Reports that it is not a number where there is nothing to compare."""

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        gap = await super().score((), temperature)
        return replace(gap, maximum=float("nan"))


class SavesNothing(ScriptedTrainer):
    async def save(self, directory: str) -> None:
        return


class DiesInSilence(ScriptedTrainer):
    def die(self, reason: str) -> None:
        return


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (SkipsTheVersion, "each step makes the version one higher"),
        (CountsEarly, "the version changes at the end of a step"),
        (PublishesLater, "what was published can be read"),
        (ScoresOldTokens, "a gap has a count"),
        (SavesNothing, "save writes the weights"),
        (DiesInSilence, "wait_dead returns"),
    ],
)
def test_each_broken_trainer_fails_its_own_clause(kind: type[ScriptedTrainer], clause: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_training(kind))
    assert clause in caught.value.clause


async def check_tasks(make: Callable[[], TaskSource], count: int | None) -> None:
    async def made() -> TaskSource:
        return make()

    await check_task_source(made, TaskSourceTrial(domain="lake", count=count, patience_s=2.0))


def test_counted_tasks_conform_endless_or_not() -> None:
    run_virtual(lambda: check_tasks(lambda: CountedTasks("lake"), None))
    run_virtual(lambda: check_tasks(lambda: CountedTasks("lake", 5), 5))
    asyncio.run(check_tasks(lambda: CountedTasks("lake", 5), 5))


class StartsAgain(CountedTasks):
    """Begins the next epoch by itself."""

    async def next(self) -> Task | None:
        task = await super().next()
        if task is None:
            self._at = 0
        return task


class ForgetsItsPlace(CountedTasks):
    def restore(self, position: int) -> None:
        super().restore(max(position - 1, 0))


class Shuffles(CountedTasks):
    """Draws from a state that all sources share."""

    drawn = 0

    async def next(self) -> Task | None:
        Shuffles.drawn += 1
        task = await super().next()
        return task and replace(task, key=f"task-{Shuffles.drawn}")


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (StartsAgain, "once there are no more"),
        (ForgetsItsPlace, "a position restored is the position"),
        (Shuffles, "the order is the same in every run"),
    ],
)
def test_each_broken_task_source_fails_its_own_clause(
    kind: type[CountedTasks], clause: str
) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_tasks(lambda: kind("lake", 5), 5))
    assert clause in caught.value.clause


def binding(worker: str) -> Binding:
    return Binding(worker=worker, hardware="virtual", parts=(("virtual", "generate"),))


def kill_engine(engine: Engine) -> None:
    assert isinstance(engine, ScriptedEngine)
    engine.die("killed")


LAUNCHER = LauncherTrial(
    engines=(binding("engine-0"), binding("engine-1")),
    trainer=binding("trainer"),
    domain="lake",
    kill=kill_engine,
    patience_s=2.0,
)


async def check_launching(make: Callable[[], Launcher]) -> None:
    async def made() -> Launcher:
        return make()

    await check_launcher(made, LAUNCHER)


def test_the_scripted_launcher_conforms_on_either_loop() -> None:
    run_virtual(lambda: check_launching(ScriptedLauncher))
    asyncio.run(check_launching(ScriptedLauncher))


class LeavesThemRunning(ScriptedLauncher):
    async def close(self) -> None:
        return


class OneEngineForAll(ScriptedLauncher):
    """Hands out the engine that it launched before."""

    async def engine(self, binding: Binding) -> Engine:
        return self.engines[0] if self.engines else await super().engine(binding)


class HoldsNothingOut(ScriptedLauncher):
    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return tuple(Task(domain=domain, key=f"task-{i}") for i in range(count))


class HoldsOutDoubles(ScriptedLauncher):
    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return (Task(domain=domain, key="heldout-0"),) * count


class Blaming(ScriptedWorker):
    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        try:
            return await super().call(method, args, kwargs, seconds=seconds)
        except WorkerFailed as failed:
            raise WorkerFailed("somebody", failed.reason) from failed


class BlamesNobody(ScriptedLauncher):
    """Its workers fail under a name that is not theirs."""

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        return Blaming(binding, Parrot(prefix=str(options.get("prefix", ""))))


class ForgetsOptions(ScriptedLauncher):
    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        return await super().worker(binding, kind, {})


class Boasts(ScriptedLauncher):
    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        return (("chance", 1.5),)


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (BlamesNobody, "WorkerFailed with the worker's name"),
        (ForgetsOptions, "a worker answers with its method's result"),
        (Boasts, "a baseline has a name and a share of success"),
        (LeavesThemRunning, "what it launched ends when it is closed"),
        (OneEngineForAll, "an engine is what its binding says"),
        (HoldsNothingOut, "training never meets a held-out task"),
        (HoldsOutDoubles, "held-out tasks are distinct"),
    ],
)
def test_each_broken_launcher_fails_its_own_clause(
    kind: type[ScriptedLauncher], clause: str
) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_launching(kind))
    assert clause in caught.value.clause


class Overbooked(ScriptedLauncher):
    async def pools(self) -> tuple[PoolState, ...]:
        return (PoolState(name="virtual", hardware="virtual", slots=8, free=9),)


class Namesakes(ScriptedLauncher):
    async def pools(self) -> tuple[PoolState, ...]:
        return 2 * await super().pools()


def test_an_inventory_has_named_pools_with_free_slots_among_the_slots() -> None:
    async def check(kind: type[ScriptedLauncher]) -> None:
        async def made() -> Inventory:
            return kind()

        await check_inventory(made)

    run_virtual(lambda: check(ScriptedLauncher))
    with pytest.raises(ConformanceError, match="free slots are among the slots"):
        run_virtual(lambda: check(Overbooked))
    with pytest.raises(ConformanceError, match="names of their own"):
        run_virtual(lambda: check(Namesakes))


def kept(sink: EventSink) -> Sequence[Event]:
    assert isinstance(sink, EventRecorder)
    return [event for _, event in sink.events]


class Picky(EventRecorder):
    def emit(self, event: Event) -> None:
        super().emit(event)
        assert kept(self)[0] == event, "only one kind"


class NewestFirst(EventRecorder):
    def emit(self, event: Event) -> None:
        super().emit(event)
        self.events.insert(0, self.events.pop())


class Slow(EventRecorder):
    def emit(self, event: Event) -> None:
        time.sleep(0.02)
        super().emit(event)


def test_an_event_sink_takes_every_event_in_order_and_at_once() -> None:
    asyncio.run(check_event_sink(EventRecorder, kept=kept))
    for kind, words in (
        (Picky, "emit never raises"),
        (NewestFirst, "events are kept in order"),
        (Slow, "emit does not block"),
    ):
        with pytest.raises(ConformanceError, match=words):
            asyncio.run(check_event_sink(kind, kept=kept, times=1))


def test_the_sample_events_are_one_of_each_kind() -> None:
    assert [type(event) for event in every_event()] == list(get_args(Event))
