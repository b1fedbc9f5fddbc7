"""A launcher whose parts all stand in the same weather, and a trainer that may die.

Invariant: it launches what the launcher within launches, each part wrapped once; held-out tasks,
task sources, the renderer and users' workers are passed on as they are.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from rollart.core.errors import RollartError, TrainerLost
from rollart.core.identity import PolicyVersion
from rollart.core.ports import (
    Binding,
    ClassPath,
    Engine,
    Environments,
    Launcher,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.types import LogprobGap, Task, TrainBatch, TrainStats, Trajectory
from rollart.runtimes.sim.chaos.driver import FaultDriver, Placed
from rollart.runtimes.sim.chaos.faults import FaultKind
from rollart.runtimes.sim.chaos.faulty_engine import FaultyEngine, Sent
from rollart.runtimes.sim.chaos.faulty_episodes import FaultyEnvironments, FaultyReward
from rollart.runtimes.sim.chaos.weights import WeightTrouble


class FaultyTrainer:
    """Stands around the trainer; `batches` has what it trained, with the version of before."""

    def __init__(self, inner: Trainer, weights: WeightTrouble) -> None:
        self._inner = inner
        self._weights = weights
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.batches: list[tuple[int, TrainBatch]] = []
        self.died_at: float | None = None

    @property
    def version(self) -> PolicyVersion:
        return self._inner.version

    def die(self, reason: str) -> None:
        """It ends in the middle of everything."""
        if not self._dead.done():
            self.died_at = asyncio.get_running_loop().time()
            self._dead.set_result(reason)

    def _check(self) -> None:
        if self._dead.done():
            raise TrainerLost(f"the trainer is gone: {self._dead.result()}")

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        self._check()
        version = self.version.number
        stats = await self._inner.train_step(batch)
        self._check()
        self.batches.append((version, batch))
        return stats

    async def publish(self) -> PolicyVersion:
        self._check()
        self._weights.publish()
        version = await self._inner.publish()
        self._check()
        self._weights.published(version)
        return version

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        self._check()
        return await self._inner.score(trajectories, temperature)

    async def save(self, directory: str) -> None:
        self._check()
        await self._inner.save(directory)

    async def wait_dead(self) -> str:
        inner = asyncio.ensure_future(self._inner.wait_dead())
        try:
            await asyncio.wait([inner, self._dead], return_when=asyncio.FIRST_COMPLETED)
        finally:
            inner.cancel()
        return self._dead.result() if self._dead.done() else inner.result()

    async def close(self) -> None:
        if not self._dead.done():
            self._dead.set_result("closed")
        await self._inner.close()


class FaultyLauncher:
    """Stands around any launcher, and brings about what a fault does to what is there."""

    def __init__(self, inner: Launcher, driver: FaultDriver) -> None:
        self._inner = inner
        self._driver = driver
        self._weights = WeightTrouble()
        self._turns: dict[str, Sent] = {}
        self._latest: dict[str, FaultyEngine] = {}
        self._fails_to_start: defaultdict[str, deque[Placed]] = defaultdict(deque)
        self.engines: list[FaultyEngine] = []
        self.trainers: list[FaultyTrainer] = []
        self.environments_of: dict[str, FaultyEnvironments] = {}
        self.rewards_of: dict[str, FaultyReward] = {}
        driver.strike = self.strike
        driver.on_down = self._given_up

    def _given_up(self, engine: str) -> None:
        self._latest[engine].give_up()

    # -- what befalls the parts ------------------------------------------------------------------

    def strike(self, placed: Placed) -> bool:
        """Befall what is there; False if the fault waits for an operation to befall."""
        kind = placed.fault.kind
        if kind is FaultKind.TRAINER_DIES:
            placed.felt += 1
            self.trainers[-1].die("killed")
        elif kind is FaultKind.PULL_FAILS_ON_ONE:
            names = list(self._latest)
            self._weights.fail_on(names[placed.fault.pick % len(names)], placed)
        elif kind is FaultKind.PULL_FAILS_ON_ALL:
            self._weights.fail_on_all(placed)
        elif kind is FaultKind.STORE_LOST:
            self._weights.lose_store(placed)
        elif kind in (FaultKind.ENGINE_DIES, FaultKind.ENGINE_RETURNS_LATE):
            self._kill(placed)
        elif kind in (FaultKind.ENGINE_SLOWS, FaultKind.ENGINE_REVIVES):
            engine = self._victim(placed)
            befall = engine.slow_down if kind is FaultKind.ENGINE_SLOWS else engine.fall_silent
            befall(placed)
        else:
            return False
        return True

    def _victim(self, placed: Placed) -> FaultyEngine:
        """One that lives, where any does."""
        latest = list(self._latest.values())
        living = [engine for engine in latest if engine.alive] or latest
        return living[placed.fault.pick % len(living)]

    def _kill(self, placed: Placed) -> None:
        engine = self._victim(placed)
        if not engine.alive:
            return
        placed.felt += 1
        if placed.fault.kind is FaultKind.ENGINE_RETURNS_LATE:
            self._fails_to_start[engine.id].append(placed)
        engine.die("killed")

    # -- launching -------------------------------------------------------------------------------

    async def engine(self, binding: Binding) -> Engine:
        troubles = self._fails_to_start[binding.worker]
        if troubles:
            placed = troubles[0]
            placed.left -= 1
            if placed.left <= 0:
                troubles.popleft()
            await asyncio.sleep(placed.fault.lasts_s)
            raise RollartError(f"{binding.worker} does not start yet")
        engine = FaultyEngine(
            await self._inner.engine(binding), self._driver, self._weights, self._turns
        )
        self.engines.append(engine)
        self._latest[binding.worker] = engine
        return engine

    async def trainer(self, binding: Binding) -> Trainer:
        self.trainers.append(FaultyTrainer(await self._inner.trainer(binding), self._weights))
        return self.trainers[-1]

    async def environments(self, domain: str) -> Environments:
        inner = await self._inner.environments(domain)
        self.environments_of[domain] = FaultyEnvironments(inner, self._driver)
        return self.environments_of[domain]

    async def reward(self, domain: str) -> Reward:
        self.rewards_of[domain] = FaultyReward(await self._inner.reward(domain), self._driver)
        return self.rewards_of[domain]

    async def tasks(self, domain: str) -> TaskSource:
        return await self._inner.tasks(domain)

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return await self._inner.heldout(domain, count)

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        return await self._inner.baselines(domain, heldout)

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        return await self._inner.worker(binding, kind, options)

    async def renderer(self) -> Renderer:
        return await self._inner.renderer()

    async def close(self) -> None:
        """Close what was launched; the wrapped parts close those within."""
        for part in (*self.engines, *self.trainers):
            await part.close()
        await self._inner.close()
