"""A simulated run: the real control plane over models, under virtual time.

Invariant: what comes out is a pure function of what goes in. No clock, no file but a recorded run's
log, no order of a set and no shared stream of random numbers has a part in it.
"""

import math
from collections.abc import Callable

from rollart.control.assembly import STANDARD, ControlParts, assemble
from rollart.control.controller import Controller, RunResult
from rollart.core.config import JobConfig
from rollart.core.ports import Affinity, EventSink, Launcher
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.world.fitting import refuse_impossible
from rollart.runtimes.sim.world.places import places
from rollart.runtimes.sim.world.sections import World

RUN_ID = "sim"

Around = Callable[[SimLauncher], Launcher]
"""Puts something around the launcher, such as faults."""


def simulate(
    job: JobConfig,
    world: World,
    *,
    seed: int | None = None,
    events: EventSink,
    parts: ControlParts = STANDARD,
    around: Around = lambda launcher: launcher,
    meddle: Callable[[Controller, SimLauncher], None] | None = None,
    max_virtual_time: float = math.inf,
) -> RunResult:
    """Run `job` in `world` to its end. To be called outside an event loop.

    Args:
        seed: instead of the job's run.seed.
        events: takes the events, on the virtual loop, whose time is theirs. The first are the
            bindings; `RunStarted` is for whoever writes a log.
        parts: the control plane's own classes, to try another policy.
        around: what the control plane gets instead of the plain launcher.
        meddle: called before the run starts, to schedule interference.
        max_virtual_time: seconds after which the run counts as one that never ends.

    Raises:
        ConfigError: the world cannot be, or does not fit the job.
        SimulationStuck: the run cannot end, or not within `max_virtual_time`.
    """
    if seed is not None:
        job = job.model_copy(update={"run": job.run.model_copy(update={"seed": seed})})
    refuse_impossible(job, world)

    async def main() -> RunResult:
        launcher = SimLauncher(job, world, events=events)
        found = places(job, world, declared_affinity(job))
        for bound in found.bindings:
            events.emit(bound)
        try:
            controller = await assemble(
                job,
                around(launcher),
                run_id=RUN_ID,
                placement=found.placement,
                save_to=None,
                events=events,
                parts=parts,
            )
            if meddle is not None:
                meddle(controller, launcher)
            return await controller.run()
        finally:
            await launcher.close()

    return run_virtual(main, max_virtual_time=max_virtual_time)


def declared_affinity(job: JobConfig) -> Affinity:
    """Where each domain's generation goes, as the job says."""
    wanted = dict(job.rollout.affinity)
    default = wanted.pop("default", None)
    return Affinity(by_domain=wanted, default=default)
