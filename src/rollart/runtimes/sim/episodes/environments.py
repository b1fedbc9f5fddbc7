"""Modelled environments: they take their time, fail now and then, and can be killed at any moment.

Owns what each episode is waiting for. Invariant: how long and whether it fails follows from the
trajectory's identity; what takes longer than its limit fails when that is over, as the environments
of a real machine do. Cold pulls of images wait for the registry, which all domains share.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import cache

from rollart.core.errors import EnvironmentFailed, FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment
from rollart.core.types import Message, Observation, StepResult, Task
from rollart.runtimes.sim.episodes.renderer import shown
from rollart.runtimes.sim.episodes.turnstile import Turnstile
from rollart.runtimes.sim.episodes.workload import DomainWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """Seconds after which a reset or a step has failed; a job's timeouts."""

    reset_s: float
    step_s: float


class ModelledEnvironments:
    """The `Environments` port of one domain; any number may be open."""

    def __init__(
        self, workload: DomainWorkload, limits: EnvironmentLimits, registry: Turnstile
    ) -> None:
        self.workload = workload
        self.limits = limits
        self.registry = registry
        self._closed = False

    async def open(self, trajectory: TrajectoryId) -> Environment:
        """A fresh one. Raises `EnvironmentFailed` after `close`."""
        if self._closed:
            raise EnvironmentFailed(FailureKind.ENV_OPEN, "the environments are closed")
        return ModelledEnvironment(self, trajectory)

    async def close(self) -> None:
        self._closed = True


class ModelledEnvironment:
    """One episode."""

    def __init__(self, owner: ModelledEnvironments, trajectory: TrajectoryId) -> None:
        self._owner = owner
        self._trajectory = trajectory
        self._name = str(trajectory)
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._turns = 0
        self._awaited: asyncio.Future[None] | None = None
        self._killed = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Ready after its time. Raises `EnvironmentFailed`."""
        if task.key != self._trajectory.task:
            self._trajectory = replace(self._trajectory, task=task.key)
            self._name = str(self._trajectory)
        workload, limit = self._owner.workload, self._owner.limits.reset_s
        ends = self._loop.time() + limit
        pull_s = workload.pull(self._name)
        if pull_s > 0:
            await self._pull(pull_s, ends)
        span = workload.reset(self._name)
        await self._spend(span.seconds, ends, "reset")
        if span.fails:
            raise EnvironmentFailed(
                FailureKind.ENV_RESET, f"the reset failed after {span.seconds:.1f} s"
            )
        self._turn = 0
        self._turns = workload.turns(self._name)
        return _shown(workload.first(task.key))

    async def step(self, action: Message) -> StepResult:
        """The next observation after its time. Raises `EnvironmentFailed`."""
        workload, limit = self._owner.workload, self._owner.limits.step_s
        span = workload.step(self._name, self._turn)
        await self._spend(span.seconds, self._loop.time() + limit, "step")
        if span.fails:
            raise EnvironmentFailed(
                FailureKind.ENV_STEP, f"step {self._turn} failed after {span.seconds:.1f} s"
            )
        self._turn += 1
        tokens = workload.observed(self._name, self._turn)
        if self._turn < self._turns:
            return _goes_on(tokens)
        return StepResult(
            observation=_shown(tokens),
            done=True,
            metrics=(("success", float(workload.succeeds(self._name))),),
        )

    def kill(self) -> None:
        """What is under way ends at once, as `EnvironmentFailed`."""
        self._killed = True
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(_was_killed())

    async def _pull(self, seconds: float, ends: float) -> None:
        """Wait for the registry, then for the image."""
        registry = self._owner.registry
        turn = registry.enter()
        try:
            if not turn.done():
                await self._wait(turn, self._loop.call_at(ends, self._overrun, turn, "reset"))
            await self._spend(seconds, ends, "reset")
        finally:
            registry.give_back(turn)

    async def _spend(self, seconds: float, ends: float, what: str) -> None:
        """Take so long, or fail at loop time `ends`."""
        loop = self._loop
        done = loop.create_future()
        at = loop.time() + seconds
        if at < ends:
            timer = loop.call_at(at, _resolve, done)
        else:
            timer = loop.call_at(ends, self._overrun, done, what)
        await self._wait(done, timer)

    async def _wait(self, done: "asyncio.Future[None]", timer: asyncio.TimerHandle) -> None:
        """Await what the timer, or a kill, ends at the latest."""
        try:
            if self._killed:
                raise _was_killed()
            self._awaited = done
            await done
        finally:
            self._awaited = None
            timer.cancel()

    def _overrun(self, done: "asyncio.Future[None]", what: str) -> None:
        limits = self._owner.limits
        limit = limits.reset_s if what == "reset" else limits.step_s
        if not done.done():
            done.set_exception(
                EnvironmentFailed(
                    FailureKind.ENV_TIMEOUT, f"the {what} took over {limit:g} s; it was killed"
                )
            )


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _was_killed() -> EnvironmentFailed:
    return EnvironmentFailed(FailureKind.ENV_DIED, "it was killed")


@cache
def _shown(tokens: int) -> Observation:
    """Made once for each length, as in the renderer."""
    return Observation(messages=(Message(role="user", content=shown(tokens)),))


@cache
def _goes_on(tokens: int) -> StepResult:
    return StepResult(observation=_shown(tokens))
