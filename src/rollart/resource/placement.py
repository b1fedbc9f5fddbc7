"""Places for the workers of a whole run.

Invariant: all of them get a place, or none does. The trainer is bound first, then engines that want
a class by name in the job's order, so a run that fits is never refused for the order of its keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.ports import Affinity, Placement
from rollart.resource.hardware import LOCAL, Kind, kind_of
from rollart.resource.manager import ResourceManager
from rollart.resource.matching import Role, shared_out

TRAINER = "trainer"
ANY = Affinity(by_domain={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a user's classes want, beside the job: classes of hardware by name.

    `environments` is by domain tag; None and {} leave the choice to the job and the defaults.
    """

    generation: Affinity | None = None
    training: str | None = None
    environments: Mapping[str, str] = field(default_factory=dict[str, str])


def place(job: JobConfig, pools: ResourceManager, wishes: Wishes | None = None) -> Placement:
    """Bind every worker of the run; `pools.bindings` then says where each is and why.

    Engines are as many of each class as `rollout.engines` says. Where it is a count, they are
    shared out among the classes that the affinity names, in proportion to the domains' weights, at
    least one each; without an affinity they go where generation goes by default.

    Raises:
        ConfigError: a worker finds no place, or the affinity asks for what the job does not have.
    """
    wishes = wishes or Wishes()
    affinity = run_affinity(job, wishes.generation)
    before = {bound.worker for bound in pools.bindings}
    try:
        trainer = pools.bind(TRAINER, Role.TRAINING, hardware=wishes.training)
        engines = tuple(
            pools.bind(f"engine-{number}", Role.GENERATION, hardware=hardware)
            for number, hardware in enumerate(engine_classes(job, affinity))
        )
        _bind_domains(job, pools, wishes.environments)
    except ConfigError:
        for bound in pools.bindings:
            if bound.worker not in before:
                pools.unbind(bound.worker)
        raise
    return Placement(engines=engines, trainer=trainer, affinity=affinity)


def logical_pools(job: JobConfig, wishes: Wishes | None = None) -> ResourceManager:
    """Pools of this machine with a slot for each engine of the job and one for its trainer."""
    wishes = wishes or Wishes()
    classes = engine_classes(job, run_affinity(job, wishes.generation))
    counts: dict[str, int] = {}
    for hardware in classes:
        counts[hardware or LOCAL] = counts.get(hardware or LOCAL, 0) + 1
    home = wishes.training or _training_home(tuple(counts))
    counts[home] = counts.get(home, 0) + 1
    slots = iter(range(sum(counts.values())))
    return ResourceManager({name: [next(slots) for _ in range(n)] for name, n in counts.items()})


def release(pools: ResourceManager, placement: Placement, job: JobConfig) -> None:
    """Give back what `place` bound."""
    bound = {one.worker for one in pools.bindings}
    names = [binding.worker for binding in (placement.trainer, *placement.engines)]
    names += [name for domain in job.domains for name in _domain_workers(domain.tag)]
    for name in names:
        if name in bound:
            pools.unbind(name)


def run_affinity(job: JobConfig, declared: Affinity | None) -> Affinity:
    """Where each domain's generation goes: as the job says, or as the ActorGen declares.

    Raises:
        ConfigError: both say something, and not the same; or it names a tag or class unknown here.
    """
    wanted = dict(job.rollout.affinity)
    default = wanted.pop("default", None)
    of_job = Affinity(by_domain=wanted, default=default)
    if declared is None:
        return of_job
    if of_job not in (ANY, declared):
        raise ConfigError(
            f"rollout.affinity = {dict(job.rollout.affinity)!r}: hw_mapping says "
            f"{_as_table(declared)!r}; leave one of them out, or make them equal"
        )
    tags = [domain.tag for domain in job.domains]
    for tag in declared.by_domain:
        if tag not in tags:
            raise ConfigError(
                f"hw_affinity[{tag!r}]: no domain has this tag; use {', '.join(tags)} or default"
            )
    if not isinstance(job.rollout.engines, int):
        for tag, hardware in _as_table(declared).items():
            if hardware not in job.rollout.engines:
                raise ConfigError(
                    f"hw_affinity[{tag!r}] = {hardware!r}: no engine is of this class; use "
                    f"{', '.join(job.rollout.engines)}, or add it to rollout.engines"
                )
    return declared


def engine_classes(job: JobConfig, affinity: Affinity) -> tuple[str | None, ...]:
    """The class that each engine wants, None for the default.

    Raises:
        ConfigError: fewer engines than the affinity has classes.
    """
    engines = job.rollout.engines
    if not isinstance(engines, int):
        return tuple(name for name, count in engines.items() for _ in range(count))
    table = _as_table(affinity)
    classes = list(dict.fromkeys(table.values()))
    if not classes:
        return (None,) * engines
    if engines < len(classes):
        raise ConfigError(
            f"rollout.engines = {engines}: the affinity names {len(classes)} classes "
            f"({', '.join(classes)}) and each needs an engine; use rollout.engines = "
            f"{len(classes)} or more"
        )
    weights = dict.fromkeys(classes, 0.0)
    for domain in job.domains:
        wanted = affinity.wanted(domain.tag)
        if wanted is not None:
            weights[wanted] += domain.weight
    counts = shared_out(engines, weights)
    return tuple(name for name in classes for _ in range(counts[name]))


def _bind_domains(job: JobConfig, pools: ResourceManager, environments: Mapping[str, str]) -> None:
    for domain in job.domains:
        environment, reward = _domain_workers(domain.tag)
        wanted = environments.get(domain.tag)
        pools.bind(environment, Role.ENVIRONMENT, hardware=wanted, slots=0)
        pools.bind(reward, Role.REWARD, slots=0)


def _domain_workers(tag: str) -> tuple[str, str]:
    """The environments of a domain share a place, and so do its rewards."""
    return f"{tag}-environments", f"{tag}-rewards"


def _training_home(classes: tuple[str, ...]) -> str:
    """Where the trainer of a machine with these classes is at home."""
    for name in classes:
        if kind_of(name) is Kind.COMPUTE:
            return name
    able = [name for name in classes if kind_of(name) is not Kind.CPU]
    return able[0] if able else LOCAL


def _as_table(affinity: Affinity) -> dict[str, str]:
    default = {} if affinity.default is None else {"default": affinity.default}
    return {**affinity.by_domain, **default}
