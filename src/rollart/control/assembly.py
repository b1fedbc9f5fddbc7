"""A controller from a job and a launcher: who gets which part of the configuration.

Invariant: the same assembly serves every runtime; only the launcher differs.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollart.control.admission import Credits
from rollart.control.controller import Controller, ControllerSettings
from rollart.control.env_manager import EnvManager, EpisodeSettings, Generate
from rollart.control.evaluation import EvaluationSettings, Evaluator
from rollart.control.evaluation_beside import EvaluationBeside
from rollart.control.fleet import Fleet, FleetSettings
from rollart.control.group_run import GroupRunner
from rollart.control.ledger import Ledger
from rollart.control.llm_proxy import LLMProxy
from rollart.control.protocols import protocol_policy
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler, SchedulerSettings
from rollart.control.task_queue import TaskQueue
from rollart.control.weight_sync import SyncSettings, WeightSync
from rollart.core.config import EVAL_BESIDE, GROUP_RELATIVE, DomainConfig, JobConfig
from rollart.core.ports import (
    Affinity,
    Binding,
    Environments,
    EventSink,
    Launcher,
    Placement,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    TranscriptSink,
)
from rollart.core.types import Task, Trajectory

POLICY = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainParts:
    """What one domain needs at run time."""

    config: DomainConfig
    environments: Environments
    reward: Reward
    tasks: TaskSource
    heldout: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlParts:
    """The classes a controller is made of. Replace one to try another policy, or to break it."""

    fleet: type[Fleet] = Fleet
    proxy: type[LLMProxy] = LLMProxy
    manager: type[EnvManager] = EnvManager
    scheduler: type[RolloutScheduler] = RolloutScheduler
    runner: type[GroupRunner] = GroupRunner
    buffer: type[SampleBuffer] = SampleBuffer
    credits: type[Credits] = Credits
    ledger: type[Ledger] = Ledger
    sync: type[WeightSync] = WeightSync


STANDARD = ControlParts()

WrapGenerate = Callable[[Generate], Generate]
"""What a user's code puts around each generation."""


def as_it_is(generate: Generate) -> Generate:
    return generate


def forget(trajectory: Trajectory) -> None:
    """Keeps no transcript."""


def declared_placement(job: JobConfig) -> Placement:
    """As the job says and without a look at what there is: a pool a class, the trainer first."""
    classes = [name for name, count in job.engine_counts.items() for _ in range(count)]
    wanted = dict(job.rollout.affinity)
    default = wanted.pop("default", None)
    return Placement(
        engines=tuple(
            Binding(worker=f"engine-{i}", hardware=name, parts=((name, "generate"),))
            for i, name in enumerate(classes)
        ),
        trainer=Binding(worker="trainer", hardware=classes[0], parts=((classes[0], "train"),)),
        affinity=Affinity(by_domain=wanted, default=default),
    )


async def assemble(
    job: JobConfig,
    launcher: Launcher,
    *,
    run_id: str,
    placement: Placement,
    save_to: str | None,
    events: EventSink,
    parts: ControlParts = STANDARD,
    generate: WrapGenerate = as_it_is,
    transcripts: TranscriptSink = forget,
) -> Controller:
    """Launch everything but the engines, which the controller starts, and connect the parts."""
    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(launcher.trainer(placement.trainer))
        renderer = group.create_task(launcher.renderer())
        domains = [group.create_task(_domain(job, config, launcher)) for config in job.domains]
    return connect(
        job,
        launcher,
        trainer=trainer.result(),
        renderer=renderer.result(),
        domains={task.result().config.tag: task.result() for task in domains},
        run_id=run_id,
        placement=placement,
        save_to=save_to,
        events=events,
        parts=parts,
        generate=generate,
        transcripts=transcripts,
    )


async def _domain(job: JobConfig, config: DomainConfig, launcher: Launcher) -> DomainParts:
    return DomainParts(
        config=config,
        environments=await launcher.environments(config.tag),
        reward=await launcher.reward(config.tag),
        tasks=await launcher.tasks(config.tag),
        heldout=await launcher.heldout(config.tag, job.eval.tasks) if job.eval.tasks else (),
    )


def connect(
    job: JobConfig,
    launcher: Launcher,
    *,
    trainer: Trainer,
    renderer: Renderer,
    domains: Mapping[str, DomainParts],
    run_id: str,
    placement: Placement,
    save_to: str | None,
    events: EventSink,
    parts: ControlParts = STANDARD,
    generate: WrapGenerate = as_it_is,
    transcripts: TranscriptSink = forget,
) -> Controller:
    """Connect parts that exist already."""
    protocol = protocol_policy(job.protocol.name, job.alpha)
    fleet = parts.fleet(launcher, placement.engines, _fleet_settings(job), events)
    proxy = parts.proxy(
        fleet, affinity=placement.affinity, context=job.model.context, events=events
    )
    managers = {
        tag: parts.manager(
            environments=domain.environments,
            reward=domain.reward,
            renderer=renderer,
            proxy=proxy,
            settings=_episode_settings(job, domain.config),
            events=events,
            generate=generate(proxy.generate),
            transcripts=transcripts,
        )
        for tag, domain in domains.items()
    }
    ledger = parts.ledger(events)
    scheduler = parts.scheduler(
        tasks=TaskQueue(
            {tag: domain.tasks for tag, domain in domains.items()},
            {tag: domain.config.weight for tag, domain in domains.items()},
            events,
        ),
        managers=managers,
        buffer=parts.buffer(),
        ledger=ledger,
        credits=parts.credits(job.capacity_groups),
        protocol=protocol,
        settings=_scheduler_settings(job, run_id),
        events=events,
        runner=parts.runner,
    )
    evaluator = _evaluator(job, domains, managers, trainer, run_id=run_id, events=events)
    beside = EvaluationBeside(
        evaluator, every=job.eval.every, round_s=job.timeouts.episode_s, events=events
    )
    return Controller(
        fleet=fleet,
        scheduler=scheduler,
        sync=lambda progress: parts.sync(
            scheduler=scheduler,
            proxy=proxy,
            fleet=fleet,
            trainer=trainer,
            evaluation=beside,
            protocol=protocol,
            settings=_sync_settings(job),
            events=events,
            progress=progress,
        ),
        trainer=trainer,
        evaluator=evaluator,
        beside=beside,
        ledger=ledger,
        settings=_controller_settings(job, save_to),
        events=events,
    )


def _evaluator(
    job: JobConfig,
    domains: Mapping[str, DomainParts],
    managers: Mapping[str, EnvManager],
    trainer: Trainer,
    *,
    run_id: str,
    events: EventSink,
) -> Evaluator:
    return Evaluator(
        managers=managers,
        heldout={tag: domain.heldout for tag, domain in domains.items()},
        temperatures={tag: domain.config.temperature for tag, domain in domains.items()},
        trainer=trainer,
        settings=EvaluationSettings(
            run=run_id,
            places={domain.tag: job.training_places_of(domain) for domain in job.domains},
            beside=EVAL_BESIDE,
            compare_s=job.timeouts.train_s,
        ),
        events=events,
    )


def _sync_settings(job: JobConfig) -> SyncSettings:
    return SyncSettings(
        batch_groups=job.rollout.batch_groups,
        train_s=job.timeouts.train_s,
        weights_s=job.timeouts.weights_s,
    )


def _controller_settings(job: JobConfig, save_to: str | None) -> ControllerSettings:
    return ControllerSettings(
        steps=job.run.steps,
        time_limit_s=job.run.time_limit_s,
        alpha=job.alpha,
        save_to=save_to,
    )


def _fleet_settings(job: JobConfig) -> FleetSettings:
    return FleetSettings(
        engine_s=job.timeouts.engine_s,
        weights_s=job.timeouts.weights_s,
        restarts=job.faults.attempts,
        policy=POLICY,
    )


def _episode_settings(job: JobConfig, domain: DomainConfig) -> EpisodeSettings:
    times = job.timeouts
    return EpisodeSettings(
        max_turns=domain.max_turns,
        max_tokens=domain.max_tokens,
        temperature=domain.temperature,
        env_reset_s=times.env_reset_s,
        env_step_s=times.env_step_s,
        reward_s=times.reward_s,
        episode_s=times.episode_s,
        policy=POLICY,
        run_seed=job.run.seed,
    )


def _scheduler_settings(job: JobConfig, run_id: str) -> SchedulerSettings:
    relative = job.train.advantage in GROUP_RELATIVE
    return SchedulerSettings(
        run=run_id,
        batch_groups=job.rollout.batch_groups,
        group_sizes={domain.tag: job.group_size_of(domain) for domain in job.domains},
        weights={domain.tag: domain.weight for domain in job.domains},
        redundancy=job.redundancy,
        members_needed=2 if relative else 1,
        attempts=job.faults.attempts,
        drop_zero_variance=job.train.drop_zero_variance,
        max_dead_groups=job.faults.max_dead_groups,
        max_no_verdict=job.faults.max_no_verdict,
        stall_s=job.timeouts.stall_s,
    )
