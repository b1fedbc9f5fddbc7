"""Ports behind a door: every answer of the world's parts comes in by it.

Invariant: what a port may wait for goes through the door, under the name of who is answered; what
is told and needs no answer goes straight out, and so do renderers, who must not wait.
"""

from collections.abc import Mapping, Sequence

from rollart.control.door import Door
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import (
    Binding,
    ClassPath,
    DeltaSink,
    Engine,
    Environment,
    Environments,
    Launcher,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.types import (
    GenerateRequest,
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


class DoorEngine:
    """An engine behind a door."""

    def __init__(self, engine: Engine, door: Door, run_id: str) -> None:
        self._engine = engine
        self._door = door
        self._run = f"{run_id}/"
        self._name = engine.id

    @property
    def id(self) -> str:
        return self._engine.id

    @property
    def hardware(self) -> str:
        return self._engine.hardware

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        who = request.id.removeprefix(self._run)
        self._engine.add(request, self._door.sink(who, sink))

    async def abort(self, request_ids: Sequence[str]) -> None:
        first = request_ids[0].removeprefix(self._run) if request_ids else "nothing"
        await self._door.ask(f"{self._name} abort {first}", self._engine.abort(request_ids))

    def release(self, session: str) -> None:
        self._engine.release(session)

    async def pause(self) -> None:
        await self._door.ask(f"{self._name} pause", self._engine.pause())

    async def resume(self) -> None:
        await self._door.ask(f"{self._name} resume", self._engine.resume())

    async def update(self, version: PolicyVersion) -> None:
        await self._door.ask(f"{self._name} update", self._engine.update(version))

    async def rebuild_kv(self) -> int:
        return await self._door.ask(f"{self._name} rebuild", self._engine.rebuild_kv())

    async def wait_dead(self) -> str:
        return await self._door.ask(f"{self._name} dead", self._engine.wait_dead())

    async def close(self) -> None:
        await self._door.ask(f"{self._name} close", self._engine.close())


class DoorTrainer:
    """A trainer behind a door."""

    def __init__(self, trainer: Trainer, door: Door) -> None:
        self._trainer = trainer
        self._door = door

    @property
    def version(self) -> PolicyVersion:
        return self._trainer.version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        return await self._door.ask("trainer step", self._trainer.train_step(batch))

    async def publish(self) -> PolicyVersion:
        return await self._door.ask("trainer publish", self._trainer.publish())

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        return await self._door.ask("trainer score", self._trainer.score(trajectories, temperature))

    async def save(self, directory: str) -> None:
        await self._door.ask("trainer save", self._trainer.save(directory))

    async def wait_dead(self) -> str:
        return await self._door.ask("trainer dead", self._trainer.wait_dead())

    async def close(self) -> None:
        await self._door.ask("trainer close", self._trainer.close())


class DoorEnvironment:
    """One trajectory's environment behind a door, under the trajectory's name."""

    def __init__(self, environment: Environment, door: Door, name: str) -> None:
        self._environment = environment
        self._door = door
        self._name = name

    async def reset(self, task: Task, seed: int) -> Observation:
        return await self._door.ask(self._name, self._environment.reset(task, seed))

    async def step(self, action: Message) -> StepResult:
        return await self._door.ask(self._name, self._environment.step(action))

    def kill(self) -> None:
        self._environment.kill()


class DoorEnvironments:
    """A domain's environments behind a door."""

    def __init__(self, environments: Environments, door: Door, domain: str) -> None:
        self._environments = environments
        self._door = door
        self._domain = domain

    async def open(self, trajectory: TrajectoryId) -> Environment:
        name = str(trajectory)
        environment = await self._door.ask(name, self._environments.open(trajectory))
        return DoorEnvironment(environment, self._door, name)

    async def close(self) -> None:
        await self._door.ask(f"{self._domain} close", self._environments.close())


class DoorReward:
    """A reward behind a door."""

    def __init__(self, reward: Reward, door: Door, domain: str) -> None:
        self._reward = reward
        self._door = door
        self._domain = domain

    async def score(self, trajectory: Trajectory) -> Verdict:
        return await self._door.ask(str(trajectory.id), self._reward.score(trajectory))

    async def close(self) -> None:
        await self._door.ask(f"{self._domain} reward close", self._reward.close())


class DoorTasks:
    """A task source behind a door."""

    def __init__(self, source: TaskSource, door: Door, domain: str) -> None:
        self._source = source
        self._door = door
        self._domain = domain

    async def next(self) -> Task | None:
        return await self._door.ask(f"{self._domain} task", self._source.next())

    def snapshot(self) -> int:
        return self._source.snapshot()

    def restore(self, position: int) -> None:
        self._source.restore(position)


class Doorway:
    """A launcher whose parts stand behind a door."""

    def __init__(self, launcher: Launcher, door: Door, *, run_id: str) -> None:
        self._launcher = launcher
        self._door = door
        self._run_id = run_id

    async def engine(self, binding: Binding) -> Engine:
        engine = await self._door.ask(binding.worker, self._launcher.engine(binding))
        return DoorEngine(engine, self._door, self._run_id)

    async def trainer(self, binding: Binding) -> Trainer:
        trainer = await self._door.ask(binding.worker, self._launcher.trainer(binding))
        return DoorTrainer(trainer, self._door)

    async def environments(self, domain: str) -> Environments:
        asked = self._door.ask(f"{domain} environments", self._launcher.environments(domain))
        return DoorEnvironments(await asked, self._door, domain)

    async def tasks(self, domain: str) -> TaskSource:
        source = await self._door.ask(f"{domain} tasks", self._launcher.tasks(domain))
        return DoorTasks(source, self._door, domain)

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return await self._door.ask(f"{domain} heldout", self._launcher.heldout(domain, count))

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        return await self._door.ask(
            f"{domain} baselines", self._launcher.baselines(domain, heldout)
        )

    async def reward(self, domain: str) -> Reward:
        reward = await self._door.ask(f"{domain} reward", self._launcher.reward(domain))
        return DoorReward(reward, self._door, domain)

    async def renderer(self) -> Renderer:
        return await self._door.ask("renderer", self._launcher.renderer())

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        return await self._launcher.worker(binding, kind, options)

    async def close(self) -> None:
        await self._launcher.close()
