"""A world for a job that comes with none: plain hardware, and a workload within the job's limits.

Invariant: it follows from the job alone and fits it; what was assumed is said in one sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollart.core.config import DomainConfig, JobConfig
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import gpu, known, link
from rollart.runtimes.sim.hardware.model_shape import ModelShape, model_shape
from rollart.runtimes.sim.hardware.roofline import Roofline
from rollart.runtimes.sim.world.distributions import constant, uniform
from rollart.runtimes.sim.world.sections import (
    DomainSection,
    EngineSection,
    ModelSection,
    TrainerSection,
    WeightsSection,
    World,
)

MODEL = "Qwen3-8B"
GPU = "H800"
TRAINER_GPUS = 8
MOST_GPUS = 64
"""Of an engine that is assumed."""

FAST_LINK = "infiniband-400"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A world, and in words what was assumed for it."""

    world: World
    words: str


def default_world(job: JobConfig) -> Assumed:
    """Classes that the catalogue knows stay; any other becomes one of `GPU`.

    Lengths and turns lie within each domain's limits, waits within a small part of the job's.
    Raises `ConfigError` when no engine that is assumed would hold the job's context.
    """
    model = model_shape(MODEL)
    engines = {name: _engine(job, model, name) for name in job.engine_counts}
    pools: dict[str, int] = {GPU: TRAINER_GPUS}
    for name, count in job.engine_counts.items():
        hardware = engines[name].hardware or name
        pools[hardware] = pools.get(hardware, 0) + count * engines[name].gpus
    push_s = link("ethernet-200-push").seconds(model.weight_bytes)
    in_time = 1.5 * push_s < job.timeouts.weights_s
    world = World(
        schema=1,
        model=ModelSection(name=MODEL),
        pools=pools,
        trainer=TrainerSection(
            hardware=GPU, gpus=TRAINER_GPUS, fixed_s=min(50.0, job.timeouts.train_s / 10)
        ),
        engines=engines,
        weights=WeightsSection() if in_time else WeightsSection(push=FAST_LINK, pull=FAST_LINK),
        domains={domain.tag: _domain(job, domain) for domain in job.domains},
    )
    return Assumed(world=world, words=_said(job, engines))


def _engine(job: JobConfig, model: ModelShape, name: str) -> EngineSection:
    """As many GPUs as the model and one sequence of the job need.

    Raises `ConfigError` when the most that are assumed do not hold them.
    """
    hardware = name if name in known("gpu") else GPU
    gpus = 1
    while (held := _roofline(model, hardware, gpus).kv_room_tokens) < job.model.context:
        if gpus == MOST_GPUS:
            raise ConfigError(
                f"model.context = {job.model.context}: {model.name} on {gpus} {hardware} holds "
                f"{max(0, int(held))} tokens, and no world was given; use a smaller context or "
                "give a world file"
            )
        gpus *= 2
    return EngineSection(hardware=hardware, gpus=gpus)


def _roofline(model: ModelShape, hardware: str, gpus: int) -> Roofline:
    return Roofline(model=model, gpu=gpu(hardware), tp=gpus)


def _domain(job: JobConfig, domain: DomainConfig) -> DomainSection:
    context, times = job.model.context, job.timeouts
    first = max(1, min(512, (context - domain.max_tokens) // 2))
    left = context - first - domain.max_tokens * domain.max_turns
    return DomainSection(
        turns=uniform(1, domain.max_turns),
        first_tokens=constant(first),
        observation_tokens=constant(max(1, min(64, left // domain.max_turns))),
        answer_tokens=uniform(1, domain.max_tokens),
        prefix_hit=1.0,
        reset_s=uniform(times.env_reset_s / 120, times.env_reset_s / 30),
        step_s=uniform(times.env_step_s / 600, times.env_step_s / 60),
    )


def _said(job: JobConfig, engines: Mapping[str, EngineSection]) -> str:
    each = ", ".join(
        f"{count} x {engines[name].gpus} {engines[name].hardware}"
        + ("" if engines[name].hardware == name else f" for {name!r}")
        for name, count in job.engine_counts.items()
    )
    return (
        f"no world was given, so one was assumed: {MODEL}, a trainer of {TRAINER_GPUS} {GPU}, "
        f"engines of {each}, and turns, lengths and waits drawn evenly within the job's limits; "
        "give a world file for figures that mean something"
    )
