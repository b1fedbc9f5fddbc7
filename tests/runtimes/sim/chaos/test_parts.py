"""The parts that stand around others: without a fault they change nothing, and each fault bites."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from rollart.core.errors import EngineLost, EnvironmentFailed, RollartError, WeightsMissing
from rollart.core.events import PhaseBegan, PhaseEnded
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import (
    Binding,
    Engine,
    Environment,
    Environments,
    Launcher,
    Reward,
    Trainer,
)
from rollart.core.types import GenerateRequest, Message, Task, TokenDelta
from rollart.runtimes.sim.chaos.driver import FaultDriver
from rollart.runtimes.sim.chaos.faults import STEP_OF, Fault, FaultKind, Step
from rollart.runtimes.sim.chaos.faulty_engine import FaultyEngine
from rollart.runtimes.sim.chaos.faulty_launcher import FaultyLauncher, FaultyTrainer
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import (
    EngineTrial,
    EnvironmentsTrial,
    LauncherTrial,
    RewardTrial,
    TrainerTrial,
    check_engine,
    check_environments,
    check_launcher,
    check_reward,
    check_trainer,
)
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.samples import sample_batch, sample_trajectory
from rollart.testing.script import Script

LONG = Script(tokens_per_turn=(30, 60), token_s=(0.001, 0.003), update_s=(0.0, 0.01))
ENGINE = Binding(worker="engine-0", hardware="virtual")
TRAINER = Binding(worker="trainer", hardware="virtual")
PHASE_OF = {step: phase for phase, step in STEP_OF.items()}


def fault(kind: FaultKind, *, lasts_s: float = 5.0, times: int = 1, pick: int = 1) -> Fault:
    return Fault(
        kind=kind,
        step=Step.GET_BATCH,
        nth=0,
        delay_s=0.0,
        lasts_s=lasts_s,
        times=times,
        pick=pick,
    )


def standing(*faults: Fault, script: Script = LONG) -> tuple[FaultDriver, FaultyLauncher]:
    driver = FaultDriver(faults)
    return driver, FaultyLauncher(ScriptedLauncher(script), driver)


def come(driver: FaultDriver) -> None:
    """The run enters the step of every fault here."""
    driver.emit(PhaseBegan(step=0, phase=PHASE_OF[Step.GET_BATCH]))


# -- without a fault ---------------------------------------------------------------------------


def test_an_engine_without_a_fault_conforms() -> None:
    async def make() -> Engine:
        _, launcher = standing()
        return await launcher.engine(ENGINE)

    def kill(engine: Engine) -> None:
        assert isinstance(engine, FaultyEngine)
        engine.die("killed")

    run_virtual(lambda: check_engine(make, EngineTrial(kill=kill)))


def test_a_trainer_without_a_fault_conforms() -> None:
    async def make() -> Trainer:
        _, launcher = standing()
        return await launcher.trainer(TRAINER)

    def kill(trainer: Trainer) -> None:
        assert isinstance(trainer, FaultyTrainer)
        trainer.die("killed")

    run_virtual(lambda: check_trainer(make, TrainerTrial(batch=sample_batch, kill=kill)))


def test_environments_and_rewards_without_a_fault_conform() -> None:
    trial = EnvironmentsTrial(
        task=Task(domain="lake", key="task-0"), action=Message(role="assistant", content="up")
    )

    async def environments() -> Environments:
        return await standing()[1].environments("lake")

    async def reward() -> Reward:
        return await standing()[1].reward("lake")

    run_virtual(lambda: check_environments(environments, trial))
    run_virtual(lambda: check_reward(reward, RewardTrial(trajectory=sample_trajectory())))


def test_a_launcher_without_a_fault_conforms() -> None:
    async def make() -> Launcher:
        return standing()[1]

    engines = (ENGINE, replace(ENGINE, worker="engine-1"))
    trial = LauncherTrial(engines=engines, trainer=TRAINER, domain="lake")
    run_virtual(lambda: check_launcher(make, trial))


# -- with one ----------------------------------------------------------------------------------


class Heard:
    """What one request yields, with the times."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.deltas: list[TokenDelta] = []

    def sink(self, delta: TokenDelta) -> None:
        self.at.append(asyncio.get_running_loop().time())
        self.deltas.append(delta)

    @property
    def ends(self) -> int:
        return sum(delta.finish is not None for delta in self.deltas)


async def under_way(launcher: FaultyLauncher) -> tuple[FaultyEngine, Heard]:
    """An engine that holds version 0, with one request."""
    engine = await launcher.engine(ENGINE)
    assert isinstance(engine, FaultyEngine)
    await engine.pause()
    await engine.update(PolicyVersion("agent", 0))
    await engine.resume()
    heard = Heard()
    engine.add(request(), heard.sink)
    return engine, heard


def request(number: int = 1) -> GenerateRequest:
    return GenerateRequest(
        id=f"run/lake/task-0/g0.0.0/t0#{number}",
        session="run/lake/task-0/g0.0.0",
        prompt=(np.ones(4, np.int32),),
        max_tokens=20,
        temperature=1.0,
        seed=3,
    )


def with_fault(
    one: Fault, work: Callable[[FaultDriver, FaultyLauncher], Awaitable[None]]
) -> FaultDriver:
    driver, launcher = standing(one)

    async def main() -> None:
        await work(driver, launcher)
        await launcher.close()

    run_virtual(main, max_virtual_time=1000.0)
    return driver


def test_a_dead_engine_is_silent_and_says_that_it_died() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        engine, heard = await under_way(launcher)
        come(driver)
        assert await engine.wait_dead() == "killed"
        with pytest.raises(EngineLost):
            await engine.pause()
        await asyncio.sleep(10.0)
        assert not heard.deltas

    assert with_fault(fault(FaultKind.ENGINE_DIES), work).placed[0].felt == 1


def test_a_slow_engine_delays_without_reordering() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        engine, heard = await under_way(launcher)
        come(driver)
        await engine.rebuild_kv()
        lag = asyncio.get_running_loop().time()
        await asyncio.sleep(5.0)
        assert lag >= 2 * (0.1 + 20 / 10)
        assert heard.ends == 1
        assert len(heard.deltas) == 20
        assert heard.at == sorted(heard.at)
        assert heard.at[0] >= 2.1

    with_fault(fault(FaultKind.ENGINE_SLOWS, pick=20), work)


def test_a_silent_engine_says_everything_at_once_when_it_revives_even_if_closed() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        engine, heard = await under_way(launcher)
        come(driver)
        await asyncio.sleep(1.0)
        assert not heard.deltas
        await engine.close()
        await asyncio.sleep(10.0)
        assert heard.ends == 1
        assert heard.at == [pytest.approx(5.0, abs=0.02)] * len(heard.at)
        assert len(set(heard.at)) == 1

    with_fault(fault(FaultKind.ENGINE_REVIVES), work)


def test_an_engine_that_returns_late_fails_to_start_first() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        await under_way(launcher)
        come(driver)
        for _ in range(2):
            with pytest.raises(RollartError, match="does not start yet"):
                await launcher.engine(ENGINE)
        assert (await launcher.engine(ENGINE)).id == "engine-0"
        assert asyncio.get_running_loop().time() >= 10.0

    with_fault(fault(FaultKind.ENGINE_RETURNS_LATE, times=2), work)


@pytest.mark.parametrize(
    ("kind", "ends", "first_at"),
    [
        (FaultKind.DELTAS_LOST, 0, None),
        (FaultKind.DELTAS_LATE, 1, 5.0),
        (FaultKind.DELTAS_TWICE, 2, 0.0),
    ],
)
def test_results_go_astray(kind: FaultKind, ends: int, first_at: float | None) -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        _, heard = await under_way(launcher)
        come(driver)
        await asyncio.sleep(20.0)
        assert heard.ends == ends
        if first_at is not None:
            assert heard.at[0] == pytest.approx(first_at, abs=0.05)

    driver = with_fault(fault(kind), work)
    assert driver.placed[0].felt == 1
    accused = [sentence for sentence in driver.accusations if "had ended" in sentence]
    assert len(accused) == (kind is FaultKind.DELTAS_TWICE)  # this sink refuses nothing


def test_what_is_taken_of_a_request_that_was_sent_on_is_an_accusation() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        engine, heard = await under_way(launcher)
        engine.add(request(2), heard.sink)
        await asyncio.sleep(10.0)

    driver = with_fault(fault(FaultKind.ENGINE_DIES), work)
    assert all("had been sent on" in sentence for sentence in driver.accusations)
    assert len(driver.accusations) == 20


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FaultKind.PULL_FAILS_ON_ONE, RuntimeError),
        (FaultKind.PULL_FAILS_ON_ALL, RuntimeError),
        (FaultKind.STORE_LOST, WeightsMissing),
    ],
)
def test_a_failed_pull_leaves_the_engine_its_version(
    kind: FaultKind, error: type[Exception]
) -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        trainer = await launcher.trainer(TRAINER)
        engine, _ = await under_way(launcher)
        version = await trainer.publish()
        come(driver)
        await engine.pause()
        with pytest.raises(error):
            await engine.update(version)
        assert engine.version == 0
        await asyncio.sleep(6.0)
        newer = version.next()
        await engine.update(newer)
        assert engine.version == newer.number

    with_fault(fault(kind), work)


def test_a_trainer_that_died_trains_nothing() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        trainer = await launcher.trainer(TRAINER)
        step = asyncio.ensure_future(trainer.train_step(sample_batch(0)))
        await asyncio.sleep(0.1)
        come(driver)
        assert await trainer.wait_dead() == "killed"
        with pytest.raises(RollartError, match="the trainer is gone"):
            await step
        assert not launcher.trainers[0].batches

    with_fault(fault(FaultKind.TRAINER_DIES), work)


@pytest.mark.parametrize(("pick", "messages"), [(0, 0), (1, 2000)])
def test_an_environment_shows_garbage(pick: int, messages: int) -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        environment = await _opened(launcher)
        come(driver)
        shown = await environment.reset(Task(domain="lake", key="task-0"), 1)
        assert len(shown.messages) == messages

    with_fault(fault(FaultKind.ENV_GARBAGE, pick=pick), work)


def test_an_environment_crashes_or_hangs_until_it_is_killed() -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        environment = await _opened(launcher)
        come(driver)
        reset = asyncio.ensure_future(environment.reset(Task(domain="lake", key="task-0"), 1))
        await asyncio.sleep(50.0)
        if not reset.done():
            environment.kill()
        with pytest.raises(EnvironmentFailed):
            await reset
        environment.kill()
        assert not launcher.environments_of["lake"].open_now

    for kind in (FaultKind.ENV_CRASHES, FaultKind.ENV_HANGS):
        assert with_fault(fault(kind), work).placed[0].felt == 1


async def _opened(launcher: FaultyLauncher) -> Environment:
    environments = await launcher.environments("lake")
    ident = TrajectoryId(run="run", domain="lake", task="task-0", group=0, member=0)
    return await environments.open(ident)


@pytest.mark.parametrize(
    ("kind", "pick", "words"),
    [
        (FaultKind.REWARD_REFUSES, 0, "429"),
        (FaultKind.REWARD_WRONG, 0, "nan"),
        (FaultKind.REWARD_WRONG, 1, "inf"),
        (FaultKind.REWARD_WRONG, 2, "str"),
    ],
)
def test_a_reward_refuses_or_answers_nonsense_and_gives_no_verdict(
    kind: FaultKind, pick: int, words: str
) -> None:
    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        reward = await launcher.reward("lake")
        come(driver)
        verdict = await reward.score(sample_trajectory())
        assert verdict.score is None
        assert words in verdict.reason
        assert (await reward.score(sample_trajectory())).score is not None

    with_fault(fault(kind, pick=pick), work)


def test_a_fault_comes_within_its_step_however_short_that_is() -> None:
    late = replace(fault(FaultKind.ENGINE_DIES), delay_s=9.0)

    async def work(driver: FaultDriver, launcher: FaultyLauncher) -> None:
        await under_way(launcher)
        come(driver)
        await asyncio.sleep(1.0)
        assert driver.placed[0].at is None
        driver.emit(PhaseEnded(step=0, phase=PHASE_OF[Step.GET_BATCH], seconds=1.0, ok=True))
        assert driver.placed[0].at == pytest.approx(1.0, abs=0.02)

    with_fault(late, work)
