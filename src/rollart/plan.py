"""What a job file amounts to, before anything is started or written.

Invariant: everything that can be refused is refused here, with one line that names the remedy.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.events import WorkerBound
from rollart.core.jobfile import load_job
from rollart.core.ports import Placement
from rollart.core.scoring.places import shown_url
from rollart.launching import RUNTIMES, SIM
from rollart.observe.trackers import require_trackers
from rollart.resource.hardware import LOCAL
from rollart.resource.manager import ResourceManager
from rollart.resource.placement import (
    Wishes,
    engine_classes,
    logical_pools,
    place,
    release,
    run_affinity,
)
from rollart.user_classes import NO_CLASSES, UserClasses, apply

if TYPE_CHECKING:
    from rollart.runtimes.sim.world.sections import World

PYTHON_PATH_FILE = "python_path.txt"
"""In a run's directory: the folders where its user modules were found, one a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job file amounts to; prints itself.

    Attributes:
        python_path: where user modules are found: the job file's folder first, or, for the job file
            of a run's directory, the folders of that run.
        wishes: the hardware that the user's classes want.
        world: the modelled hardware of a simulation.
        assumed: what was assumed for it where no world was given, or what a world leaves in doubt.
    """

    job: JobConfig
    directory: Path
    source: Path
    python_path: tuple[str, ...]
    wishes: Wishes
    world: "World | None" = None
    assumed: str = ""

    def __str__(self) -> str:
        job = self.job
        rollout, protocol = job.rollout, job.protocol
        mode = "synchronous" if job.alpha == 0 else f"asynchronous, alpha = {job.alpha}"
        lines = [
            f"{self.source}: ok",
            f"  run directory  {self.directory}",
            f"  model          {job.model.path or job.model.make}",
            f"  protocol       {protocol.name}, {mode}",
            f"  a step         {rollout.batch_groups} groups, {job.run.steps} steps"
            + (f", at most {job.run.time_limit_s:g} s" if job.run.time_limit_s else ""),
        ]
        lines += [
            f"  domain         {domain.tag}: groups of {job.group_size_of(domain)}, at most "
            f"{job.training_places_of(domain)} trajectories outstanding, {domain.environment}, "
            f"reward {', else '.join(map(shown_url, domain.reward_places))}"
            for domain in job.domains
        ]
        if self.world is not None:
            lines.append(f"  world          {_world_said(self.world, self.assumed)}")
        return "\n".join(lines)


def check(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    pools: ResourceManager | None = None,
    classes: UserClasses = NO_CLASSES,
    runtime: str = "local",
    world: Path | None = None,
) -> JobPlan:
    """Everything that can be checked without starting a run.

    Args:
        runtime: where it would run; in a simulation neither the model nor the code of environments
            and rewards is looked at, since none of it is used.
        world: the world file of a simulation; without it, one is assumed.

    Raises:
        ConfigError: one line with key, value, rule and remedy.
    """
    _check_runtime(runtime, world, pools)
    job = load_job(path, overrides)
    directory = Path(job.run.directory) / job.run.name
    _refuse_used(directory)
    require_trackers(job.run.trackers)
    applied = apply(classes, _with_absolute_model(job, path.parent))
    plan = JobPlan(
        job=applied.job,
        directory=directory,
        source=path,
        python_path=tuple(dict.fromkeys((*_folders_of(path), *applied.folders))),
        wishes=applied.wishes,
    )
    if runtime == SIM:
        return _in_world(plan, world)
    from rollart.runtimes.local.launcher import preflight

    with placed(plan.job, pools, plan.wishes):
        pass
    preflight(plan.job, python_path=plan.python_path)
    return plan


def _check_runtime(runtime: str, world: Path | None, pools: ResourceManager | None) -> None:
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime {runtime!r}: unknown; use {' or '.join(map(repr, RUNTIMES))}")
    if world is not None and runtime != SIM:
        raise ConfigError(
            f'world = "{world}": runtime {runtime!r} runs on the hardware that there is; leave the '
            'world out, or use runtime "sim"'
        )
    if pools is not None and runtime == SIM:
        raise ConfigError(
            "pools: a simulation has those of its world; say [pools] in a world file, and leave "
            "pools out"
        )


def _in_world(plan: JobPlan, file: Path | None) -> JobPlan:
    """The plan in the world of `file`, or in an assumed one. Raises `ConfigError`."""
    from rollart.runtimes.sim.launcher import run_workload
    from rollart.runtimes.sim.world.defaults import default_world
    from rollart.runtimes.sim.world.file import load_world
    from rollart.runtimes.sim.world.fitting import model_of, refuse_impossible, unused

    affinity = run_affinity(plan.job, plan.wishes.generation)
    counts = Counter(name or LOCAL for name in engine_classes(plan.job, affinity))
    job = plan.job
    if counts.keys() != {LOCAL}:
        rollout = job.rollout.model_copy(update={"engines": dict(counts)})
        job = job.model_copy(update={"rollout": rollout})
    if file is None:
        assumed = default_world(job)
        world, words = assumed.world, assumed.words
    else:
        world, words = load_world(file), ""
    wanted = plan.wishes.training
    if wanted not in (None, world.trainer.hardware):
        raise ConfigError(
            f'trainer.hardware = "{world.trainer.hardware}": hw_mapping of the ActorTrain says '
            f"{wanted!r}; make them equal"
        )
    refuse_impossible(job, world)
    recorded = () if world.recorded is None else run_workload(job, world).doubts
    idle = f"this job does not use its {', '.join(names)}" if (names := unused(job, world)) else ""
    words = "; ".join(filter(None, (words, *model_of(world).doubts, *recorded, idle)))
    return replace(plan, job=job, world=world, assumed=words)


def _world_said(world: "World", assumed: str) -> str:
    gpus = ", ".join(f"{count} {name}" for name, count in world.pools.items())
    return f"{world.model.named} on {gpus}" + (f"; {assumed}" if assumed else "")


def planned_bindings(path: Path, overrides: Sequence[str] = ()) -> tuple[WorkerBound, ...]:
    """Where the workers of a job would go on this machine, and why. Raises `ConfigError`."""
    with placed(load_job(path, overrides), None, Wishes()) as (_, bindings):
        return bindings


@contextmanager
def placed_in(
    plan: JobPlan, pools: ResourceManager | None
) -> Iterator[tuple[Placement, tuple[WorkerBound, ...]]]:
    """The workers of a plan have their places within: in its world, or as `placed` says."""
    if plan.world is None:
        with placed(plan.job, pools, plan.wishes) as found:
            yield found
        return
    from rollart.runtimes.sim.world.places import places

    found = places(plan.job, plan.world, run_affinity(plan.job, plan.wishes.generation))
    yield found.placement, found.bindings


@contextmanager
def placed(
    job: JobConfig, pools: ResourceManager | None, wishes: Wishes
) -> Iterator[tuple[Placement, tuple[WorkerBound, ...]]]:
    """The workers of a run have their places within; without pools, on slots of this machine.

    Raises:
        ConfigError: somebody finds no place.
    """
    chosen = logical_pools(job, wishes) if pools is None else pools
    before = {bound.worker for bound in chosen.bindings}
    placement = place(job, chosen, wishes)
    try:
        new = tuple(bound for bound in chosen.bindings if bound.worker not in before)
        yield placement, new
    finally:
        release(chosen, placement, job)


def in_force(job: JobConfig, placement: Placement) -> JobConfig:
    """The job that says by itself what user code and pools decided: affinity and engine classes.

    An engine counts for the class that it has or, where the affinity names a class of which none
    came free, for the one that it wanted.
    """
    affinity = placement.affinity
    table = dict(affinity.by_domain)
    if affinity.default is not None:
        table["default"] = affinity.default
    counts = Counter(binding.hardware for binding in placement.engines)
    if not counts.keys() >= set(table.values()):
        counts = Counter(name or LOCAL for name in engine_classes(job, affinity))
    engines: int | Mapping[str, int] = dict(counts)
    if isinstance(job.rollout.engines, int) and counts.keys() == {LOCAL}:
        engines = job.rollout.engines
    rollout = job.rollout.model_copy(update={"affinity": table, "engines": engines})
    return job.model_copy(update={"rollout": rollout})


def _folders_of(path: Path) -> tuple[str, ...]:
    """Where the modules of a job file are: as its run recorded, or else beside it."""
    recorded = path.parent / PYTHON_PATH_FILE
    if recorded.is_file():
        return tuple(recorded.read_text(encoding="utf-8").splitlines())
    return (str(path.parent.resolve()),)


def _refuse_used(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"run.name = {directory.name!r}: {directory} already holds a run; choose another name "
            f"(--set run.name={directory.name}-2) or remove the directory"
        )
    nearest = next(parent for parent in directory.absolute().parents if parent.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ConfigError(
            f"run.directory = {str(directory.parent)!r}: {nearest} cannot be written to; choose "
            "another with --set run.directory=PATH"
        )


def _with_absolute_model(job: JobConfig, beside: Path) -> JobConfig:
    """A relative model path is meant from the job file's folder, or else from here."""
    if job.model.path is None:
        return job
    candidates = [beside / job.model.path, Path(job.model.path)]
    found = next((c for c in candidates if c.is_dir()), candidates[0])
    model = job.model.model_copy(update={"path": str(found.resolve())})
    return job.model_copy(update={"model": model})
