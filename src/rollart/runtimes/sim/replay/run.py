"""A replay from a job and its event log: nothing else is read.

What "equal" says: where the world outside control answers as the log says, control emits the
recorded events, in order and content. Of a run on a real machine the log tells in which pass of the
loop each answer came in, and the replay repeats just that, on a clock that follows the log's. Under
virtual time it need not: there is a way for the world to answer, in the recorded order and at the
recorded times, that comes to the same. Measured seconds agree within `VIRTUAL_S` or `REAL_S`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollart.control.assembly import STANDARD, ControlParts, assemble, declared_placement
from rollart.control.doorway import Doorway
from rollart.core.config import JobConfig
from rollart.core.events import Stamped
from rollart.core.ports import Binding, Launcher, Placement
from rollart.runtimes.sim.replay.answering import Answering
from rollart.runtimes.sim.replay.compare import Comparison, compare
from rollart.runtimes.sim.replay.comparing import Outcome
from rollart.runtimes.sim.replay.conductor import Conductor
from rollart.runtimes.sim.replay.launcher import ReplayLauncher
from rollart.runtimes.sim.replay.loop import ReplayLoop
from rollart.runtimes.sim.replay.record import Record

VIRTUAL_S = 1e-6
REAL_S = 10.0
"""Seconds by which times may differ: of a run under virtual time, and on a real machine, which may
stop a process for a while between any two of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found.

    `outside` events were not control's (who is bound where, devices, baselines), and `foreign`
    warnings were taken for such; `complete` is whether the record has the run's end; `by_passes`
    whether it tells in which pass of the loop each answer came in.
    """

    comparison: Comparison
    outside: int
    foreign: int
    complete: bool
    by_passes: bool
    tolerance_s: float

    @property
    def equal(self) -> bool:
        return self.comparison.equal

    def __str__(self) -> str:
        found = self.comparison
        if found.difference is not None:
            return str(found.difference)
        times = f"loop times at most {found.apart_s:.6f} s apart ({self.tolerance_s:g} s allowed)"
        if self.by_passes:
            times = (
                f"answers in the recorded passes of the loop; seconds within {self.tolerance_s:g}"
            )
        lines = [f"equal: {found.events} events", f"  {times}"]
        if self.outside or self.foreign:
            lines.append(
                f"  not control's, not compared: {self.outside} events, {self.foreign} warnings"
            )
        if not self.complete:
            lines.append("  the log ends without the run's end; equal as far as it goes")
        return "\n".join(lines)


def replay_events(
    job: JobConfig,
    log: Sequence[Stamped],
    *,
    tolerance_s: float | None = None,
    parts: ControlParts = STANDARD,
) -> ReplayReport:
    """Run control again over what `log` says of the world.

    Args:
        job: the run's own.
        log: its events, from the first.
        tolerance_s: how far times may differ; by default what the log's runtime allows.
        parts: control's classes, to try another policy against a recorded world.

    Raises:
        ReplayError: the log cannot be replayed.
    """
    record = Record(log)
    if tolerance_s is None:
        runtime = record.started.runtime if record.started is not None else "sim"
        tolerance_s = VIRTUAL_S if runtime == "sim" else REAL_S
    outcome = _play(job, record, tolerance_s, parts)
    comparison = compare(
        record.events[: len(outcome.events)], outcome.events, tolerance_s=tolerance_s
    )
    if comparison.equal and outcome.difference is not None:
        comparison = Comparison(
            events=comparison.events, apart_s=comparison.apart_s, difference=outcome.difference
        )
    return ReplayReport(
        comparison=comparison,
        outside=record.outside,
        foreign=outcome.foreign,
        complete=record.end is not None,
        by_passes=record.by_passes,
        tolerance_s=tolerance_s,
    )


def _play(job: JobConfig, record: Record, tolerance_s: float, parts: ControlParts) -> Outcome:
    loop = ReplayLoop(start=record.events[0].time)
    try:
        conductor = (Answering if record.by_passes else Conductor)(record, loop, tolerance_s)
        loop.run_until_complete(_replay(job, conductor, parts))
        _let_go(loop)
    finally:
        loop.close()
    return conductor.outcome


async def _replay(job: JobConfig, conductor: Answering | Conductor, parts: ControlParts) -> None:
    run = asyncio.get_running_loop().create_task(_run(job, conductor, parts))
    await asyncio.wait([run, conductor.over], return_when=asyncio.FIRST_COMPLETED)
    if not conductor.over.done():
        conductor.ended(None if run.cancelled() else run.exception())


async def _run(job: JobConfig, conductor: Answering | Conductor, parts: ControlParts) -> None:
    run_id = conductor.record.run_id
    launcher: Launcher = ReplayLauncher(conductor, job)
    if isinstance(conductor, Answering):
        launcher = Doorway(launcher, conductor.door, run_id=run_id)
    controller = await assemble(
        job,
        launcher,
        run_id=run_id,
        placement=_placement(job, conductor.record),
        save_to="weights",
        events=conductor,
        parts=parts,
    )
    conductor.stop = controller.stop
    await controller.run()


def _let_go(loop: ReplayLoop) -> None:
    """End what is left. Whatever it says on its way out is no part of the replay."""
    left = loop.unfinished_tasks()
    for task in left:
        task.cancel()
    loop.set_exception_handler(lambda _loop, _context: None)
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _placement(job: JobConfig, record: Record) -> Placement:
    """The engines that came up, in their order, where they were."""
    declared = declared_placement(job)
    return Placement(
        engines=tuple(Binding(worker=up.engine, hardware=up.hardware) for up in record.engines()),
        trainer=declared.trainer,
        affinity=declared.affinity,
    )
