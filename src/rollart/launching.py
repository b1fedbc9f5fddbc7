"""What starts a run and brings it to its end: launchers by runtime, stop signals, baselines.

Invariant: a run that cannot begin ends like any other, with an event and a reason; the first stop
signal ends it in order, the second at once.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.control.controller import Controller, RunResult
from rollart.control.door import STOP, OpenDoor
from rollart.core.config import JobConfig
from rollart.core.errors import RollartError, first_error
from rollart.core.events import Baseline, RunEnded
from rollart.core.ports import EventSink, Launcher

if TYPE_CHECKING:
    from rollart.runtimes.sim.world.sections import World

SIM = "sim"
"""The runtime of modelled hardware, under virtual time."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
COLLECTOR = (500_000, 10, 50)
"""Thresholds of the cycle collector while a run goes on. With ten thousand trajectories alive, the
default's full passes stop the loop for over a second and take nearly half of its time, and frequent
passes over young objects are most of a turn's p99. They count what was made and not yet freed: at
half a million, a run in a steady state makes next to none, and cycles can hold some tens of MB."""


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
    """What a runtime's launcher is made of, beside the job. Only a simulation has a `world`."""

    run_id: str
    directory: Path
    python_path: tuple[str, ...]
    events: EventSink
    world: "World | None" = None


def _local(job: JobConfig, around: Surroundings) -> Launcher:
    from rollart.runtimes.local.launcher import LocalLauncher

    return LocalLauncher(
        job,
        run_id=around.run_id,
        run_directory=around.directory,
        python_path=around.python_path,
        events=around.events,
    )


def _sim(job: JobConfig, around: Surroundings) -> Launcher:
    from rollart.runtimes.sim.launcher import SimLauncher

    assert around.world is not None
    return SimLauncher(job, around.world, events=around.events)


RUNTIMES: Mapping[str, Callable[[JobConfig, Surroundings], Launcher]] = {"local": _local, SIM: _sim}
"""How a launcher is made, by the runtime's name."""


def run_on(runtime: str, main: Callable[[], Coroutine[None, None, RunResult]]) -> RunResult:
    """Run `main` on the loop of a runtime, a real or a virtual one."""
    if runtime != SIM:
        from rollart.runtimes.local.loop import CountingLoop

        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            return runner.run(main())
    from rollart.runtimes.sim.loop import run_virtual

    return run_virtual(main)


def make_run_id(runtime: str, job: JobConfig) -> str:
    """The name of a run: unique on a machine; of a simulation, the same whenever it runs."""
    if runtime == SIM:
        return f"{job.run.name}-{job.run.seed}"
    return f"{job.run.name}-{os.getpid()}-{int(time.time())}"


async def measure_baselines(job: JobConfig, launcher: Launcher, events: EventSink) -> None:
    """Success of each domain's simple policies on its held-out tasks."""
    for domain in job.domains if job.eval.tasks else ():
        heldout = await launcher.heldout(domain.tag, job.eval.tasks)
        for name, success in await launcher.baselines(domain.tag, heldout):
            events.emit(Baseline(domain=domain.tag, name=name, success=success, tasks=len(heldout)))


OnSignal = Callable[[signal.Signals], None]

Listen = Callable[[OnSignal], AbstractContextManager[None]]
"""Calls a function, on the running loop, for each stop signal that comes meanwhile."""


@contextmanager
def loop_signals(on_signal: OnSignal) -> Iterator[None]:
    """By the loop itself, which wakes up for them."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def passing_signals(on_signal: OnSignal) -> Iterator[None]:
    """For a virtual loop, which has no handlers and never sleeps: between two of its callbacks."""
    loop = asyncio.get_running_loop()

    def came(number: int, _frame: object) -> None:
        # In the midst of anything: only what happens between callbacks finds control at rest.
        loop.call_soon(on_signal, signal.Signals(number))

    before = {number: signal.signal(number, came) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_door(events: EventSink) -> OpenDoor | None:
    """The door by which answers come in to a run on the running loop.

    None under virtual time, where the order in which they come follows from the program alone.
    """
    from rollart.runtimes.local.loop import CountingLoop

    loop = asyncio.get_running_loop()
    return OpenDoor(loop, events) if isinstance(loop, CountingLoop) else None


def listener(runtime: str, door: OpenDoor | None) -> Listen:
    """How stop signals are heard in a runtime; where there is a door, by it."""
    if runtime == SIM:
        return passing_signals
    if door is None:
        return loop_signals

    @contextmanager
    def listen(on_signal: OnSignal) -> Iterator[None]:
        with loop_signals(lambda number: door.come(STOP, partial(on_signal, number))):
            yield

    return listen


async def supervised(
    begin: Callable[[], Awaitable[Controller]],
    events: EventSink,
    *,
    drive: Callable[[Controller], Awaitable[RunResult]] = Controller.run,
    listen: Listen = loop_signals,
) -> RunResult:
    """Run a controller; the first stop signal ends it in order, the second at once.

    A run that cannot begin ends like any other: with an event and a reason.
    """
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

    try:
        with listen(on_signal):
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


def _ended(events: EventSink, reason: str, *, interrupted: bool = False) -> RunResult:
    events.emit(RunEnded(reason=reason, ok=interrupted, steps=0, seconds=0.0))
    return RunResult(ok=interrupted, reason=reason, steps=0, interrupted=interrupted)
