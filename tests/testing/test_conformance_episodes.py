"""Suites of environments, rewards and renderers: fakes pass, broken ones fail their own clause."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments, Rendered, Renderer, Reward
from rollart.core.tokens import Int32Array, TokenBlock
from rollart.core.types import Message, Observation, StepResult, Task, Trajectory, Verdict
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import (
    ConformanceError,
    EnvironmentsTrial,
    RendererTrial,
    RewardTrial,
    check_environments,
    check_renderer,
    check_reward,
)
from rollart.testing.parts import (
    PlainRenderer,
    ScriptedEnvironment,
    ScriptedEnvironments,
    ScriptedReward,
)
from rollart.testing.samples import sample_trajectory
from rollart.testing.script import Script

FAST = Script(
    turns=(3, 3),
    reset_s=(0.0, 0.01),
    step_s=(0.0, 0.01),
    reward_s=(0.0, 0.01),
    reset_fails_for=("fails",),
    step_hangs_for=("hangs",),
    reward_hangs_for=("hangs",),
    reward_refuses_for=("refuses",),
)
SAY = Message(role="assistant", content="left")
ENVIRONMENTS = EnvironmentsTrial(
    task=Task(domain="lake", key="task-0"),
    action=SAY,
    failing=Task(domain="lake", key="fails"),
    hanging=(Task(domain="lake", key="hangs"), SAY),
    places=3,
    quiet_s=0.05,
)
REWARD = RewardTrial(
    trajectory=sample_trajectory(),
    unscorable=sample_trajectory(key="refuses"),
    hanging=sample_trajectory(key="hangs"),
    quiet_s=0.05,
)


async def check_envs(make: Callable[[], Environments]) -> None:
    async def made() -> Environments:
        return make()

    await check_environments(made, replace(ENVIRONMENTS, patience_s=2.0))


async def check_scores(make: Callable[[], Reward]) -> None:
    async def made() -> Reward:
        return make()

    await check_reward(made, replace(REWARD, patience_s=2.0))


async def check_tokens(make: Callable[[], Renderer], trial: RendererTrial) -> None:
    async def made() -> Renderer:
        return make()

    await check_renderer(made, trial)


def scripted(kind: type[ScriptedEnvironment] = ScriptedEnvironment) -> Environments:
    class Opens(ScriptedEnvironments):
        async def open(self, trajectory: TrajectoryId) -> Environment:
            await super().open(trajectory)
            return kind(self, trajectory)

    return Opens(FAST, places=3)


def test_the_scripted_environments_conform_on_either_loop() -> None:
    run_virtual(lambda: check_envs(scripted))
    asyncio.run(check_envs(scripted))


class KillsNothing(ScriptedEnvironment):
    def kill(self) -> None:
        return


class KillsTwice(ScriptedEnvironment):
    """Gives its place back each time that it is killed."""

    def kill(self) -> None:
        self._owner.open_now.setdefault(self._name)
        super().kill()


class RaisesAnything(ScriptedEnvironment):
    async def reset(self, task: Task, seed: int) -> Observation:
        if task.key == "fails":
            raise OSError("no such map")
        return await super().reset(task, seed)


class StillHangs(ScriptedEnvironment):
    """Killing it leaves who waits for its step waiting."""

    def kill(self) -> None:
        self._hung = None
        super().kill()


class BlocksTheLoop(ScriptedEnvironment):
    async def step(self, action: Message) -> StepResult:
        time.sleep(0.15)  # noqa: ASYNC251
        return await super().step(action)


class OwnWorld(ScriptedEnvironment):
    """Ignores the seed: each member of a group has another world."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return await super().reset(task, self._owner.opened)


class NeverEnds(ScriptedEnvironment):
    async def step(self, action: Message) -> StepResult:
        return replace(await super().step(action), done=False)


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (KillsNothing, "place comes back"),
        (KillsTwice, "open waits for a free place"),
        (RaisesAnything, "a failed reset is EnvironmentFailed"),
        (StillHangs, "a step under way ends"),
        (OwnWorld, "one task under one seed is one world"),
        (NeverEnds, "an episode ends"),
    ],
)
def test_each_broken_environment_fails_its_own_clause(
    kind: type[ScriptedEnvironment], clause: str
) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_envs(lambda: scripted(kind)))
    assert clause in caught.value.clause


def test_an_environment_that_blocks_the_loop_is_found_in_real_time() -> None:
    with pytest.raises(ConformanceError, match="the event loop goes on"):
        asyncio.run(check_envs(lambda: scripted(BlocksTheLoop)))


def test_environments_that_open_after_close_are_found() -> None:
    class Reopens(ScriptedEnvironments):
        async def close(self) -> None:
            self.open_now.clear()

    with pytest.raises(ConformanceError, match="open after close"):
        run_virtual(lambda: check_envs(lambda: Reopens(FAST, places=3)))


def test_the_scripted_reward_conforms_on_either_loop() -> None:
    run_virtual(lambda: check_scores(lambda: ScriptedReward(FAST)))
    asyncio.run(check_scores(lambda: ScriptedReward(FAST)))


class RaisesInstead(ScriptedReward):
    """Lets the error of the user's code out."""

    async def score(self, trajectory: Trajectory) -> Verdict:
        verdict = await super().score(trajectory)
        if verdict.score is None:
            raise ValueError("scripted")
        return verdict


class ScoresZero(ScriptedReward):
    """Takes no verdict for 0."""

    async def score(self, trajectory: Trajectory) -> Verdict:
        verdict = await super().score(trajectory)
        return Verdict(score=verdict.score or 0.0)


class OneAfterTheOther(ScriptedReward):
    """One call at a time, so that one that hangs holds back the others."""

    def __init__(self) -> None:
        super().__init__(FAST)
        self._turn = asyncio.Lock()

    async def score(self, trajectory: Trajectory) -> Verdict:
        async with self._turn:
            return await super().score(trajectory)


class Remembers(ScriptedReward):
    """Pays less for what it has seen before."""

    async def score(self, trajectory: Trajectory) -> Verdict:
        verdict = await super().score(trajectory)
        self.paid = getattr(self, "paid", 1.0) / 2
        return replace(verdict, score=verdict.score and verdict.score * self.paid)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (lambda: ScoresZero(FAST), "what cannot be scored gets no verdict"),
        (OneAfterTheOther, "a call that hangs holds back no other"),
        (lambda: Remembers(FAST), "equal trajectories score equally"),
    ],
)
def test_each_broken_reward_fails_its_own_clause(make: Callable[[], Reward], clause: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_scores(make))
    assert clause in caught.value.clause


def test_a_reward_that_raises_is_found() -> None:
    with pytest.raises(ConformanceError, match="and no error"):
        run_virtual(lambda: check_scores(lambda: RaisesInstead(FAST)))


def whole(messages: Sequence[Message]) -> Int32Array:
    """What `PlainRenderer` renders: five 1 to open, an answer's three ids, five 2 after it."""
    parts = [[1] * 5 if i == 0 else [2] * 5 for i in range(len(messages)) if i % 2 == 0]
    ids = parts[0]
    for part in parts[1:]:
        ids = [*ids, 7, 8, 9, *part]
    return np.array(ids, np.int32)


TOKENS = RendererTrial(sampled=np.array([7, 8, 9], np.int32), whole=whole)


def test_the_plain_renderer_conforms_on_either_loop() -> None:
    run_virtual(lambda: check_tokens(PlainRenderer, TOKENS))
    asyncio.run(check_tokens(PlainRenderer, TOKENS))


class EncodesAgain(PlainRenderer):
    """Repeats the assistant's ids in what follows them."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        more = await super().extend(history, sampled, messages)
        return Rendered(tokens=np.concatenate([np.asarray(sampled), np.asarray(more.tokens)]))


class KeepsHistory(PlainRenderer):
    """Counts what it has rendered."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        self._turns += 1
        return Rendered(tokens=np.full(self._turns, 2, np.int32))


class EditsHistory(PlainRenderer):
    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        assert isinstance(history, list)
        history.extend(messages)
        return await super().extend(history, sampled, messages)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (EncodesAgain, "the parts add up"),
        (KeepsHistory, "a renderer keeps no state"),
        (EditsHistory, "history is only read"),
    ],
)
def test_each_broken_renderer_fails_its_own_clause(
    make: Callable[[], Renderer], clause: str
) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check_tokens(make, TOKENS))
    assert clause in caught.value.clause
