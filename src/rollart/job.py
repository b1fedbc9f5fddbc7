"""The composition root: a job file becomes a run directory.

Invariant: everything that can be refused is refused before anything is started or written; once a
run has begun, its directory gets an event log, metrics, weights and a report however it ends.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.control.assembly import assemble, declared_placement
from rollart.control.controller import Controller, RunResult
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError, RollartError, first_error
from rollart.core.events import SCHEMA, Baseline, RunEnded, RunStarted
from rollart.core.jobfile import load_job
from rollart.core.ports import EventSink
from rollart.observe.dashboard import View, make_view
from rollart.observe.eventlog import EVENTS_FILE, EventLog
from rollart.observe.recorder import Recorder
from rollart.observe.report import write_report
from rollart.observe.trackers import (
    METRICS_FILE,
    BackgroundTracker,
    JsonlTracker,
    MetricsFeed,
)

if TYPE_CHECKING:
    from rollart.runtimes.local.launcher import LocalLauncher

JOB_FILE = "job.toml"
WEIGHTS = "weights"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job file amounts to; prints itself."""

    job: JobConfig
    directory: Path
    source: Path

    def __str__(self) -> str:
        job = self.job
        rollout, protocol = job.rollout, job.protocol
        mode = "synchronous" if job.alpha == 0 else f"asynchronous, alpha = {job.alpha}"
        lines = [
            f"{self.source}: ok",
            f"  run directory  {self.directory}",
            f"  model          {job.model.path or job.model.make}",
            f"  protocol       {protocol.name}, {mode}",
            f"  a step         {rollout.batch_groups} groups of {rollout.group_size}, "
            f"{job.run.steps} steps"
            + (f", at most {job.run.time_limit_s:g} s" if job.run.time_limit_s else ""),
            f"  outstanding    at most {job.capacity_trajectories} trajectories",
        ]
        lines += [
            f"  domain         {domain.tag}: {domain.environment}, reward {domain.reward}"
            for domain in job.domains
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended, and where its files are."""

    directory: Path
    ok: bool
    reason: str
    interrupted: bool


def check(path: Path, overrides: Sequence[str] = ()) -> JobPlan:
    """Everything that can be checked without starting a run.

    Raises:
        ConfigError: one line with key, value, rule and remedy.
    """
    from rollart.runtimes.local.launcher import preflight

    job = load_job(path, overrides)
    directory = Path(job.run.directory) / job.run.name
    _refuse_used(directory)
    job = _with_absolute_model(job, path.parent)
    preflight(job, python_path=(str(path.parent.resolve()),))
    return JobPlan(job=job, directory=directory, source=path)


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


def run(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    runtime: str = "local",
    live: bool = False,
) -> RunOutcome:
    """Train as the job file says.

    Args:
        path: the job file; user code is looked for beside it.
        overrides: `key=value` pairs in TOML notation.
        runtime: where it runs; "local" is this machine.
        live: draw progress for a terminal.

    Raises:
        ConfigError: the job cannot run; nothing was started.
    """
    if runtime != "local":
        raise ConfigError(f"runtime {runtime!r}: unknown; use 'local'")
    plan = check(path, overrides)
    directory = plan.directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_job(plan.job, directory / JOB_FILE)
    except OSError as error:
        raise ConfigError(
            f"run.directory = {plan.job.run.directory!r}: cannot be written ({error}); "
            "choose another with --set run.directory=PATH"
        ) from error
    view = make_view(live=live)
    try:
        result = asyncio.run(_train(plan, directory, runtime, view))
    finally:
        view.close()
    _write_report(directory)
    return RunOutcome(
        directory=plan.directory,
        ok=result.ok,
        reason=result.reason,
        interrupted=result.interrupted,
    )


def _write_report(directory: Path) -> None:
    # The run is over; a report that cannot be drawn must not change how it ended.
    with suppress(RollartError):
        write_report(directory)


async def _train(plan: JobPlan, directory: Path, runtime: str, view: View) -> RunResult:
    from rollart.runtimes.local.launcher import LocalLauncher

    job = plan.job
    run_id = f"{job.run.name}-{os.getpid()}-{int(time.time())}"
    loop = asyncio.get_running_loop()
    recorder = Recorder(loop.time)
    log = EventLog(directory / EVENTS_FILE, warn=recorder.warn)
    tracker = BackgroundTracker(
        "metrics", lambda: JsonlTracker(directory / METRICS_FILE), warn=recorder.warn
    )
    recorder.attach("the event log", log.append)
    recorder.attach("metrics", MetricsFeed(tracker).take)
    recorder.attach("the live view", view.take)
    recorder.emit(run_started(job, run_id, runtime))
    launcher: LocalLauncher | None = None

    async def begin() -> Controller:
        nonlocal launcher
        launcher = LocalLauncher(
            job,
            run_id=run_id,
            run_directory=directory,
            python_path=(str(plan.source.parent.resolve()),),
            events=recorder,
        )
        controller = await assemble(
            job,
            launcher,
            run_id=run_id,
            placement=declared_placement(job),
            save_to=str(directory / WEIGHTS),
            events=recorder,
        )
        await _measure_baselines(job, launcher, recorder)
        return controller

    try:
        return await _supervised(begin, recorder)
    finally:
        if launcher is not None:
            await launcher.close()
        tracker.close()
        log.close()


async def _measure_baselines(job: JobConfig, launcher: "LocalLauncher", events: EventSink) -> None:
    """Success of each domain's simple policies on its held-out tasks."""
    for domain in job.domains if job.eval.tasks else ():
        heldout = await launcher.heldout(domain.tag, job.eval.tasks)
        for name, success in await launcher.baselines(domain.tag, heldout):
            events.emit(Baseline(domain=domain.tag, name=name, success=success, tasks=len(heldout)))


async def _supervised(begin: Callable[[], Awaitable[Controller]], events: EventSink) -> RunResult:
    """Run a controller; the first stop signal ends it in order, the second at once.

    A run that cannot begin ends like any other: with an event and a reason.
    """
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    controller: Controller | None = None
    asked = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal asked
        if controller is not None and not asked:
            controller.stop(f"stopped by {number.name}")
        elif main is not None:
            main.cancel()
        asked = True

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        started = controller = await begin()
        return await started.run()
    except asyncio.CancelledError:
        if not asked:
            raise
        if controller is None:
            return _ended(events, "stopped before training began", interrupted=True)
        return _ended(events, "stopped at once by a second signal, out of order")
    except RollartError as error:
        return _ended(events, str(error))
    except BaseExceptionGroup as errors:
        first = first_error(errors)
        if not isinstance(first, RollartError):
            raise
        return _ended(events, str(first))
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _ended(events: EventSink, reason: str, *, interrupted: bool = False) -> RunResult:
    events.emit(RunEnded(reason=reason, ok=interrupted, steps=0, seconds=0.0))
    return RunResult(ok=interrupted, reason=reason, steps=0, interrupted=interrupted)


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


def write_job(job: JobConfig, path: Path) -> None:
    """The resolved configuration as a job file."""
    import tomli_w

    table = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
