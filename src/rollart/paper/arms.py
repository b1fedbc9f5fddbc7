"""An arm: a job and a world, as the paper describes its cluster, its baselines and its workload.

Invariant: an arm's name says all that distinguishes it, so that rows share the runs of equal arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollart.core.config import JobConfig
from rollart.core.jobfile import Table, parse_job
from rollart.paper.parameters import (
    CONTEXT,
    GROUP,
    JUDGE_KEEP_S,
    JUDGE_S,
    LONGEST_ANSWER,
    NO_TRAINING,
    ON_COMPUTE,
    SLOTS,
    STEP_TOKENS,
    TENSOR_PARALLEL,
    WITH_SWE,
)
from rollart.runtimes.sim.world.file import parse_world, presets
from rollart.runtimes.sim.world.sections import World

H800, H20 = "H800", "H20"
MATH = "GEM-math"
DOMAINS = ("WebShop", "FrozenLake", MATH, "GEM-game")
"""Those of every model."""

SWE = "SWE-bench"

ASYNC = {"mode": "async"}
"""Weights as RollArt moves them: pushed over the slow link, pulled in the background."""

BLOCKING = {"mode": "blocking"}
"""The same links, with the rollout stopped for both."""

AT_ONCE = {"mode": "async", "push": "nvlink", "pull": "nvlink"}
"""Weights that cost a run next to nothing."""

AT_ONCE_BETWEEN = {"mode": "blocking", "push": "nvlink", "pull": "nvlink"}
"""The same between two rollouts, so that none runs beside them."""


def domains_of(model: str) -> tuple[str, ...]:
    """The domains that a model trains on in the paper."""
    return (SWE, *DOMAINS) if model == WITH_SWE else DOMAINS


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run. Its first `skip` steps are not counted.

    `task_sigma` is the spread of a factor on step times that trajectories of one task share.
    """

    name: str
    job: JobConfig
    world: World
    skip: int = 0
    task_sigma: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who has which GPUs.

    Attributes:
        model: trained, by its name in the catalogue.
        engines: GPUs that generate, by class of `rollout.engines`.
        hardware: the GPU of a class whose name is none.
        groups: prefill/decode groups instead of engines: by class, its section of the world file.
        trainer: GPUs that train.
        training: more keys of the trainer's section.
        judge: GPUs kept for the judge; 0 for a serverless one.
        judge_keep_s: that an idle instance of a serverless judge stays.
        weights: section of the world file.
    """

    model: str
    engines: Mapping[str, int]
    hardware: Mapping[str, str] = field(default_factory=dict[str, str])
    groups: Mapping[str, Table] = field(default_factory=dict[str, Table])
    trainer: int
    training: Mapping[str, Any] = field(default_factory=dict[str, Any])
    judge: int = 0
    judge_keep_s: float = JUDGE_KEEP_S
    weights: Mapping[str, Any] = field(default_factory=lambda: ASYNC)

    @property
    def tp(self) -> int:
        return TENSOR_PARALLEL[self.model]


def arm(
    name: str,
    cluster: Cluster,
    *,
    domains: Sequence[str] | Mapping[str, Table],
    groups: int,
    steps: int,
    protocol: str,
    alpha: int = 1,
    group_size: int = GROUP,
    affinity: bool = False,
    spares: tuple[int, int] = (0, 0),
    skip: int = 0,
    task_sigma: float = 0.0,
) -> Arm:
    """An arm.

    Args:
        domains: presets by name; or, by tag, keys instead of those of the preset of that name.
        groups: in a batch.
        affinity: whether domains go to the class of GPUs that suits them.
        spares: spare members a group, and spare groups a batch.
    """
    given = domains if isinstance(domains, Mapping) else {tag: {} for tag in domains}
    job: Table = {
        "schema": 1,
        "run": {"name": "paper", "steps": steps},
        "model": {"path": cluster.model, "context": CONTEXT},
        "rollout": {
            "batch_groups": groups,
            "group_size": group_size,
            "engines": _engine_counts(cluster),
            "affinity": _affinity(given) if affinity else {},
            "slots": SLOTS,
            "step_tokens": STEP_TOKENS,
        },
        "protocol": {"name": protocol, "alpha": alpha},
        "redundancy": {"members": spares[0], "groups": spares[1]},
        "train": {
            "correction": "behaviour",
            "drop_zero_variance": False,
            "microbatch_tokens": CONTEXT,
        },
        "domains": [_domain(tag) for tag in given],
        "timeouts": _TIMEOUTS,
    }
    return Arm(
        name=name,
        job=parse_job(job),
        world=_world(cluster, given),
        skip=skip,
        task_sigma=task_sigma,
    )


_TIMEOUTS: Table = {
    "env_reset_s": 600.0,
    "env_step_s": 600.0,
    "reward_s": 600.0,
    "episode_s": 36000.0,
    "engine_s": 120.0,
    "weights_s": 1200.0,
    "train_s": 7200.0,
    "stall_s": 36000.0,
}
"""Far above anything that happens: no deadline decides a row. Seconds."""


def _engine_counts(cluster: Cluster) -> Table:
    counts = {name: gpus // cluster.tp for name, gpus in cluster.engines.items()}
    return {**counts, **dict.fromkeys(cluster.groups, 1)}


def _affinity(tags: Mapping[str, Table]) -> Table:
    compute = {tag: H800 for tag in tags if tag in ON_COMPUTE}
    return {**compute, "default": H20}


def _domain(tag: str) -> Table:
    return {
        "tag": tag,
        "environment": "paper:Modelled",
        "max_turns": 1000,  # the workload ends episodes, not the job
        "max_tokens": LONGEST_ANSWER,
    }


def _world(cluster: Cluster, domains: Mapping[str, Table]) -> World:
    pools: dict[str, int] = {H800: cluster.trainer + cluster.judge}
    engines: Table = {}
    for name, gpus in cluster.engines.items():
        hardware = cluster.hardware.get(name, name)
        engines[name] = {"hardware": hardware, "gpus": cluster.tp}
        pools[hardware] = pools.get(hardware, 0) + gpus
    for name, section in cluster.groups.items():
        engines[name] = section
        for side in (section["prefill"], section["decode"]):
            hardware = side["hardware"]
            pools[hardware] = pools.get(hardware, 0) + side["gpus"] * side["count"]
    return parse_world(
        {
            "schema": 1,
            "model": {"name": cluster.model},
            "pools": pools,
            "trainer": {"hardware": H800, "gpus": cluster.trainer, **cluster.training},
            "engines": engines,
            "weights": dict(cluster.weights),
            "domains": {tag: _workload(tag, keys) for tag, keys in domains.items()},
            "rewards": {MATH: _judge(cluster)} if MATH in domains else {},
        }
    )


def _workload(tag: str, keys: Table) -> Table:
    return {"preset": tag, **keys} if tag in presets() else keys


def _judge(cluster: Cluster) -> Table:
    if cluster.judge:
        return {"seconds": JUDGE_S, "dedicated": {"hardware": H800, "gpus": cluster.judge}}
    comes: Table = {"hardware": H800, "keep_s": cluster.judge_keep_s}
    return {"seconds": JUDGE_S, "serverless": comes}


def rollout_only(
    name: str,
    engines: Mapping[str, int],
    *,
    domains: Sequence[str] | Mapping[str, Table],
    batch: int,
    rollouts: int,
    protocol: str = "sync_plus",
    model: str = "Qwen3-8B",
    group_size: int = GROUP,
    spares: tuple[int, int] = (0, 0),
    task_sigma: float = 0.0,
) -> Arm:
    """An arm of which only rollouts count: each begins on idle engines, with nothing beside it."""
    cluster = Cluster(
        model=model,
        engines=engines,
        trainer=64,
        training=NO_TRAINING,
        weights=AT_ONCE_BETWEEN,
    )
    return arm(
        name,
        cluster,
        domains=domains,
        groups=batch // group_size,
        group_size=group_size,
        steps=rollouts,
        protocol=protocol,
        spares=spares,
        task_sigma=task_sigma,
    )
