"""The controller: how runs end, in order, with their reason, whatever happens."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from rollart.control.assembly import assemble, declared_placement
from rollart.control.controller import Controller
from rollart.core.events import (
    Admitted,
    BatchTaken,
    Disposed,
    EngineDown,
    Evaluated,
    LedgerClosed,
    PhaseEnded,
    RunEnded,
    StepTrained,
    Warned,
)
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, Engine, TaskSource, Trainer
from rollart.core.types import LogprobGap, Task, Trajectory
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.engine import ScriptedEngine
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import CountedTasks, EventRecorder, ScriptedLauncher, ScriptedTrainer
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

LATE_S = 50_000.0


def at(seconds: float, what: Callable[..., object], *args: object) -> None:
    """Call `what` at a virtual time."""
    asyncio.get_running_loop().call_at(seconds, what, *args)


def kept(run: ScriptedRun) -> ScriptedRun:
    assert broken_promises(run) == []
    return run


def launching_trainer(kind: type[ScriptedTrainer]) -> type[ScriptedLauncher]:
    """A launcher whose trainers are of one kind."""

    class Launches(ScriptedLauncher):
        async def trainer(self, binding: Binding) -> Trainer:
            self.trainers.append(kind(self.script))
            return self.trainers[-1]

    return Launches


def test_a_run_trains_its_steps_saves_and_says_so() -> None:
    run = kept(run_scripted(scripted_job()))
    assert (run.result.ok, run.result.reason, run.result.steps) == (True, "all steps are done", 5)
    assert run.launcher.trainers[0].saved == ["weights"]
    assert run.events.of(RunEnded)[0].steps == 5
    last = run.events.of(LedgerClosed)[-1]
    assert (last.in_flight, last.buffered, last.balanced) == (0, 0, True)


@pytest.mark.parametrize("alpha", [0, 1])
def test_a_train_step_longer_than_the_stall_limit_is_no_stall(alpha: int) -> None:
    job = scripted_job(protocol__alpha=alpha, run__steps=3, timeouts__train_s=1000.0)
    run = kept(run_scripted(job, Script(train_s=(500.0, 500.0))))
    assert run.result.ok, run.result.reason


def test_a_turn_longer_than_the_stall_limit_is_no_stall_while_tokens_come() -> None:
    job = scripted_job(run__steps=2, timeouts__episode_s=1000.0, timeouts__stall_s=20.0)
    script = Script(turns=(1, 1), tokens_per_turn=(60, 60), token_s=(1.0, 1.0))
    run = kept(run_scripted(job, script))
    assert run.result.ok, run.result.reason


def test_when_nothing_moves_the_run_ends_and_says_what_waits_for_what() -> None:
    job = scripted_job(
        timeouts__stall_s=10.0, timeouts__episode_s=100_000.0, timeouts__env_step_s=50_000.0
    )
    run = kept(run_scripted(job, Script(step_hangs=1.0), max_virtual_time=LATE_S))
    assert not run.result.ok
    assert "no progress for 10 s" in run.result.reason
    assert "for environment" in run.result.reason


@pytest.mark.parametrize(("tasks", "steps"), [(3, 1), (4, 1), (10, 3), (20, 5)])
def test_when_tasks_end_every_one_is_trained_and_the_run_ends_at_once(
    tasks: int, steps: int
) -> None:
    job = scripted_job(run__steps=50)
    run = kept(run_scripted(job, tasks=tasks))
    assert run.result.ok
    assert run.result.steps == steps
    trained = [
        group.task.key for _, batch in run.launcher.trainers[0].batches for group in batch.groups
    ]
    assert sorted(trained) == sorted(f"task-{i}" for i in range(tasks))
    took = [event.seconds for event in run.events.of(PhaseEnded)]
    assert max(took) < job.timeouts.stall_s


def test_a_run_that_could_train_nothing_is_not_a_success() -> None:
    run = kept(run_scripted(scripted_job(), tasks=0))
    assert not run.result.ok
    assert "nothing was trained" in run.result.reason


def test_the_end_of_the_tasks_is_noticed_at_once_also_when_the_source_is_slow() -> None:
    class SlowSource(ScriptedLauncher):
        async def tasks(self, domain: str) -> TaskSource:
            return SlowTasks(domain, 4)

    class SlowTasks(CountedTasks):
        async def next(self) -> Task | None:
            await asyncio.sleep(3.0)
            return await super().next()

    job = scripted_job(protocol__alpha=0, run__steps=50)
    run = run_scripted(job, launcher=SlowSource)
    assert run.result.ok
    assert run.events.of(RunEnded)[0].seconds < 60.0


def test_a_stop_ends_the_run_in_order_with_its_weights_saved() -> None:
    def stop(controller: Controller, _: ScriptedLauncher) -> None:
        at(3.0, controller.stop, "somebody asked")
        at(3.1, controller.stop, "and again")

    run = kept(run_scripted(scripted_job(run__steps=1000), meddle=stop))
    assert run.result.interrupted
    assert run.result.reason == "somebody asked"
    assert run.launcher.trainers[0].saved == ["weights"]


def test_a_stop_before_the_run_begins_is_heard() -> None:
    run = run_scripted(
        scripted_job(), meddle=lambda controller, _: controller.stop("before it began")
    )
    assert run.result.interrupted
    assert run.result.steps == 0


@pytest.mark.parametrize("tick", range(40))
def test_a_run_can_be_stopped_at_any_moment(tick: int) -> None:
    def stop(controller: Controller, _: ScriptedLauncher) -> None:
        at(tick * 0.17, controller.stop, "stopped")
        at(tick * 0.17 + 0.01, controller.stop, "stopped again")

    script = Script(step_fails=0.1, engine_deaths=(("engine-0", 30),), update_s=(0.5, 1.0))
    job = scripted_job(run__steps=1000, rollout__engines=2)
    kept(run_scripted(job, script, meddle=stop, max_virtual_time=LATE_S))


def test_a_second_stop_does_not_leave_the_engines_paused() -> None:
    controllers: list[Controller] = []

    class SlowToResume(ScriptedEngine):
        async def update(self, version: PolicyVersion) -> None:
            if version.number == 1:
                asyncio.get_running_loop().call_later(0.5, controllers[0].stop, "once")
                asyncio.get_running_loop().call_later(1.0, controllers[0].stop, "twice")
            await super().update(version)

        async def resume(self) -> None:
            await asyncio.sleep(1.0)
            await super().resume()

    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            self.engines.append(SlowToResume(binding.worker, self.script))
            return self.engines[-1]

    run = kept(
        run_scripted(
            scripted_job(),
            Script(update_s=(5.0, 5.0)),
            launcher=Launches,
            meddle=lambda controller, _: controllers.append(controller),
        )
    )
    assert run.result.reason == "once"
    calls = run.launcher.engines[0].log.calls
    assert [call for call in calls if call in ("pause", "resume")][-1] == "resume"


def test_a_trainer_that_dies_is_noticed_at_once_and_ends_the_run() -> None:
    def kill(_: Controller, launcher: ScriptedLauncher) -> None:
        at(2.0, lambda: launcher.trainers[0].die("killed by signal 9"))

    run = kept(run_scripted(scripted_job(run__steps=1000), meddle=kill))
    assert not run.result.ok
    assert "killed by signal 9" in run.result.reason
    assert run.events.events[-1][0] < 4.0
    assert run.launcher.trainers[0].saved == []


def test_a_trainer_that_hangs_ends_the_run_at_its_deadline() -> None:
    job = scripted_job(timeouts__train_s=30.0)
    run = kept(run_scripted(job, Script(train_s=(1e6, 1e6)), max_virtual_time=LATE_S))
    assert not run.result.ok
    assert "took over 30 s" in run.result.reason


def test_a_trainer_that_does_not_answer_during_evaluation_ends_the_run_at_a_deadline() -> None:
    class Mute(ScriptedTrainer):
        async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
            return await asyncio.get_running_loop().create_future()

    run = run_scripted(
        scripted_job(eval__tasks=4), launcher=launching_trainer(Mute), max_virtual_time=LATE_S
    )
    assert not run.result.ok
    assert "compare" in run.result.reason


def test_weights_that_cannot_be_published_end_the_run_with_the_words() -> None:
    class Full(ScriptedTrainer):
        async def publish(self) -> PolicyVersion:
            if self.version.number == 2:
                raise OSError("no space left on device")
            return await super().publish()

    run = kept(run_scripted(scripted_job(), launcher=launching_trainer(Full)))
    assert (run.result.ok, run.result.steps) == (False, 1)
    assert "no space left on device" in run.result.reason


def test_weights_that_cannot_be_saved_are_said_and_the_run_is_no_success() -> None:
    class ReadOnly(ScriptedTrainer):
        async def save(self, directory: str) -> None:
            raise PermissionError("read only")

    run = kept(run_scripted(scripted_job(), launcher=launching_trainer(ReadOnly)))
    assert not run.result.ok
    assert "read only" in run.result.reason
    assert any("not saved" in warning.message for warning in run.events.of(Warned))


def test_the_time_limit_ends_the_run_between_two_steps() -> None:
    job = scripted_job(run__steps=1000, run__time_limit_s=30.0)
    run = kept(run_scripted(job, Script(train_s=(2.0, 2.0))))
    assert run.result.ok
    assert "time limit of 30 s" in run.result.reason
    assert 5 < run.result.steps < 20
    progress = [batch.progress for _, batch in run.launcher.trainers[0].batches]
    assert progress == sorted(progress)
    assert 0.8 < progress[-1] <= 1.0


def test_the_last_engine_that_is_lost_for_good_ends_the_run_with_the_reason() -> None:
    deaths = [("engine-0", tokens) for tokens in (20, 21, 22)]
    job = scripted_job(faults__attempts=2)
    run = kept(run_scripted(job, Script(engine_deaths=deaths)))
    assert not run.result.ok
    assert "no engine is left" in run.result.reason
    assert len(run.events.of(EngineDown)) == 3


def test_what_a_stop_finds_in_flight_leaves_as_cancelled() -> None:
    def stop(controller: Controller, _: ScriptedLauncher) -> None:
        at(0.7, controller.stop, "stopped")

    run = kept(run_scripted(scripted_job(), meddle=stop))
    left = {event.disposition for event in run.events.of(Disposed)}
    assert left == {"cancelled"}
    assert not run.events.of(BatchTaken)


def test_measuring_plays_the_held_out_tasks_and_trains_saves_and_admits_nothing() -> None:
    async def main() -> None:
        events, fakes = EventRecorder(), ScriptedLauncher()
        job = scripted_job(eval__tasks=6)
        controller = await assemble(
            job,
            fakes,
            run_id="run",
            placement=declared_placement(job),
            save_to=None,
            events=events,
        )
        result = await controller.measure()
        assert result.ok, result.reason
        assert [(e.mode, e.scored) for e in events.of(Evaluated)] == [("sampled", 6), ("greedy", 6)]
        assert not events.of(StepTrained)
        assert not events.of(Admitted)
        assert len(events.of(RunEnded)) == 1
        assert fakes.engines[0].live_requests == 0

    run_virtual(main)
