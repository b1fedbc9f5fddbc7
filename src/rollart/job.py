"""The composition root: a job file becomes a run directory.

Invariant: everything that can be refused is refused before anything is started or written; once a
run has begun, its directory gets an event log, metrics, weights and a report however it ends.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.control.assembly import as_it_is, assemble
from rollart.control.controller import Controller, RunResult
from rollart.control.door import OpenDoor
from rollart.control.doorway import Doorway
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError, RollartError
from rollart.core.events import SCHEMA, RunStarted, WorkerBound
from rollart.core.ports import EventSink, Launcher, Placement, TranscriptSink
from rollart.evaluate import EvalReport, evaluate
from rollart.launching import (
    RUNTIMES,
    Surroundings,
    listener,
    make_run_id,
    measure_baselines,
    open_door,
    run_on,
    supervised,
)
from rollart.observe.dashboard import View, make_view
from rollart.observe.eventlog import EVENTS_FILE, EventLog
from rollart.observe.recorder import Recorder
from rollart.observe.report import WORLD_FILE, write_report
from rollart.observe.summary import RunSummary
from rollart.observe.trackers import MetricsFeed, make_trackers
from rollart.observe.transcripts import TRANSCRIPTS_FILE, TranscriptLog
from rollart.plan import (
    PYTHON_PATH_FILE,
    JobPlan,
    check,
    in_force,
    placed_in,
    planned_bindings,
)
from rollart.recorded import JOB_FILE
from rollart.resource.manager import ResourceManager
from rollart.user_classes import (
    NO_CLASSES,
    UserClasses,
    generation_through,
    training_through,
)

if TYPE_CHECKING:
    from rollart.runtimes.sim.world.sections import World

__all__ = [
    "EvalReport",
    "JobPlan",
    "RunOutcome",
    "check",
    "evaluate",
    "planned_bindings",
    "run",
]

WEIGHTS = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended, and where its files are.

    `summary` is what its report says; None if the report could not be made.
    """

    directory: Path
    ok: bool
    reason: str
    interrupted: bool
    summary: RunSummary | None


def run(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    pools: ResourceManager | None = None,
    classes: UserClasses = NO_CLASSES,
    runtime: str = "local",
    world: Path | None = None,
    live: bool = False,
) -> RunOutcome:
    """Train as the job file says.

    Args:
        path: the job file; user code is looked for beside it, or, for the `job.toml` that a run
            left in its directory, where that run found it.
        overrides: `key=value` pairs in TOML notation.
        pools: where workers go; without them, to logical slots of this machine.
        classes: a user's role classes.
        runtime: where it runs; "local" is this machine, "sim" modelled hardware, under virtual
            time and without user code of environments and rewards.
        world: the world file of a simulation; without it, one is assumed.
        live: draw progress for a terminal.

    Raises:
        ConfigError: the job cannot run; nothing was started.
    """
    plan = check(path, overrides, pools=pools, classes=classes, runtime=runtime, world=world)
    directory = plan.directory.resolve()
    with placed_in(plan, pools) as (placement, bindings):
        plan = replace(plan, job=in_force(plan.job, placement))
        try:
            write_records(plan, directory)
        except OSError as error:
            raise ConfigError(
                f"run.directory = {plan.job.run.directory!r}: cannot be written ({error}); "
                "choose another with --set run.directory=PATH"
            ) from error
        work = _Work(
            plan=plan,
            directory=directory,
            runtime=runtime,
            classes=classes,
            placement=placement,
            bindings=bindings,
        )
        view = make_view(live=live)
        try:
            result = run_on(runtime, lambda: _train(work, view))
        finally:
            view.close()
    return RunOutcome(
        directory=plan.directory,
        ok=result.ok,
        reason=result.reason,
        interrupted=result.interrupted,
        summary=_reported(directory),
    )


def _reported(directory: Path) -> RunSummary | None:
    # The run is over; a report that cannot be drawn must not change how it ended.
    try:
        return write_report(directory)
    except RollartError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A run that is about to begin."""

    plan: JobPlan
    directory: Path
    runtime: str
    classes: UserClasses
    placement: Placement
    bindings: tuple[WorkerBound, ...]


async def _train(work: _Work, view: View) -> RunResult:
    job, directory = work.plan.job, work.directory
    run_id = make_run_id(work.runtime, job)
    recorder = Recorder(asyncio.get_running_loop().time)
    started = run_started(job, run_id, work.runtime)
    with ExitStack() as sinks:
        log = EventLog(directory / EVENTS_FILE, warn=recorder.warn)
        sinks.callback(log.close)
        trackers = make_trackers(
            job.run.trackers,
            directory,
            run=job.run.name,
            config=started.config,
            warn=recorder.warn,
        )
        sinks.callback(trackers.close)
        transcripts = TranscriptLog(
            directory / TRANSCRIPTS_FILE, steps=job.run.steps, warn=recorder.warn
        )
        sinks.callback(transcripts.close)
        recorder.attach("the event log", log.append)
        recorder.attach("metrics", MetricsFeed(trackers).take)
        recorder.attach("the live view", view.take)
        for event in (started, *work.bindings):
            recorder.emit(event)
        if work.plan.assumed:
            recorder.warn(work.plan.assumed)
        door = open_door(recorder)
        async with AsyncExitStack() as parts:

            async def begin() -> Controller:
                around = Surroundings(
                    run_id=run_id,
                    directory=directory,
                    python_path=work.plan.python_path,
                    events=recorder,
                    world=work.plan.world,
                )
                launcher = RUNTIMES[work.runtime](job, around)
                parts.push_async_callback(launcher.close)
                return await _assembled(
                    work,
                    launcher,
                    run_id=run_id,
                    events=recorder,
                    transcripts=transcripts.take,
                    door=door,
                )

            return await supervised(begin, recorder, listen=listener(work.runtime, door))


async def _assembled(
    work: _Work,
    launcher: Launcher,
    *,
    run_id: str,
    events: EventSink,
    transcripts: TranscriptSink,
    door: OpenDoor | None,
) -> Controller:
    """The controller, with the user's classes around what they stand around."""
    job, classes = work.plan.job, work.classes
    if classes.actor_train is not None:
        launcher = training_through(classes.actor_train, launcher)
    wrap = as_it_is if classes.actor_gen is None else generation_through(classes.actor_gen)
    controller = await assemble(
        job,
        launcher if door is None else Doorway(launcher, door, run_id=run_id),
        run_id=run_id,
        placement=work.placement,
        save_to=str(work.directory / WEIGHTS),
        events=events,
        generate=wrap,
        transcripts=transcripts,
    )
    await measure_baselines(job, launcher, events)
    return controller


def run_started(job: JobConfig, run_id: str, runtime: str) -> RunStarted:
    """The first event of a run."""
    return RunStarted(
        schema=SCHEMA,
        run=run_id,
        runtime=runtime,
        protocol=job.protocol.name,
        alpha=job.alpha,
        seed=job.run.seed,
        steps=job.run.steps,
        batch_groups=job.rollout.batch_groups,
        group_size=job.rollout.group_size,
        domains=tuple(domain.tag for domain in job.domains),
        config=json.dumps(job.model_dump(mode="json", by_alias=True)),
    )


def write_records(plan: JobPlan, directory: Path) -> None:
    """What makes the run's directory a place to start from: its job, world and modules' places."""
    directory.mkdir(parents=True, exist_ok=True)
    write_job(plan.job, directory / JOB_FILE)
    if plan.world is not None:
        write_world(plan.world, directory / WORLD_FILE)
    folders = "".join(f"{folder}\n" for folder in plan.python_path)
    (directory / PYTHON_PATH_FILE).write_text(folders, encoding="utf-8")


def write_job(job: JobConfig, path: Path) -> None:
    """The resolved configuration as a job file."""
    import tomli_w

    table = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


def write_world(world: "World", path: Path) -> None:
    """A simulation's world as a world file."""
    import tomli_w

    table = world.model_dump(mode="json", by_alias=True, exclude_none=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
