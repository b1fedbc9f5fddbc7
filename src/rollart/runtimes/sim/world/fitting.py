"""A world against a job and the catalogues: what cannot be is refused before anything starts.

Invariant: after `refuse_impossible` every name in the world that the job uses is known, every model
fits where it goes, and every worker has its GPUs.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from rollart.core.config import JobConfig, largest_divisor
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.engines.api import EngineSettings
from rollart.runtimes.sim.hardware.catalogue import (
    GpuClass,
    LinkClass,
    gpu,
    known,
    link,
    serverless,
)
from rollart.runtimes.sim.hardware.model_shape import ModelShape, model_shape
from rollart.runtimes.sim.hardware.roofline import Roofline
from rollart.runtimes.sim.training.trainer import TrainerSettings, check_fits
from rollart.runtimes.sim.training.weights import WeightSettings
from rollart.runtimes.sim.world.certainties import refuse_certain_failure
from rollart.runtimes.sim.world.sections import EngineSection, PhaseSection, World

HEARTBEAT_S = 20.0
"""An engine with requests says something at least so often, or three times within its deadline."""


def model_of(world: World) -> ModelShape:
    """The shape of the world's model. Raises `ConfigError`."""
    key = "model.name" if world.model.name is not None else "model.config"
    with _about(f'{key} = "{world.model.named}"'):
        return model_shape(world.model.named)


def gpu_of(world: World, name: str, key: str) -> GpuClass:
    """A GPU that the world defines itself, or the catalogue. Raises `ConfigError`."""
    own = world.gpu.get(name)
    if own is not None:
        return GpuClass(name=name, **own.model_dump())
    if name not in known("gpu"):
        names = ", ".join((*world.gpu, *known("gpu")))
        raise ConfigError(
            f'{key} = "{name}": unknown GPU; use one of {names}, or define it: [gpu.{name}] with '
            "tflops, hbm_tb_s, memory_gb, prefill_efficiency and training_mfu"
        )
    return gpu(name)


def link_of(world: World, name: str, key: str) -> LinkClass:
    """A link that the world defines itself, or the catalogue. Raises `ConfigError`."""
    own = world.network.get(name)
    if own is not None:
        return LinkClass(name=name, latency_s=own.latency_s, gb_s=own.gb_s)
    if name not in known("link"):
        names = ", ".join((*world.network, *known("link")))
        raise ConfigError(
            f'{key} = "{name}": no such link; use one of {names}, or define it: [network.{name}] '
            "with latency_s and gb_s"
        )
    return link(name)


def trainer_settings(world: World) -> TrainerSettings:
    """What trains. Raises `ConfigError`."""
    own = world.trainer
    return TrainerSettings(
        gpu=gpu_of(world, own.hardware, "trainer.hardware"),
        gpus=own.gpus,
        mfu=own.mfu,
        fixed_s=own.fixed_s,
        logprob_passes=own.logprob_passes,
        recompute=own.recompute,
    )


def weight_settings(world: World) -> WeightSettings:
    """How weights travel. Raises `ConfigError`."""
    own = world.weights
    return WeightSettings(
        mode=own.mode,
        bucket_gb=own.bucket_gb,
        push=link_of(world, own.push, "weights.push"),
        pull=link_of(world, own.pull, "weights.pull"),
        install=link_of(world, own.install, "weights.install"),
    )


def roofline_of(world: World, model: ModelShape, part: PhaseSection) -> Roofline:
    """One worker of an engine. Raises `ConfigError`."""
    return Roofline(model=model, gpu=gpu_of(world, part.hardware, "hardware"), tp=part.gpus)


def engine_settings(job: JobConfig, world: World) -> EngineSettings:
    """How engines batch, as the job says. Raises `ConfigError`."""
    own = job.rollout
    if own.slots >= own.step_tokens:
        raise ConfigError(
            f"rollout.slots = {own.slots}: must be below rollout.step_tokens = {own.step_tokens}, "
            "since each sequence takes a token an iteration and prefill needs some; use "
            f"rollout.step_tokens = {2 * own.slots}"
        )
    return EngineSettings(
        step_tokens=own.step_tokens,
        most_running=own.slots,
        keep_kv=own.kv == "keep",
        heartbeat_s=min(HEARTBEAT_S, job.timeouts.engine_s / 3),
        install_s=weight_settings(world).install.seconds(model_of(world).weight_bytes),
    )


def parts_of(engine_class: str, section: EngineSection) -> tuple[tuple[str, PhaseSection], ...]:
    """(phase, what does it) of an engine: one part, or those of a prefill/decode group."""
    if section.prefill is not None and section.decode is not None:
        return ("prefill", section.prefill), ("decode", section.decode)
    whole = PhaseSection(hardware=section.hardware or engine_class, gpus=section.gpus)
    return (("generate", whole),)


def gpus_wanted(job: JobConfig, world: World) -> dict[str, list[tuple[str, int]]]:
    """By GPU class, who wants how many of it."""
    wanted: dict[str, list[tuple[str, int]]] = {}
    trainer = world.trainer
    wanted.setdefault(trainer.hardware, []).append(("the trainer", trainer.gpus))
    for name, count in job.engine_counts.items():
        for phase, part in parts_of(name, world.engines[name]):
            engines = count * part.count
            what = f"{engines} x {part.gpus} for engines of {name}"
            what += "" if phase == "generate" else f" ({phase})"
            wanted.setdefault(part.hardware, []).append((what, engines * part.gpus))
    for tag in (domain.tag for domain in job.domains):
        own = world.rewards[tag].dedicated if tag in world.rewards else None
        if own is not None:
            wanted.setdefault(own.hardware, []).append((f"rewards of {tag}", own.gpus))
    return wanted


def refuse_impossible(job: JobConfig, world: World) -> None:
    """Raises `ConfigError` for the first thing that cannot be: key, value, rule, remedy."""
    model = model_of(world)
    _hardware_is_known(world)
    _links_are_known(world)
    _everything_is_there(job, world)
    _nothing_is_astray(job, world)
    engine_settings(job, world)
    _model_fits(job, world, model)
    _pools_suffice(job, world)
    _times_can_be_kept(job, world)
    refuse_certain_failure(job, world)


def _hardware_is_known(world: World) -> None:
    for name in world.pools:
        gpu_of(world, name, f"pools.{name}")
    gpu_of(world, world.trainer.hardware, "trainer.hardware")
    for name, section in world.engines.items():
        for phase, part in parts_of(name, section):
            inner = "" if phase == "generate" else f".{phase}"
            gpu_of(world, part.hardware, f"engines.{name}{inner}.hardware")
    for tag, reward in world.rewards.items():
        if reward.dedicated is not None:
            gpu_of(world, reward.dedicated.hardware, f"rewards.{tag}.dedicated.hardware")
        if reward.serverless is not None:
            with _about(f'rewards.{tag}.serverless.platform = "{reward.serverless.platform}"'):
                serverless(reward.serverless.platform)
            if reward.serverless.hardware is not None:
                gpu_of(world, reward.serverless.hardware, f"rewards.{tag}.serverless.hardware")


def _links_are_known(world: World) -> None:
    weight_settings(world)
    for name, section in world.engines.items():
        if section.prefill is not None:
            link_of(world, section.link, f"engines.{name}.link")


def _everything_is_there(job: JobConfig, world: World) -> None:
    for domain in job.domains:
        if domain.tag not in world.domains and world.recorded is None:
            raise ConfigError(
                f"domains.{domain.tag}: missing; the job trains on it, so the world must say what "
                f'is met there; write [domains.{domain.tag}] and below it preset = "FrozenLake"'
                + _meant(domain.tag, unused(job, world), "domains")
            )
    for name in job.engine_counts:
        if name not in world.engines:
            raise ConfigError(
                f"engines.{name}: missing; rollout.engines of the job has this class; write "
                f'[engines.{name}] and below it hardware = "H800" and gpus = 1'
                + _meant(name, unused(job, world), "engines")
            )


def _meant(name: str, sections: Iterable[str], kind: str) -> str:
    """That a section which nobody uses may be the one that is missing."""
    near = get_close_matches(f"{kind}.{name}", sections, n=1)
    return f", or call [{near[0]}] so" if near and near[0].startswith(f"{kind}.") else ""


def unused(job: JobConfig, world: World) -> tuple[str, ...]:
    """Sections of the world that this job has no use for; a world may serve several jobs."""
    tags = {domain.tag for domain in job.domains}
    return (
        *(f"engines.{name}" for name in world.engines if name not in job.engine_counts),
        *(f"domains.{tag}" for tag in world.domains if tag not in tags),
        *(f"rewards.{tag}" for tag in world.rewards if tag not in tags),
    )


def _nothing_is_astray(job: JobConfig, world: World) -> None:
    """A section of a domain that the job does not have is for another job, or else a slip.

    A slip it is where neither job nor world has the domain otherwise. Where a recorded run has
    domains that are written nowhere, it is one where a domain of the job lacks such a section.
    """
    tags = [domain.tag for domain in job.domains]
    for kind, sections in (("domains", world.domains), ("rewards", world.rewards)):
        lacking = [tag for tag in tags if tag not in sections]
        for tag in (tag for tag in sections if tag not in tags):
            if not lacking if world.recorded is not None else tag in world.domains:
                continue
            near = get_close_matches(tag, lacking or tags, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"{kind}.{tag}: the job has no domain of that name, and no other part of the "
                f"world has it; did you mean [{kind}.{near}]?"
            )


def _model_fits(job: JobConfig, world: World, model: ModelShape) -> None:
    for name in job.engine_counts:
        for phase, part in parts_of(name, world.engines[name]):
            key = f"engines.{name}" + ("" if phase == "generate" else f".{phase}")
            head = f"{key}.gpus = {part.gpus}"
            if model.heads % part.gpus:
                raise ConfigError(
                    f"{head}: {model.name} has {model.heads} attention heads, which cannot be "
                    f"split evenly over so many GPUs; use {largest_divisor(model.heads, part.gpus)}"
                )
            with _about(head):
                tokens = roofline_of(world, model, part).kv_capacity_tokens
            if tokens < job.model.context:
                raise ConfigError(
                    f"{head}: {model.name} on {part.gpus} {part.hardware} leaves room for "
                    f"{tokens} tokens of context, and one sequence of the job has up to "
                    f"model.context = {job.model.context}; use {2 * part.gpus} GPUs, or a shorter "
                    "context"
                )
    with _about(f"trainer.gpus = {world.trainer.gpus}"):
        check_fits(model, trainer_settings(world))


def _pools_suffice(job: JobConfig, world: World) -> None:
    for hardware, wishes in gpus_wanted(job, world).items():
        there, sum_wanted = world.pools.get(hardware, 0), sum(count for _, count in wishes)
        if sum_wanted > there:
            who = ", ".join(f"{what}: {count}" for what, count in wishes)
            raise ConfigError(
                f"pools.{hardware} = {there}: {sum_wanted} GPUs are wanted ({who}); use "
                f"pools.{hardware} = {sum_wanted}, fewer engines, or a smaller trainer"
            )


def _times_can_be_kept(job: JobConfig, world: World) -> None:
    """What is certain to outlast its deadline in each step is no run."""
    limit = job.timeouts.train_s
    if world.trainer.fixed_s >= limit:
        raise ConfigError(
            f"trainer.fixed_s = {world.trainer.fixed_s:g}: a train step takes longer than the "
            f"job's timeouts.train_s = {limit:g}; raise that one with --set timeouts.train_s="
            f"{10 * world.trainer.fixed_s:g}"
        )
    link_s = weight_settings(world).push.seconds(model_of(world).weight_bytes)
    if link_s >= job.timeouts.weights_s:
        raise ConfigError(
            f'weights.push = "{world.weights.push}": the weights take {link_s:.0f} s over it, '
            f"longer than the job's timeouts.weights_s = {job.timeouts.weights_s:g}; raise that "
            f"one with --set timeouts.weights_s={2 * link_s:.0f}"
        )


@contextmanager
def _about(head: str) -> Iterator[None]:
    """What a catalogue refuses is said with the key that asked for it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{head}: {error}") from None
