"""Scripted environments and rewards of a domain in which the slow do better, for virtual time."""

import asyncio
import math
from dataclasses import dataclass

from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments, Reward
from rollart.core.types import Message, Observation, StepResult, Task, Trajectory, Verdict
from rollart.testing.parts import ScriptedEnvironments, ScriptedLauncher, ScriptedReward
from rollart.testing.script import Draw, Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """`long_share` of the episodes takes `long_factor` times as long, and succeeds more often.

    An episode is `turns` steps of `step_s` seconds in the mean, lognormal with `sigma`.
    """

    long_share: float = 0.5
    long_factor: float = 3.0
    success_long: float = 0.6
    success_short: float = 0.2
    turns: int = 2
    step_s: float = 1.0
    sigma: float = 0.3

    @property
    def mean_score(self) -> float:
        """Of all that is started, if none of it is ended."""
        return self.long_share * self.success_long + (1.0 - self.long_share) * self.success_short

    def is_long(self, draw: Draw, name: str) -> bool:
        return draw.chance(self.long_share, "long", name)

    def score(self, draw: Draw, name: str) -> float:
        success = self.success_long if self.is_long(draw, name) else self.success_short
        return float(draw.chance(success, "success", name))

    def seconds(self, draw: Draw, name: str, step: int) -> float:
        mean = self.step_s * (self.long_factor if self.is_long(draw, name) else 1.0)
        rng = draw.rng("step", step, name)
        return rng.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)


class StragglingEnvironment:
    """One episode."""

    def __init__(self, owner: "StragglingEnvironments", name: str) -> None:
        self._owner, self._name, self._steps = owner, name, 0

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(messages=(Message(role="user", content=f"{task.key} {seed}"),))

    async def step(self, action: Message) -> StepResult:
        owner = self._owner
        self._steps += 1
        await asyncio.sleep(owner.law.seconds(owner.script.draw, self._name, self._steps))
        return StepResult(
            observation=Observation(messages=(Message(role="user", content=action.content),)),
            done=self._steps == owner.law.turns,
        )

    def kill(self) -> None:
        self._owner.let_go(self._name)


class StragglingEnvironments(ScriptedEnvironments):
    def __init__(self, script: Script, law: Straggling) -> None:
        super().__init__(script)
        self.law = law

    async def open(self, trajectory: TrajectoryId) -> Environment:
        await super().open(trajectory)
        return StragglingEnvironment(self, str(trajectory))


class StragglingReward(ScriptedReward):
    def __init__(self, script: Script, law: Straggling) -> None:
        super().__init__(script)
        self._draw, self._law = script.draw, law

    async def score(self, trajectory: Trajectory) -> Verdict:
        return Verdict(score=self._law.score(self._draw, str(trajectory.id)))


class StragglingLauncher(ScriptedLauncher):
    def __init__(self, script: Script, law: Straggling) -> None:
        super().__init__(script, keeps_batches=False)
        self.law = law

    async def environments(self, domain: str) -> Environments:
        return self.environments_of.setdefault(
            domain, StragglingEnvironments(self.script, self.law)
        )

    async def reward(self, domain: str) -> Reward:
        return self.rewards_of.setdefault(domain, StragglingReward(self.script, self.law))
