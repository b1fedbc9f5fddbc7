"""Environments and rewards that hang, crash, refuse or answer wrongly.

Invariant: a fault befalls the next operation to come to its end. Without one nothing is changed.
What is open or running, and each verdict that was given, is kept to be compared afterwards.
"""

import asyncio
import math
from dataclasses import replace

from rollart.core.errors import EnvironmentFailed, FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments, Reward
from rollart.core.scoring.verdict import as_verdict
from rollart.core.types import Message, Observation, StepResult, Task, Trajectory, Verdict
from rollart.runtimes.sim.chaos.driver import FaultDriver
from rollart.runtimes.sim.chaos.faults import FaultKind

FLOOD = 2000
"""Messages in an observation that no context holds."""


class FaultyEnvironments:
    """Stands around the environments of one domain; `open_now` has those not let go."""

    def __init__(self, inner: Environments, driver: FaultDriver) -> None:
        self._inner = inner
        self._driver = driver
        self.open_now: dict[str, None] = {}

    async def open(self, trajectory: TrajectoryId) -> Environment:
        environment = await self._inner.open(trajectory)
        self.open_now[str(trajectory)] = None
        return FaultyEnvironment(environment, self, self._driver, str(trajectory))

    def let_go(self, name: str) -> None:
        self.open_now.pop(name, None)

    async def close(self) -> None:
        await self._inner.close()


class FaultyEnvironment:
    """Stands around one episode's environment."""

    def __init__(
        self, inner: Environment, owner: FaultyEnvironments, driver: FaultDriver, name: str
    ) -> None:
        self._inner = inner
        self._owner = owner
        self._driver = driver
        self._name = name
        self._hung: asyncio.Future[None] | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        return await self._befall(await self._inner.reset(task, seed))

    async def step(self, action: Message) -> StepResult:
        result = await self._inner.step(action)
        return replace(result, observation=await self._befall(result.observation))

    async def _befall(self, observation: Observation) -> Observation:
        if self._driver.take(FaultKind.ENV_HANGS) is not None:
            self._hung = asyncio.get_running_loop().create_future()
            await self._hung
        if self._driver.take(FaultKind.ENV_CRASHES) is not None:
            raise EnvironmentFailed(FailureKind.ENV_DIED, "it crashed")
        if (garbage := self._driver.take(FaultKind.ENV_GARBAGE)) is not None:
            noise = Message(role="user", content="\x00\ufffd" * 8)
            return Observation(messages=(noise,) * (FLOOD if garbage.fault.pick % 2 else 0))
        return observation

    def kill(self) -> None:
        self._owner.let_go(self._name)
        self._inner.kill()
        if self._hung is not None and not self._hung.done():
            self._hung.set_exception(EnvironmentFailed(FailureKind.ENV_DIED, "it was killed"))


class FaultyReward:
    """Stands around one domain's reward; `verdicts` has what it said, by trajectory."""

    def __init__(self, inner: Reward, driver: FaultDriver) -> None:
        self._inner = inner
        self._driver = driver
        self.running = 0
        self.verdicts: dict[str, Verdict] = {}

    async def score(self, trajectory: Trajectory) -> Verdict:
        self.running += 1
        try:
            verdict = await self._befall(await self._inner.score(trajectory))
        finally:
            self.running -= 1
        self.verdicts[str(trajectory.id)] = verdict
        return verdict

    async def _befall(self, verdict: Verdict) -> Verdict:
        if self._driver.take(FaultKind.REWARD_HANGS) is not None:
            await asyncio.get_running_loop().create_future()
        if self._driver.take(FaultKind.REWARD_REFUSES) is not None:
            return _no_verdict("429 too many requests")
        if (wrong := self._driver.take(FaultKind.REWARD_WRONG)) is not None:
            answers = (math.nan, math.inf, "42", 1e30)
            try:
                return as_verdict(answers[wrong.fault.pick % len(answers)])
            except (TypeError, ValueError) as error:
                return _no_verdict(str(error))
        return verdict

    async def close(self) -> None:
        await self._inner.close()


def _no_verdict(reason: str) -> Verdict:
    return Verdict(score=None, reason=reason, failure=FailureKind.REWARD_ERROR)
