"""RollArt: reinforcement-learning training of LLM agents on disaggregated hardware.

Importing this package loads neither torch nor transformers; backends are imported when used, and
the data plane and the judge's client when one of their names is.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.core.authoring import as_observation
from rollart.core.scoring.declared import serverless
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.types import (
    Message,
    Observation,
    StepResult,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
    Verdict,
)

if TYPE_CHECKING:
    from rollart.core.scoring.judge import Judge, JudgeFailed
    from rollart.data.cluster import Cluster
    from rollart.data.decorators import hw_mapping, register, register_serverless
    from rollart.data.roles import ActorGen, ActorTrain, Environment, Reward, Worker
    from rollart.job import RunOutcome
    from rollart.resource.manager import ResourceManager

__all__ = [
    "ActorGen",
    "ActorTrain",
    "Cluster",
    "Environment",
    "Judge",
    "JudgeFailed",
    "Message",
    "Observation",
    "ResourceManager",
    "Reward",
    "StepResult",
    "Task",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "TrajectoryDocument",
    "Turn",
    "Verdict",
    "Worker",
    "as_observation",
    "hw_mapping",
    "register",
    "register_serverless",
    "run",
    "serverless",
]

_ROLES, _DECORATORS = "rollart.data.roles", "rollart.data.decorators"
_JUDGE = "rollart.core.scoring.judge"
_LAZY = {
    "ActorGen": _ROLES,
    "ActorTrain": _ROLES,
    "Cluster": "rollart.data.cluster",
    "Environment": _ROLES,
    "Judge": _JUDGE,
    "JudgeFailed": _JUDGE,
    "ResourceManager": "rollart.resource.manager",
    "Reward": _ROLES,
    "Worker": _ROLES,
    "hw_mapping": _DECORATORS,
    "register": _DECORATORS,
    "register_serverless": _DECORATORS,
}


def __getattr__(name: str) -> object:
    """Seldom used names are loaded at their first use: every child imports this package."""
    if name not in _LAZY:
        raise AttributeError(f"module 'rollart' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def run(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    pools: "ResourceManager | None" = None,
    actor_gen: "type[ActorGen] | None" = None,
    actor_train: "type[ActorTrain] | None" = None,
    reward: type | Mapping[str, type] | None = None,
    environment: type | Mapping[str, type] | None = None,
    runtime: str = "local",
    world: str | Path | None = None,
    seed: int | None = None,
    live: bool = False,
) -> "RunOutcome":
    """Train as a job file says, with classes of one's own around generation, training and rewards.

    Reward and environment classes are imported again in child processes, a script's as well: they
    read it down to this call.

    Args:
        path: the job file.
        overrides: ``key=value`` pairs in TOML notation, such as ``run.steps=20``.
        pools: where workers go; without them, to logical slots of this machine.
        actor_gen: its ``hw_mapping`` says which class of hardware serves which domain.
        actor_train: its ``hw_mapping`` places the trainer.
        reward: a `Reward` class for every domain, or classes by domain tag.
        environment: likewise, an environment class.
        runtime: "local" is this machine, "sim" modelled hardware under virtual time.
        world: the world file of a simulation; without it, one is assumed.
        seed: instead of the job's run.seed.
        live: draw progress for a terminal.

    Returns:
        How the run ended and where its files are; a run that failed says so there.

    Raises:
        ConfigError: the job cannot run; nothing was started.
    """
    from rollart.data.classes import stop_reading_here

    stop_reading_here()
    from rollart import job
    from rollart.user_classes import UserClasses

    more = () if seed is None else (f"run.seed={seed}",)
    return job.run(
        Path(path),
        (*overrides, *more),
        pools=pools,
        classes=UserClasses(
            actor_gen=actor_gen, actor_train=actor_train, reward=reward, environment=environment
        ),
        runtime=runtime,
        world=None if world is None else Path(world),
        live=live,
    )
