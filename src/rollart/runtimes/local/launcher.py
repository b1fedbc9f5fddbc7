"""The local runtime: everything busy in a child process of its own, on this machine.

Owns the children's common ground: environment variables, logs, the weight store's directory, the
fork server of each domain. Invariant: what was started here has ended when `close` returns, and
ends by itself within seconds if this process dies. Who waits on whom: whoever needs the model
waits until it has been made, once.
"""

import asyncio
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rollart.core.config import DomainConfig, JobConfig
from rollart.core.errors import ConfigError, EngineLost, TrainerLost
from rollart.core.events import DeviceBusy
from rollart.core.identity import derive_seed
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
from rollart.core.scoring.places import reward_place
from rollart.core.types import Task
from rollart.data.classes import is_script
from rollart.process.child import Child
from rollart.process.errors import ChildStartError, ProcessError
from rollart.process.spawn import spawn
from rollart.runtimes.local import (
    engine_child,
    env_host,
    inspect_host,
    reward_host,
    task_host,
    tasks,
    trainer_child,
)
from rollart.runtimes.local.busy import Interval
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.engine import EngineLimits, LocalEngine
from rollart.runtimes.local.engine_child import EngineChildConfig
from rollart.runtimes.local.env_host import EnvHostConfig
from rollart.runtimes.local.environments import EnvironmentLimits, LocalEnvironments
from rollart.runtimes.local.gateway import Gateway, ServerlessReward
from rollart.runtimes.local.lane_pool import MOST_CHILDREN
from rollart.runtimes.local.models import prepared_model
from rollart.runtimes.local.preflight import IMPORT_S, preflight
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.reward_facts import RewardFacts, refuse_long_functions
from rollart.runtimes.local.reward_host import RewardHostConfig
from rollart.runtimes.local.rewards import LocalReward
from rollart.runtimes.local.task_host import TaskHostConfig
from rollart.runtimes.local.tasks import ForkTasks
from rollart.runtimes.local.trainer import LocalTrainer, TrainerLimits
from rollart.runtimes.local.trainer_child import TrainerChildConfig
from rollart.runtimes.local.warm_forks import WarmForks
from rollart.runtimes.local.workers import LocalWorkers

if TYPE_CHECKING:
    from rollart.backends.weights.shm import SharedMemoryWeightStore

__all__ = ["LocalLauncher", "preflight"]

POOL = "local"
POLICY = "agent"
MODEL_START_S = 300.0
"""Seconds that an engine or a trainer may take to load its model."""

_SHARED_MEMORY = Path("/dev/shm")
_ROLES = "rollart.data.cluster"
_HOSTS = (env_host.__name__, inspect_host.__name__, reward_host.__name__, task_host.__name__)
_DESCRIPTORS_A_CHILD = 4  # socket, output, pidfd, log
_DESCRIPTORS_BESIDE = 256
_BATCH_LIMIT = 1 << 30  # bytes of the largest message to the trainer


class LocalLauncher:
    """The `Launcher` and `Inventory` ports for this machine.

    Args:
        python_path: where user modules are found, the job file's folder first.
        events: takes what the devices were busy with.
    """

    def __init__(
        self,
        job: JobConfig,
        *,
        run_id: str,
        run_directory: Path,
        python_path: Sequence[str],
        events: EventSink,
    ) -> None:
        self._job = job
        self.run_id = run_id
        self.run_directory = run_directory
        self._python_path = tuple(python_path)
        self._events = events
        self._env = child_environment(os.environ, run_id)
        self._logs = run_directory / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._model: Path | None = None
        self._making = asyncio.Lock()
        self._store: SharedMemoryWeightStore | None = None
        self._forks = {domain.tag: self._domain_forks(domain) for domain in job.domains}
        self._replayable: dict[str, bool] = {}
        self._heldout: dict[tuple[str, int], tuple[Task, ...]] = {}
        self._opened: list[Engine | Trainer | Environments | Reward] = []
        self._gateway = Gateway(
            children=self._env,
            python_path=self._python_path,
            logs=self._logs,
            events=events,
        )
        self._user_workers = LocalWorkers(python_path=python_path, logs=self._logs, run_id=run_id)
        self._workers: set[str] = set()
        allow_descriptors(_DESCRIPTORS_BESIDE + _DESCRIPTORS_A_CHILD * most_children(job))

    async def pools(self) -> tuple[PoolState, ...]:
        """One pool: a slot a core, some taken by engines and trainer."""
        slots = max(os.cpu_count() or 1, len(self._workers))
        free = slots - len(self._workers)
        return (PoolState(name=POOL, hardware=POOL, slots=slots, free=free),)

    async def engine(self, binding: Binding) -> Engine:
        """An engine with the model's own weights, version 0. Raises `EngineLost`, `ConfigError`."""
        job = self._job
        model = await self.model_directory()
        config = EngineChildConfig(
            model=str(model),
            weights=str(weights_root(self.run_directory)),
            run=self.run_id,
            dtype=job.rollout.dtype,
            kv=job.rollout.kv,
            slots=job.rollout.slots,
            step_tokens=job.rollout.step_tokens,
            context=job.model.context,
        )
        try:
            child = await self._spawn(engine_child.ENTRY, config, binding.worker)
        except ChildStartError as error:
            raise EngineLost(binding.worker, in_a_line(error)) from error
        engine = LocalEngine(
            child,
            worker=binding.worker,
            hardware=binding.hardware,
            limits=EngineLimits(command_s=job.timeouts.engine_s, update_s=job.timeouts.weights_s),
            on_busy=self._device(binding),
        )
        self._opened.append(engine)
        return engine

    async def trainer(self, binding: Binding) -> Trainer:
        """The trainer, at version 0. Raises `TrainerLost`, `ConfigError`."""
        job = self._job
        model = await self.model_directory()
        config = TrainerChildConfig(
            model=str(model),
            weights=str(weights_root(self.run_directory)),
            run=self.run_id,
            train=job.train.model_dump(),
            policy=POLICY,
            temperatures={domain.tag: domain.temperature for domain in job.domains},
            seed=job.run.seed,
            keep=job.alpha + 2,
        )
        try:
            child = await self._spawn(trainer_child.ENTRY, config, binding.worker)
        except ChildStartError as error:
            raise TrainerLost(f"{binding.worker}: {in_a_line(error)}") from error
        trainer = LocalTrainer(
            child,
            worker=binding.worker,
            policy=POLICY,
            limits=TrainerLimits(train_s=job.timeouts.train_s, publish_s=job.timeouts.weights_s),
            on_busy=self._device(binding),
        )
        self._opened.append(trainer)
        return trainer

    async def environments(self, domain: str) -> Environments:
        """As many environments as trajectories may be outstanding. Raises `ConfigError`."""
        settings, forks, times = self._domain(domain), self._forks[domain], self._job.timeouts
        config = EnvHostConfig(environment=settings.environment, options=dict(settings.options))
        environments = LocalEnvironments(
            domain,
            lambda name: forks.fork(env_host.ENTRY, config, name=name),
            EnvironmentLimits(
                places=self._job.places_of(settings),
                per_process=settings.envs_per_process,
                replayable=await self._is_replayable(domain),
                reset_s=times.env_reset_s,
                step_s=times.env_step_s,
            ),
        )
        self._opened.append(environments)
        return environments

    async def reward(self, domain: str) -> Reward:
        """The domain's scorers, or its function on a platform, which is asked for its health.

        Raises `ConfigError`.
        """
        settings, limit_s = self._domain(domain), self._job.timeouts.reward_s
        facts = await self._reward_facts(settings)
        for wish in facts.functions:
            refuse_long_functions(wish, limit_s, f"domains[{domain}].reward")
            await self._gateway.open(wish)
        if not facts.own_scorers:
            return ServerlessReward(self._gateway, facts.functions[0].url, limit_s=limit_s)
        forks = self._forks[domain]
        config = RewardHostConfig(reward=settings.reward_places[0], hardware=POOL)
        reward = LocalReward(
            domain,
            lambda name: forks.fork(reward_host.ENTRY, config, name=name),
            limit_s=limit_s,
            gateway=self._gateway if facts.functions else None,
        )
        self._opened.append(reward)
        return reward

    async def tasks(self, domain: str) -> TaskSource:
        """The domain's training tasks, from the first on."""
        path = self._domain(domain).environment
        return tasks.LocalTaskSource(domain, path, self._fork_tasks(domain))

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        """At most `count` distinct tasks that training never meets. Raises `ConfigError`."""
        if (domain, count) not in self._heldout:
            path = self._domain(domain).environment
            child = await tasks.started(self._fork_tasks(domain), 0, domain, path)
            try:
                found = await tasks.heldout(child, count, domain=domain, path=path)
            finally:
                await child.close(1.0)
            self._heldout[domain, count] = found
        return self._heldout[domain, count]

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        """Success of the domain's simple policies on these tasks; empty if it names none."""
        path = self._domain(domain).environment
        child = await tasks.started(self._fork_tasks(domain), 0, domain, path)
        try:
            return await tasks.baselines(child, heldout, path=path)
        finally:
            await child.close(1.0)

    async def renderer(self) -> Renderer:
        """The model's own chat template. Raises `ConfigError`."""
        from rollart.backends.renderers.hf_chat import HfChatRenderer

        return HfChatRenderer.load(await self.model_directory())

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        """A worker of a user's class. Raises `WorkerFailed`."""
        return await self._user_workers.worker(binding, kind, options)

    async def close(self) -> None:
        """End every child, within seconds, and remove the weights from shared memory."""
        async with asyncio.TaskGroup() as group:
            for part in (*self._opened, self._gateway, self._user_workers):
                group.create_task(part.close())
        async with asyncio.TaskGroup() as group:
            for forks in self._forks.values():
                group.create_task(forks.close())
        if self._store is not None:
            from rollart.backends.weights.shm import sweep_abandoned

            self._store.close()
            self._store = None
            sweep_abandoned(weights_root(self.run_directory))

    def _domain(self, tag: str) -> DomainConfig:
        return next(domain for domain in self._job.domains if domain.tag == tag)

    def _domain_forks(self, domain: DomainConfig) -> WarmForks:
        places = [
            reward_place(url).function if "://" in url else url for url in domain.reward_places
        ]
        paths = [path for path in (domain.environment, *places) if path]
        named = {path.partition(":")[0] for path in paths}
        # A script is read by each child, down to where it starts a run; what it uses is warm.
        modules = [_ROLES if is_script(module) else module for module in sorted(named)]
        return WarmForks(
            name=domain.tag,
            modules=modules,
            hosts=_HOSTS,
            env=self._env,
            python_path=self._python_path,
            log_file=self._logs / f"{domain.tag}.log",
        )

    async def _reward_facts(self, domain: DomainConfig) -> RewardFacts:
        child = await self._forks[domain.tag].fork(
            inspect_host.ENTRY, None, name=f"{domain.tag}-inspect"
        )
        try:
            facts = await child.call(
                "facts",
                domain.reward_places,
                self._python_path,
                timeout=IMPORT_S,
            )
        except ProcessError as error:
            raise ConfigError(
                f"domains[{domain.tag}].reward: cannot be read: {in_a_line(error)}"
            ) from error
        finally:
            await child.close(1.0)
        return msgspec.convert(facts, RewardFacts)

    def _fork_tasks(self, domain: str) -> ForkTasks:
        settings, forks = self._domain(domain), self._forks[domain]
        seed = derive_seed(self._job.run.seed, "tasks", domain)

        async def fork(position: int) -> Child:
            config = TaskHostConfig(
                environment=settings.environment,
                options=dict(settings.options),
                seed=seed,
                position=position,
            )
            return await forks.fork(task_host.ENTRY, config, name=f"{domain}-tasks")

        return fork

    async def _is_replayable(self, domain: str) -> bool:
        if domain not in self._replayable:
            path = self._domain(domain).environment
            child = await tasks.started(self._fork_tasks(domain), 0, domain, path)
            try:
                answer = await tasks.asked(child, "replayable", (), domain=domain, path=path)
            finally:
                await child.close(1.0)
            self._replayable[domain] = answer
        return self._replayable[domain]

    async def model_directory(self) -> Path:
        """The run's model, made at the first need. Raises `ConfigError`."""
        async with self._making:
            if self._model is None:
                self._model = await prepared_model(
                    self._job,
                    self.run_directory,
                    env=self._env,
                    python_path=self._python_path,
                    log_file=self._logs / "make-model.log",
                )
                self._hold_store()
            return self._model

    def _hold_store(self) -> None:
        """Keep this run's weights alive as long as this process, and clear those of dead runs."""
        from rollart.backends.weights.shm import SharedMemoryWeightStore, sweep_abandoned

        root = weights_root(self.run_directory)
        sweep_abandoned(root)
        self._store = SharedMemoryWeightStore(root, self.run_id)

    async def _spawn(self, entry: str, config: object, worker: str) -> Child:
        child = await spawn(
            entry,
            config,
            name=worker,
            env=self._env,
            inherit_env=False,
            python_path=self._python_path,
            start_timeout=MODEL_START_S,
            log_file=self._logs / f"{worker}.log",
            frame_limit=_BATCH_LIMIT,
        )
        self._workers.add(worker)
        child.died.add_done_callback(lambda _: self._workers.discard(worker))
        return child

    def _device(self, binding: Binding) -> Callable[[Interval], None]:
        def note(interval: Interval) -> None:
            work, begin, end = interval
            self._events.emit(
                DeviceBusy(
                    device=binding.worker,
                    hardware=binding.hardware,
                    work=work,
                    begin=begin,
                    end=end,
                )
            )

        return note


def weights_root(run_directory: Path) -> Path:
    """Where weight stores of all runs lie: in shared memory, or else in the run directory."""
    if os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY / f"rollart-{os.getuid()}"
    return run_directory / "store"


def most_children(job: JobConfig) -> int:
    """Children that may live at once."""
    domains = sum(
        -(-job.places_of(domain) // domain.envs_per_process) + 2 * MOST_CHILDREN + 3
        for domain in job.domains
    )
    return domains + sum(job.engine_counts.values()) + 2


def allow_descriptors(count: int) -> None:
    """Raise this process's limit of open files to `count` if it is lower.

    Raises:
        ConfigError: the system does not allow as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigError(
            f"{count} open files are needed for this job's children and the system allows {hard}; "
            "raise domains.envs_per_process, lower rollout.batch_groups, or raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
