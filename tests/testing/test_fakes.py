"""Scripts, fakes and the harness: the same seed plays the same schedule, whatever else is drawn."""

import asyncio

import numpy as np
import pytest

from rollart.core.errors import ConfigError, EngineLost, TrainerLost
from rollart.core.identity import PolicyVersion
from rollart.runtimes.sim.loop import SimulationOverrun, run_virtual
from rollart.testing.engine import ScriptedEngine
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.parts import ScriptedEnvironments, ScriptedTrainer
from rollart.testing.rig import identity
from rollart.testing.samples import sample_batch, sample_group, sample_trajectory
from rollart.testing.script import Draw, Script


def test_a_draw_depends_on_seed_and_name_and_on_nothing_drawn_before() -> None:
    first = Draw(1).seconds((0.0, 1.0), "step", 3)
    other = Draw(1)
    other.rng("something else").random()
    assert other.seconds((0.0, 1.0), "step", 3) == first
    assert Draw(2).seconds((0.0, 1.0), "step", 3) != first
    assert Draw(1).seconds((0.0, 1.0), "step", "3") != first


def test_chances_come_true_as_often_as_they_say() -> None:
    hits = sum(Draw(0).chance(0.3, "fails", number) for number in range(2000))
    assert hits / 2000 == pytest.approx(0.3, abs=0.03)
    assert not Draw(0).chance(0.0, "never")
    assert Draw(0).chance(1.0, "always")


def test_a_job_for_tests_is_checked_like_any_other() -> None:
    job = scripted_job(run__steps=7, protocol__alpha=0)
    assert (job.run.steps, job.protocol.alpha) == (7, 0)
    with pytest.raises(ConfigError, match=r"run\.stepz"):
        scripted_job(run__stepz=7)


def test_a_run_that_does_not_end_in_time_is_an_error_and_not_a_wait() -> None:
    job = scripted_job(run__steps=1000)
    with pytest.raises(SimulationOverrun, match="max_virtual_time=10"):
        run_scripted(job, max_virtual_time=10.0)


def test_a_scripted_engine_dies_at_its_token_and_its_next_life_at_its_own() -> None:
    deaths = (("engine-0", 9), ("engine-0", 5), ("engine-1", 1))
    run = run_scripted(scripted_job(), Script(engine_deaths=deaths))
    assert [engine.log.tokens for engine in run.launcher.engines][:2] == [5, 9]
    assert len(run.launcher.engines) == 3


def test_commands_to_a_dead_engine_and_steps_of_a_dead_trainer_fail() -> None:
    async def main() -> None:
        engine, trainer = ScriptedEngine(), ScriptedTrainer(Script())
        engine.die("killed")
        trainer.die("killed")
        with pytest.raises(EngineLost, match="killed"):
            await engine.update(PolicyVersion("agent", 0))
        with pytest.raises(TrainerLost, match="killed"):
            await trainer.train_step(sample_batch())

    run_virtual(main)


def test_environments_with_places_make_the_next_one_wait() -> None:
    async def main() -> None:
        environments = ScriptedEnvironments(Script(), places=1)
        first = await environments.open(identity(0))
        second = asyncio.get_running_loop().create_task(environments.open(identity(1)))
        await asyncio.sleep(1)
        assert not second.done()
        first.kill()
        first.kill()
        (await second).kill()
        assert not environments.open_now

    run_virtual(main)


def test_samples_are_valid_and_differ_where_they_must() -> None:
    group = sample_group(3, members=3, start=2)
    assert [member.score for member in group.members] == [0.0, 1.0, 2.0]
    assert {member.start_version for member in group.members} == {2}
    assert len({member.id for member in sample_batch(groups=2, members=2).trajectories}) == 4
    segment = sample_trajectory(prompt=5, sampled=4).segments[0]
    assert np.array_equal(segment.loss_mask(), [False] * 5 + [True] * 4)
