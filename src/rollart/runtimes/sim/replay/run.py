"""A replay from a job and its event log: nothing else is read.

What "equal" says: there is a way for the world outside control to answer, in the recorded order
and at the recorded times, in which control emits the recorded events, in order and content. Times
agree within `VIRTUAL` or, where the run was on a real machine, `REAL`: what control itself took is
not replayed. What a log leaves open (how far within one instant who had come) is searched.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollart.control.assembly import STANDARD, ControlParts, assemble, declared_placement
from rollart.core.config import JobConfig
from rollart.core.events import Stamped
from rollart.core.ports import Binding, Placement
from rollart.runtimes.sim.replay.compare import Comparison, compare
from rollart.runtimes.sim.replay.conductor import EPSILON_S, Conductor, Limits, Outcome
from rollart.runtimes.sim.replay.launcher import ReplayLauncher
from rollart.runtimes.sim.replay.loop import ReplayLoop
from rollart.runtimes.sim.replay.record import Record

VIRTUAL = Limits(slack_s=1e-9, tolerance_s=1e-6)
REAL = Limits(slack_s=0.02, tolerance_s=1.0)

MOST_TRIES = 200
"""Replays of one log, each over other choices, before its first difference is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found.

    `outside` events were not control's (who is bound where, devices, baselines), and `foreign`
    warnings were taken for such; `complete` is whether the record has the run's end.
    """

    comparison: Comparison
    outside: int
    foreign: int
    complete: bool
    tolerance_s: float

    @property
    def equal(self) -> bool:
        return self.comparison.equal

    def __str__(self) -> str:
        found = self.comparison
        if found.difference is not None:
            return str(found.difference)
        lines = [
            f"equal: {found.events} events",
            f"  loop times at most {found.apart_s:.6f} s apart ({self.tolerance_s:g} s allowed)",
        ]
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
    limits: Limits | None = None,
    parts: ControlParts = STANDARD,
) -> ReplayReport:
    """Run control again over what `log` says of the world.

    Args:
        job: the run's own.
        log: its events, from the first.
        limits: how far times may differ; by default what the log's runtime allows.
        parts: control's classes, to try another policy against a recorded world.

    Raises:
        ReplayError: the log cannot be replayed.
    """
    record = Record(log)
    if limits is None:
        runtime = record.started.runtime if record.started is not None else "sim"
        limits = VIRTUAL if runtime == "sim" else REAL
    outcome = _search(job, record, limits, parts)
    comparison = compare(
        record.events[: len(outcome.events)], outcome.events, tolerance_s=limits.tolerance_s
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
        tolerance_s=limits.tolerance_s,
    )


def _search(job: JobConfig, record: Record, limits: Limits, parts: ControlParts) -> Outcome:
    """The replay that comes furthest, over what the record leaves open within one instant.

    Where a replay parts from the record, the choices of that instant are made the other way, the
    last first, and kept where that leads further.
    """
    otherwise: frozenset[int] = frozenset()
    best, choices = _play(job, record, limits, parts, otherwise)
    tries = 0
    while best.difference is not None and tries < MOST_TRIES:
        time = record.events[min(len(best.events), len(record.events) - 1)].time
        near = [
            n for n, at in enumerate(choices) if abs(at - time) <= max(EPSILON_S, limits.slack_s)
        ]
        for number in reversed(near):
            tries += 1
            outcome, made = _play(job, record, limits, parts, otherwise ^ {number})
            if outcome.difference is None or len(outcome.events) > len(best.events):
                best, choices, otherwise = outcome, made, otherwise ^ {number}
                break
        else:
            break
    return best


def _play(
    job: JobConfig,
    record: Record,
    limits: Limits,
    parts: ControlParts,
    otherwise: frozenset[int],
) -> tuple[Outcome, list[float]]:
    """One replay, and the loop time of each choice it made."""
    loop = ReplayLoop(start=record.events[0].time)
    try:
        conductor = Conductor(record, loop, limits, otherwise)
        loop.run_until_complete(_replay(job, conductor, parts))
        _let_go(loop)
    finally:
        loop.close()
    return conductor.outcome, conductor.choices


async def _replay(job: JobConfig, conductor: Conductor, parts: ControlParts) -> None:
    controller = await assemble(
        job,
        ReplayLauncher(conductor, job),
        run_id=conductor.record.run_id,
        placement=_placement(job, conductor.record),
        save_to="weights",
        events=conductor,
        parts=parts,
    )
    conductor.stop = controller.stop
    run = asyncio.get_running_loop().create_task(controller.run())
    await asyncio.wait([run, conductor.over], return_when=asyncio.FIRST_COMPLETED)
    if run.done() and not conductor.over.done():
        conductor.ended(run.exception())


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
