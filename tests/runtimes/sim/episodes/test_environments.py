"""Modelled environments: their port's contract, their waits, the registry, and being killed."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import pytest

from rollart.core.errors import EnvironmentFailed, FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments
from rollart.core.types import Message, Task
from rollart.runtimes.sim.episodes.environments import EnvironmentLimits, ModelledEnvironments
from rollart.runtimes.sim.episodes.turnstile import Turnstile
from rollart.runtimes.sim.episodes.workload import DrawnDomain, Span
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.world.file import presets
from rollart.runtimes.sim.world.sections import DomainSection, RewardSection
from rollart.testing.conformance import EnvironmentsTrial, check_environments

T = TypeVar("T")

SAY = Message(role="assistant", content="60 tokens")
TASK = Task(domain="lake", key="task-0")
PLAIN: Mapping[str, Any] = {
    "turns": 3,
    "first_tokens": {"uniform": [1, 1000]},
    "observation_tokens": 10,
    "answer_tokens": 5,
    "reset_s": 4,
    "step_s": 1,
}

LIMITS = EnvironmentLimits(reset_s=60.0, step_s=30.0)


class ToldByTask(DrawnDomain):
    """A domain in which two tasks go wrong."""

    def reset(self, name: str) -> Span:
        return Span(seconds=1.0, fails=True) if "/fails/" in name else super().reset(name)

    def step(self, name: str, turn: int) -> Span:
        return Span(seconds=1e9) if "/hangs/" in name else super().step(name, turn)


def make(
    spelled: Mapping[str, Any] = PLAIN,
    *,
    limits: EnvironmentLimits = LIMITS,
    pulls_at_once: int = 1,
) -> ModelledEnvironments:
    spec = DomainSection.model_validate(spelled)
    return ModelledEnvironments(
        ToldByTask(spec, RewardSection(), seed=0), limits, Turnstile(pulls_at_once)
    )


async def opened(environments: Environments, member: int = 0) -> Environment:
    return await environments.open(
        TrajectoryId(run="sim", domain="lake", task="task-0", group=0, member=member)
    )


async def timed(what: Awaitable[T]) -> float:
    began = asyncio.get_running_loop().time()
    await what
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("spelled", [PLAIN, {**PLAIN, "image": {"hit": 0.5, "pull_s": 3}}])
def test_they_conform(spelled: Mapping[str, Any]) -> None:
    async def made() -> Environments:
        return make(spelled)

    trial = EnvironmentsTrial(
        task=TASK,
        action=SAY,
        failing=Task(domain="lake", key="fails"),
        hanging=(Task(domain="lake", key="hangs"), SAY),
        overrun_s=30.0,
        patience_s=100.0,
    )
    run_virtual(lambda: check_environments(made, trial))


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_conforms(name: str) -> None:
    async def made() -> Environments:
        return make(presets()[name])

    trial = EnvironmentsTrial(task=TASK, action=SAY, patience_s=400.0)
    run_virtual(lambda: check_environments(made, trial))


def test_an_episode_takes_its_times_and_its_turns() -> None:
    async def main() -> None:
        environment = await opened(make())
        assert await timed(environment.reset(TASK, 0)) == 4
        for turn in range(3):
            began = asyncio.get_running_loop().time()
            result = await environment.step(SAY)
            assert asyncio.get_running_loop().time() - began == 1
            assert result.observation.messages[0].content == "10 tokens"
            assert result.done is (turn == 2)
        assert dict(result.metrics)["success"] in (0.0, 1.0)

    run_virtual(main)


def test_what_takes_longer_than_its_limit_fails_when_that_is_over() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        environment = await opened(make({**PLAIN, "reset_s": 100}))
        with pytest.raises(EnvironmentFailed, match="the reset took over 60 s") as caught:
            await environment.reset(TASK, 0)
        assert caught.value.kind is FailureKind.ENV_TIMEOUT
        assert loop.time() == 60
        environment = await opened(make({**PLAIN, "step_s": 100}))
        await environment.reset(TASK, 0)
        with pytest.raises(EnvironmentFailed, match="the step took over 30 s") as caught:
            await environment.step(SAY)
        assert caught.value.kind is FailureKind.ENV_TIMEOUT
        assert loop.time() == 60 + 4 + 30

    run_virtual(main)


def test_a_failed_reset_costs_its_time_and_its_trajectory() -> None:
    async def main() -> None:
        spelled = {**PLAIN, "reset_failure": {"chance": 1.0, "seconds": 33}}
        environment = await opened(make(spelled))
        began = asyncio.get_running_loop().time()
        with pytest.raises(EnvironmentFailed, match="failed after 33") as caught:
            await environment.reset(TASK, 0)
        assert caught.value.kind is FailureKind.ENV_RESET
        assert asyncio.get_running_loop().time() - began == 33

    run_virtual(main)


def test_cold_pulls_wait_for_the_registry_and_warm_ones_do_not() -> None:
    async def main(hit: float, at_once: int) -> list[float]:
        spelled = {**PLAIN, "image": {"hit": hit, "pull_s": 10}}
        environments = make(spelled, pulls_at_once=at_once)
        resets = [timed((await opened(environments, member)).reset(TASK, 0)) for member in range(4)]
        return await asyncio.gather(*resets)

    assert run_virtual(lambda: main(0.0, 1)) == [14, 24, 34, 44]
    assert run_virtual(lambda: main(0.0, 2)) == [14, 14, 24, 24]
    assert run_virtual(lambda: main(1.0, 1)) == [4, 4, 4, 4]


@pytest.mark.parametrize("ends_by", ["kill", "cancel", "limit"])
def test_a_pull_that_is_given_up_leaves_its_place_to_the_next(ends_by: str) -> None:
    async def main() -> None:
        spelled = {**PLAIN, "image": {"hit": 0.0, "pull_s": 10}}
        environments = make(spelled, limits=EnvironmentLimits(reset_s=25.0, step_s=1.0))
        open_now = [await opened(environments, member) for member in range(3)]
        resets = [asyncio.ensure_future(one.reset(TASK, 0)) for one in open_now]
        if ends_by != "limit":
            await asyncio.sleep(5)
            for member in (0, 1):  # one that pulls, one that waits
                if ends_by == "kill":
                    open_now[member].kill()
                else:
                    resets[member].cancel()
        done = await asyncio.gather(*resets, return_exceptions=True)
        loop = asyncio.get_running_loop()
        if ends_by == "limit":
            assert loop.time() == 25  # the third waited for 20 s, and its pull took 5 too many
            assert isinstance(done[2], EnvironmentFailed)
            assert await timed((await opened(environments, 3)).reset(TASK, 0)) == 14
        else:
            assert loop.time() == 5 + 14
            assert isinstance(done[0], EnvironmentFailed | asyncio.CancelledError)
            assert isinstance(done[1], EnvironmentFailed | asyncio.CancelledError)
            assert not isinstance(done[2], BaseException)

    run_virtual(main)


def test_killed_before_it_is_used_it_fails_at_once() -> None:
    async def main() -> None:
        environment = await opened(make())
        environment.kill()
        with pytest.raises(EnvironmentFailed, match="it was killed"):
            await environment.reset(TASK, 0)
        assert asyncio.get_running_loop().time() == 0

    run_virtual(main)


def test_a_turnstile_lets_in_whoever_came_first_and_forgets_who_left() -> None:
    async def main() -> None:
        turnstile = Turnstile(1)
        first, second, third, fourth = (turnstile.enter() for _ in range(4))
        assert first.done()
        assert turnstile.waiting == 3
        turnstile.give_back(second)
        third.cancel()
        turnstile.give_back(first)
        assert fourth.done()
        turnstile.give_back(third)  # passed over already
        turnstile.give_back(fourth)
        assert turnstile.waiting == 0
        assert turnstile.enter().done()

    run_virtual(main)
