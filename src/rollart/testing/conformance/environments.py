"""Conformance of `Environments` and of each `Environment` that they open."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollart.core.errors import EnvironmentFailed
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments
from rollart.core.types import Message, Observation, StepResult, Task
from rollart.testing.conformance.contract import Contract, Latency, cancelled

MakeEnvironments = Callable[[], Awaitable[Environments]]
BLOCKED_S = 0.1
"""The event loop may not stand still for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentsTrial:
    """What the suite may assume about the environments it is given.

    Attributes:
        task, action: an episode that can be played by repeating one action.
        steps: actions after which the episode is over at the latest.
        failing: a task whose reset fails; without it that is not checked.
        hanging: a task and an action whose step never returns; without them not checked.
        overrun_s: seconds after which a step that hangs fails by itself, if it does.
        places: environments that can be open at once; None when there is no bound.
    """

    task: Task
    action: Message
    steps: int = 1000
    failing: Task | None = None
    hanging: tuple[Task, Message] | None = None
    overrun_s: float | None = None
    places: int | None = None
    patience_s: float = 30.0
    quiet_s: float = 0.2


class _Suite:
    def __init__(self, environments: Environments, trial: EnvironmentsTrial) -> None:
        self.environments = environments
        self.trial = trial
        self.contract = Contract("Environments", trial.patience_s)
        self._opened = 0

    def opening(self) -> Awaitable[Environment]:
        self._opened += 1
        task = self.trial.task
        return self.environments.open(
            TrajectoryId(
                run="trial", domain=task.domain, task=task.key, group=0, member=self._opened
            )
        )

    async def open(self) -> Environment:
        return await self.contract.soon(self.opening(), "an environment can be opened")

    async def begin(self, task: Task | None = None, seed: int = 1) -> Environment:
        environment = await self.open()
        await self.contract.soon(environment.reset(task or self.trial.task, seed), "reset returns")
        return environment


async def check_environments(make: MakeEnvironments, trial: EnvironmentsTrial) -> None:
    """Every clause of both ports; raises `ConformanceError` at the first broken one.

    Args:
        make: makes the environments of one domain; called once a check. The suite closes them.
    """
    for check in (
        plays_an_episode,
        shows_a_group_one_world,
        gives_places_back,
        fails_with_a_kind,
        can_be_killed_in_a_step_that_hangs,
        ends_when_closed,
    ):
        suite = _Suite(await make(), trial)
        await check(suite)
        await suite.contract.soon(suite.environments.close(), "close returns, also twice")


async def plays_an_episode(suite: _Suite) -> None:
    """Observations have messages, rewards are numbers, and an episode ends."""
    need = suite.contract.require
    environment = await suite.open()
    first = await suite.contract.soon(environment.reset(suite.trial.task, 1), "reset returns")
    shown = isinstance(first, Observation) and len(first.messages) > 0
    need(shown, "reset shows the agent a message", f"{first}")
    for _ in range(suite.trial.steps):
        result = await suite.contract.soon(environment.step(suite.trial.action), "step returns")
        need(isinstance(result, StepResult), "a step returns a StepResult", f"{result}")
        finite = result.reward is None or math.isfinite(result.reward)
        need(finite, "a reward is a finite number or None", f"{result.reward}")
        need(
            all(math.isfinite(value) for _, value in result.metrics),
            "metrics are finite numbers",
            f"{result.metrics}",
        )
        if result.done:
            break
        need(len(result.observation.messages) > 0, "a step shows the agent a message", f"{result}")
    else:
        need(False, "an episode ends", f"{suite.trial.steps} steps were not enough")
    environment.kill()


async def shows_a_group_one_world(suite: _Suite) -> None:
    """One task under one seed is one world, whoever plays it."""
    shown: list[Observation] = []
    for _ in range(2):
        environment = await suite.open()
        reset = environment.reset(suite.trial.task, 12345)
        shown.append(await suite.contract.soon(reset, "reset returns"))
        environment.kill()
    suite.contract.require(
        shown[0] == shown[1], "one task under one seed is one world", f"{shown[0]}, {shown[1]}"
    )


async def gives_places_back(suite: _Suite) -> None:
    """Kill, at any time and again, frees the place; so does an `open` that is given up."""
    places = suite.trial.places
    clause = "a killed environment's place comes back"
    for number in range(3 * (places or 3) + 1):
        environment = await suite.contract.soon(suite.opening(), clause)
        if number % 2:
            await suite.contract.soon(environment.reset(suite.trial.task, number), "reset returns")
        for _ in range(2):
            environment.kill()
    if places is None:
        return
    held = [await suite.contract.soon(suite.opening(), clause) for _ in range(places)]
    given_up = asyncio.ensure_future(suite.opening())
    await suite.contract.waits(given_up, suite.trial.quiet_s, "open waits for a free place")
    waiting = asyncio.ensure_future(suite.opening())
    await asyncio.sleep(0)
    await cancelled(given_up)
    held.pop().kill()
    held.append(await suite.contract.soon(waiting, "an open that is given up takes no place"))
    for environment in held:
        environment.kill()


async def fails_with_a_kind(suite: _Suite) -> None:
    """A failure is `EnvironmentFailed`, and costs nobody else anything."""
    failing = suite.trial.failing
    if failing is None:
        return
    other = await suite.begin()
    environment = await suite.open()
    clause = "a failed reset is EnvironmentFailed, with kind and words"
    error = await suite.contract.raises(environment.reset(failing, 1), (EnvironmentFailed,), clause)
    worded = isinstance(error, EnvironmentFailed) and bool(error.detail)
    suite.contract.require(worded, clause, repr(error))
    environment.kill()
    await suite.contract.soon(other.step(suite.trial.action), "the others go on")
    other.kill()


async def can_be_killed_in_a_step_that_hangs(suite: _Suite) -> None:
    """A step that hangs blocks neither the loop nor the others, and ends when it is killed."""
    if suite.trial.hanging is None:
        return
    task, action = suite.trial.hanging
    alone = suite.trial.places == 1
    async with Latency() as latency:
        other = None if alone else await suite.begin()
        environment = await suite.begin(task)
        hung = asyncio.ensure_future(environment.step(action))
        await suite.contract.waits(hung, suite.trial.quiet_s, "that step hangs")
        if other is not None:
            await suite.contract.soon(other.step(suite.trial.action), "the others go on")
            other.kill()
        environment.kill()
        clause = "a step under way ends as EnvironmentFailed when it is killed"
        await suite.contract.raises(hung, (EnvironmentFailed,), clause)
        if suite.trial.overrun_s is not None:
            await _overruns(suite, task, action)
        (await suite.begin()).kill()
    stood = latency.longest_s
    suite.contract.require(stood < BLOCKED_S, "the event loop goes on", f"stood {stood:.2f} s")


async def _overruns(suite: _Suite, task: Task, action: Message) -> None:
    environment = await suite.begin(task)
    clause = f"a step that hangs fails by itself after {suite.trial.overrun_s} s"
    await suite.contract.raises(environment.step(action), (EnvironmentFailed,), clause)
    environment.kill()


async def ends_when_closed(suite: _Suite) -> None:
    """After close nothing can be opened, and what was open can still be killed."""
    environment = await suite.begin()
    await suite.contract.soon(suite.environments.close(), "close returns")
    await suite.contract.raises(
        suite.opening(), (EnvironmentFailed,), "open after close is EnvironmentFailed"
    )
    environment.kill()
