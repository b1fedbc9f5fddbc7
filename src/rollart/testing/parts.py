"""Scripted trainer, environments, reward, renderer, tasks and launcher.

Invariant: each keeps a count of what is open, so that a test can ask whether everything was let go.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rollart.core.errors import EnvironmentFailed, FailureKind, TrainerLost
from rollart.core.events import Event
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import (
    Binding,
    ClassPath,
    Engine,
    Environment,
    Environments,
    PoolState,
    Rendered,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.tokens import TokenBlock
from rollart.core.types import (
    Group,
    LogprobGap,
    Message,
    Observation,
    StepResult,
    Task,
    TrainBatch,
    TrainStats,
    Trajectory,
    Verdict,
)
from rollart.testing.engine import ScriptedEngine
from rollart.testing.script import Script
from rollart.testing.workers import ScriptedWorkers

T = TypeVar("T")


@dataclass(slots=True)
class EventRecorder:
    """An EventSink that keeps everything, with loop times."""

    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])

    def emit(self, event: Event) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind, in order."""
        return [event for _, event in self.events if isinstance(event, kind)]


class ScriptedEnvironment:
    """One episode; its length and times follow from the trajectory's identity."""

    def __init__(self, owner: "ScriptedEnvironments", trajectory: TrajectoryId) -> None:
        self._owner = owner
        self._script = owner.script
        self._name = str(trajectory)
        self._task = trajectory.task
        self._steps = 0
        low, high = self._script.turns
        self._turns = self._script.draw.rng("turns", self._name).randint(low, high)
        self._slow = self._script.slow_tasks.get(self._task, 1.0)
        self._hung: asyncio.Future[None] | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        self._task = task.key
        await self._sleep(self._script.reset_s, "reset")
        fails = self._script.draw.chance(self._script.reset_fails, "reset fails", self._name)
        if fails or task.key in self._script.reset_fails_for:
            raise EnvironmentFailed(FailureKind.ENV_RESET, "scripted failure of a reset")
        return Observation(messages=(Message(role="user", content=f"{task.key} {seed}"),))

    async def step(self, action: Message) -> StepResult:
        self._steps += 1
        draw = self._script.draw
        hangs = draw.chance(self._script.step_hangs, "hang", self._name, self._steps)
        if hangs or self._task in self._script.step_hangs_for:
            self._hung = asyncio.get_running_loop().create_future()
            await self._hung
        await self._sleep(self._script.step_s, f"step {self._steps}")
        if draw.chance(self._script.step_fails, "step fails", self._name, self._steps):
            raise EnvironmentFailed(FailureKind.ENV_STEP, "scripted failure of a step")
        done = self._steps >= self._turns
        return StepResult(
            observation=Observation(messages=(Message(role="user", content=action.content),)),
            reward=1.0 if done else 0.0,
            done=done,
            metrics=(("success", float(draw.rng("success", self._name).random() < 0.5)),),
        )

    async def _sleep(self, span: tuple[float, float], name: str) -> None:
        seconds = self._script.draw.seconds(span, name, self._name)
        await asyncio.sleep(seconds * self._slow)

    def kill(self) -> None:
        self._owner.let_go(self._name)
        if self._hung is not None and not self._hung.done():
            self._hung.set_exception(EnvironmentFailed(FailureKind.ENV_DIED, "it was killed"))


class ScriptedEnvironments:
    """Counts what is open; `places` bounds it."""

    def __init__(self, script: Script, places: int | None = None) -> None:
        self.script = script
        self.open_now: dict[str, None] = {}
        self.opened = 0
        self._room = None if places is None else asyncio.Semaphore(places)
        self._closed = False

    async def open(self, trajectory: TrajectoryId) -> Environment:
        if self._room is not None:
            await self._room.acquire()
        if self._closed:
            raise EnvironmentFailed(FailureKind.ENV_OPEN, "the environments are closed")
        self.opened += 1
        self.open_now[str(trajectory)] = None
        return ScriptedEnvironment(self, trajectory)

    def let_go(self, name: str) -> None:
        """An episode is over, however it ended; the second time changes nothing."""
        if name in self.open_now:
            del self.open_now[name]
            if self._room is not None:
                self._room.release()

    async def close(self) -> None:
        self._closed = True
        self.open_now.clear()


class ScriptedReward:
    """A score from the trajectory's identity; it can hang or refuse."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.running = 0

    async def score(self, trajectory: Trajectory) -> Verdict:
        name, key, draw = str(trajectory.id), trajectory.task.key, self._script.draw
        self.running += 1
        try:
            hangs = draw.chance(self._script.reward_hangs, "reward hangs", name)
            if hangs or key in self._script.reward_hangs_for:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(draw.seconds(self._script.reward_s, "reward", name))
        finally:
            self.running -= 1
        refuses = draw.chance(self._script.reward_refuses, "reward refuses", name)
        if refuses or key in self._script.reward_refuses_for:
            return Verdict(score=None, reason="scripted", failure=FailureKind.REWARD_ERROR)
        if draw.chance(self._script.equal_scores, "equal", trajectory.id.group):
            return Verdict(score=0.0)
        return Verdict(score=draw.rng("score", name).random())

    async def close(self) -> None:
        return


class PlainRenderer:
    """Every message is a block of fixed length; sampled ids become a message of their count."""

    def __init__(self, tokens: int = 5) -> None:
        self._tokens = tokens

    async def open(self, messages: Sequence[Message]) -> Rendered:
        return Rendered(tokens=np.full(self._tokens * len(messages), 1, np.int32))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return Rendered(tokens=np.full(self._tokens * len(messages), 2, np.int32))

    async def parse(self, sampled: TokenBlock) -> Message:
        return Message(role="assistant", content=f"{len(sampled)} tokens")


class CountedTasks:
    """Tasks by number; endless unless given a count."""

    def __init__(self, domain: str, count: int | None = None, distinct: int | None = None) -> None:
        self._domain = domain
        self._count = count
        self._distinct = distinct
        self._at = 0

    async def next(self) -> Task | None:
        if self._count is not None and self._at >= self._count:
            return None
        number = self._at if self._distinct is None else self._at % self._distinct
        self._at += 1
        return Task(domain=self._domain, key=f"task-{number}")

    def snapshot(self) -> int:
        return self._at

    def restore(self, position: int) -> None:
        self._at = position


class ScriptedTrainer:
    """Takes its time and counts versions; keeps every (version, batch) unless told not to."""

    def __init__(
        self, script: Script, policy: str = "agent", *, keeps_batches: bool = True
    ) -> None:
        self._keeps_batches = keeps_batches
        self._script = script
        self._version = PolicyVersion(policy, 0)
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.batches: list[tuple[int, TrainBatch]] = []
        self.published: list[int] = []
        self.saved: list[str] = []
        self.training = False

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        self.training = True
        seconds = self._script.draw.seconds(self._script.train_s, "train", batch.step)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.training = False
        if self._dead.done():
            raise TrainerLost(f"the trainer is gone: {self._dead.result()}")
        if self._keeps_batches:
            self.batches.append((self._version.number, batch))
        self._version = self._version.next()
        return TrainStats(
            version=self._version.number,
            loss=0.0,
            grad_norm=0.0,
            trained_tokens=sum(t.sampled_tokens for t in batch.trajectories),
            input_tokens=sum(t.tokens for t in batch.trajectories),
            optimizer_steps=1,
            learning_rate=0.0,
            entropy=0.0,
            clip_fraction=0.0,
            approx_kl=0.0,
            ratio_max=1.0,
            skipped=not any(map(_has_signal, batch.groups)),
            seconds=seconds,
        )

    async def publish(self) -> PolicyVersion:
        version = self._version
        await asyncio.sleep(
            self._script.draw.seconds(self._script.publish_s, "publish", version.number)
        )
        self.published.append(version.number)
        return version

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        tokens = sum(
            count
            for trajectory in trajectories
            for version, count in trajectory.version_runs()
            if version == self._version.number
        )
        return LogprobGap(tokens=tokens, maximum=0.0, mean=0.0)

    async def save(self, directory: str) -> None:
        self.saved.append(directory)

    def die(self, reason: str) -> None:
        if not self._dead.done():
            self._dead.set_result(reason)

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        self.die("closed")


def _has_signal(group: Group) -> bool:
    """Whether the members' scores differ."""
    return len({member.score for member in group.members}) > 1


class ScriptedLauncher:
    """Launches fakes and keeps hold of them, so that a test can look and interfere.

    Args:
        tasks: how many tasks a domain has; endless without it.
        keeps_batches: False for long runs: neither batches nor the engines' logs are kept.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        tasks: int | None = None,
        keeps_batches: bool = True,
    ) -> None:
        self.script = script or Script()
        self._task_count = tasks
        self._keeps_batches = keeps_batches
        self.engines: list[ScriptedEngine] = []
        self.trainers: list[ScriptedTrainer] = []
        self.environments_of: dict[str, ScriptedEnvironments] = {}
        self.rewards_of: dict[str, ScriptedReward] = {}
        self.workers = ScriptedWorkers()

    async def engine(self, binding: Binding) -> Engine:
        incarnation = sum(engine.id == binding.worker for engine in self.engines)
        engine = ScriptedEngine(
            binding.worker,
            self.script,
            hardware=binding.hardware,
            incarnation=incarnation,
            keeps_log=self._keeps_batches,
        )
        self.engines.append(engine)
        return engine

    async def trainer(self, binding: Binding) -> Trainer:
        trainer = ScriptedTrainer(self.script, keeps_batches=self._keeps_batches)
        self.trainers.append(trainer)
        return trainer

    async def environments(self, domain: str) -> Environments:
        return self.environments_of.setdefault(domain, ScriptedEnvironments(self.script))

    async def tasks(self, domain: str) -> TaskSource:
        return CountedTasks(domain, self._task_count)

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return tuple(Task(domain=domain, key=f"heldout-{i}") for i in range(count))

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        rng = self.script.draw.rng("baseline", domain)
        return (("chance", rng.random()),) if heldout else ()

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        return await self.workers.worker(binding, kind, options)

    async def reward(self, domain: str) -> Reward:
        return self.rewards_of.setdefault(domain, ScriptedReward(self.script))

    async def renderer(self) -> Renderer:
        return PlainRenderer(self.script.observation_tokens)

    async def pools(self) -> tuple[PoolState, ...]:
        return (PoolState(name="virtual", hardware="virtual", slots=8, free=8),)

    async def close(self) -> None:
        for part in (*self.engines, *self.trainers, *self.workers.started.values()):
            await part.close()
