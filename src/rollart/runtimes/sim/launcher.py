"""The launcher of a simulation: every part a model, on the world's hardware.

Owns what the parts share: the network, the weight store, the registry of images, the reward pools.
Invariant: it decides nothing that control decides; what it launched ends when it is closed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart.control.assembly import POLICY
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.ports import (
    Binding,
    ClassPath,
    Engine,
    Environments,
    EventSink,
    PoolState,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.types import Task
from rollart.runtimes.sim.engines.engine import ModelledEngine, modelled_engine
from rollart.runtimes.sim.engines.pd_engine import prefill_decode_engine
from rollart.runtimes.sim.episodes.environments import EnvironmentLimits, ModelledEnvironments
from rollart.runtimes.sim.episodes.recorded import load_recorded
from rollart.runtimes.sim.episodes.renderer import LengthRenderer
from rollart.runtimes.sim.episodes.reward_pools import RewardPool
from rollart.runtimes.sim.episodes.rewards import ModelledReward, make_pool
from rollart.runtimes.sim.episodes.tasks import NumberedTasks, heldout_tasks
from rollart.runtimes.sim.episodes.turnstile import Turnstile
from rollart.runtimes.sim.episodes.workload import DomainWorkload, DrawnDomain, RunWorkload
from rollart.runtimes.sim.hardware.network import Network
from rollart.runtimes.sim.training.trainer import ModelledTrainer
from rollart.runtimes.sim.training.weights import ModelledStore
from rollart.runtimes.sim.workers import InProcessWorker, start_worker
from rollart.runtimes.sim.world.fitting import (
    engine_settings,
    gpus_wanted,
    link_of,
    model_of,
    parts_of,
    roofline_of,
    trainer_settings,
    weight_settings,
)
from rollart.runtimes.sim.world.places import reward_worker
from rollart.runtimes.sim.world.sections import RewardSection, World


class SimLauncher:
    """Launches the parts of one simulated run. To be made on the virtual loop.

    Attributes:
        engines, trainers: what was launched, in order, so that a test can look and interfere.
        store, network, workload: what they share.
    """

    def __init__(self, job: JobConfig, world: World, *, events: EventSink) -> None:
        self._job = job
        self._world = world
        self._events = events
        self._model = model_of(world)
        self._pools: dict[str, RewardPool] = {}
        self._registry = Turnstile(world.registry.pulls_at_once)
        self._workers: list[InProcessWorker] = []
        self.workload = run_workload(job, world)
        self.network = Network()
        self.store = ModelledStore(
            model=self._model, settings=weight_settings(world), network=self.network
        )
        self.engines: list[ModelledEngine] = []
        self.trainers: list[ModelledTrainer] = []

    async def engine(self, binding: Binding) -> Engine:
        """An engine of the binding's class, ready at once and without a version."""
        own = self._world.engines[binding.hardware]
        settings = engine_settings(self._job, self._world)
        sides = {
            phase: [roofline_of(self._world, self._model, part)] * part.count
            for phase, part in parts_of(binding.hardware, own)
        }
        if "generate" in sides:
            engine = modelled_engine(
                worker=binding.worker,
                hardware=binding.hardware,
                roofline=sides["generate"][0],
                workload=self.workload,
                weights=self.store,
                events=self._events,
                settings=settings,
            )
        else:
            engine = prefill_decode_engine(
                worker=binding.worker,
                hardware=binding.hardware,
                prefill=sides["prefill"],
                decode=sides["decode"],
                link=link_of(self._world, own.link, f"engines.{binding.hardware}.link"),
                workload=self.workload,
                weights=self.store,
                events=self._events,
                settings=settings,
            )
        self.engines.append(engine)
        return engine

    async def trainer(self, binding: Binding) -> Trainer:
        trainer = ModelledTrainer(
            worker=binding.worker,
            model=self._model,
            settings=trainer_settings(self._world),
            store=self.store,
            events=self._events,
            policy=POLICY,
        )
        self.trainers.append(trainer)
        return trainer

    async def environments(self, domain: str) -> Environments:
        times = self._job.timeouts
        return ModelledEnvironments(
            self.workload.domain(domain),
            EnvironmentLimits(reset_s=times.env_reset_s, step_s=times.env_step_s),
            self._registry,
        )

    async def tasks(self, domain: str) -> TaskSource:
        own = self._world.domains.get(domain)
        return NumberedTasks(domain, None if own is None else own.tasks)

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return heldout_tasks(domain, count)

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        """None: a modelled environment has no policies of its own."""
        return ()

    async def reward(self, domain: str) -> Reward:
        return ModelledReward(
            self.workload.domain(domain),
            self._pool(domain),
            limit_s=self._job.timeouts.reward_s,
        )

    def _pool(self, domain: str) -> RewardPool:
        if domain not in self._pools:
            section = self._world.rewards.get(domain, RewardSection())
            self._pools[domain] = make_pool(reward_worker(domain), section, self._events)
        return self._pools[domain]

    async def renderer(self) -> Renderer:
        return LengthRenderer()

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        worker = start_worker(binding, kind, options)
        self._workers.append(worker)
        return worker

    async def pools(self) -> tuple[PoolState, ...]:
        """The world's GPUs, and those that this job leaves free."""
        wanted = gpus_wanted(self._job, self._world)
        taken = {name: sum(gpus for _, gpus in who) for name, who in wanted.items()}
        return tuple(
            PoolState(name=name, hardware=name, slots=gpus, free=gpus - taken.get(name, 0))
            for name, gpus in self._world.pools.items()
        )

    async def close(self) -> None:
        """End everything that was launched. Idempotent."""
        for part in (
            *self.engines,
            *self.trainers,
            *self._workers,
            *self._pools.values(),
        ):
            await part.close()


def run_workload(job: JobConfig, world: World) -> RunWorkload:
    """What the job's domains meet: drawn as the world says, or resampled from a recorded run.

    Raises:
        ConfigError: the recorded run cannot be read, or lacks a domain.
    """
    seed = job.run.seed
    recorded: Mapping[str, DomainWorkload] = {}
    doubts: tuple[str, ...] = ()
    if world.recorded is not None:
        pooled = [tag for tag, reward in world.rewards.items() if reward.pooled]
        loaded = load_recorded(Path(world.recorded.run), seed=seed, pooled=pooled)
        recorded, doubts = loaded.domains, loaded.doubts
    found: dict[str, DomainWorkload] = {}
    for tag in (domain.tag for domain in job.domains):
        own = world.domains.get(tag)
        if own is not None:
            found[tag] = DrawnDomain(own, world.rewards.get(tag, RewardSection()), seed=seed)
        elif tag in recorded:
            found[tag] = recorded[tag]
        else:
            raise ConfigError(
                f"domains.{tag}: missing, and the recorded run has only "
                f"{', '.join(recorded) or 'nothing'}; write [domains.{tag}] and below it "
                'preset = "FrozenLake"'
            )
    return RunWorkload(found, doubts=doubts)
