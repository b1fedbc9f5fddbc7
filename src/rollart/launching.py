"""What starts a run and brings it to its end: launchers by runtime, stop signals, baselines.

Invariant: a run that cannot begin ends like any other, with an event and a reason; the first stop
signal ends it in order, the second at once.
"""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollart.control.controller import Controller, RunResult
from rollart.core.config import JobConfig
from rollart.core.errors import RollartError, first_error
from rollart.core.events import Baseline, RunEnded
from rollart.core.ports import EventSink, Launcher

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
COLLECTOR = (50_000, 20, 50)
"""Thresholds of the cycle collector while a run goes on. With ten thousand trajectories alive, the
default's full passes stop the loop for over a second and take nearly half of its time."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """What is there already is never looked at again, and what comes is looked at seldom."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*COLLECTOR)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a runtime's launcher is made of, beside the job."""

    run_id: str
    directory: Path
    python_path: tuple[str, ...]
    events: EventSink


def _local(job: JobConfig, around: Surroundings) -> Launcher:
    from rollart.runtimes.local.launcher import LocalLauncher

    return LocalLauncher(
        job,
        run_id=around.run_id,
        run_directory=around.directory,
        python_path=around.python_path,
        events=around.events,
    )


RUNTIMES: Mapping[str, Callable[[JobConfig, Surroundings], Launcher]] = {"local": _local}
"""How a launcher is made, by the runtime's name."""


async def measure_baselines(job: JobConfig, launcher: Launcher, events: EventSink) -> None:
    """Success of each domain's simple policies on its held-out tasks."""
    for domain in job.domains if job.eval.tasks else ():
        heldout = await launcher.heldout(domain.tag, job.eval.tasks)
        for name, success in await launcher.baselines(domain.tag, heldout):
            events.emit(Baseline(domain=domain.tag, name=name, success=success, tasks=len(heldout)))


async def supervised(
    begin: Callable[[], Awaitable[Controller]],
    events: EventSink,
    *,
    drive: Callable[[Controller], Awaitable[RunResult]] = Controller.run,
) -> RunResult:
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
        with rare_collections():
            return await drive(started)
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
