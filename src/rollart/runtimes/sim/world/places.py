"""Who gets which GPUs of a world: bindings for control, and the record of them.

Invariant: a GPU is one worker's. GPUs are numbered through all pools, in the pools' order, and
given out in the job's order, the trainer first. The world has been fitted to the job, so all get
theirs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollart.core.config import JobConfig
from rollart.core.events import WorkerBound
from rollart.core.ports import Affinity, Binding, Placement
from rollart.resource.manager import PHASE
from rollart.resource.matching import Role
from rollart.resource.placement import TRAINER
from rollart.runtimes.sim.world.fitting import parts_of
from rollart.runtimes.sim.world.sections import World

REASON = "as the world file says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where everybody is, and the events that say so."""

    placement: Placement
    bindings: tuple[WorkerBound, ...]


class _Slots:
    """The free GPUs of each pool."""

    def __init__(self, pools: Mapping[str, int]) -> None:
        self._free: dict[str, Iterator[int]] = {}
        first = 0
        for name, count in pools.items():
            self._free[name] = iter(range(first, first + count))
            first += count

    def bind(self, worker: str, role: Role, hardware: str, gpus: int) -> WorkerBound:
        free = self._free[hardware]
        return WorkerBound(
            worker=worker,
            role=role.value,
            pool=hardware,
            hardware=hardware,
            slots=tuple(next(free) for _ in range(gpus)),
            wanted=hardware,
            reason=REASON,
        )


def places(job: JobConfig, world: World, affinity: Affinity) -> Places:
    """Everybody's place. An engine's hardware is its class in `rollout.engines`."""
    slots = _Slots(world.pools)
    own = world.trainer
    bound = [slots.bind(TRAINER, Role.TRAINING, own.hardware, own.gpus)]
    engines: list[Binding] = []
    for name, count in job.engine_counts.items():
        parts = parts_of(name, world.engines[name])
        for _ in range(count):
            worker = f"engine-{len(engines)}"
            bound += [
                slots.bind(worker, Role.GENERATION, part.hardware, part.gpus * part.count)
                for _, part in parts
            ]
            engines.append(
                Binding(
                    worker=worker,
                    hardware=name,
                    parts=tuple((part.hardware, phase) for phase, part in parts),
                )
            )
    for tag in (domain.tag for domain in job.domains):
        reward = world.rewards.get(tag)
        if reward is not None and reward.dedicated is not None:
            gpus = reward.dedicated
            bound.append(slots.bind(reward_worker(tag), Role.REWARD, gpus.hardware, gpus.gpus))
    trainer = Binding(
        worker=TRAINER,
        hardware=own.hardware,
        parts=((own.hardware, PHASE[Role.TRAINING]),),
    )
    return Places(
        placement=Placement(engines=tuple(engines), trainer=trainer, affinity=affinity),
        bindings=tuple(bound),
    )


def reward_worker(tag: str) -> str:
    """The name of a domain's rewards."""
    return f"{tag}-rewards"
