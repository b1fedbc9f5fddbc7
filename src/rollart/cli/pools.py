"""`rollart pools`: who is bound where, and why."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollart.core.errors import ConfigError
from rollart.core.events import WorkerBound

HEAD = ("worker", "role", "pool", "slots", "wanted", "why")


def pools(target: Path, overrides: Sequence[str]) -> str:
    """The bindings of a run (its directory), or those that a job file would get, as a table.

    Raises:
        ConfigError: it is neither, or the job cannot run, or overrides were given for a run.
        LogError: the run's event log cannot be read.
    """
    if not target.is_dir():
        from rollart.job import planned_bindings

        return table(planned_bindings(target, overrides))
    if overrides:
        raise ConfigError(
            f"--set {overrides[0]}: {target} is a run, which is as it is; give a job file to plan"
        )
    return table(recorded(target))


def recorded(run: Path) -> list[WorkerBound]:
    """What the event log of a run says about its workers. Raises `ConfigError`, `LogError`."""
    from rollart.observe.eventlog import EVENTS_FILE, read_events

    log = run / EVENTS_FILE
    if not log.is_file():
        raise ConfigError(f"{run}: has no {EVENTS_FILE}; give the directory of a run or a job file")
    events = (stamped.event for stamped in read_events(log))
    found = [event for event in events if isinstance(event, WorkerBound)]
    if not found:
        raise ConfigError(f"{log}: no worker was bound; the run ended before, or has just begun")
    return found


def table(bindings: Iterable[WorkerBound]) -> str:
    """One line a worker, in columns."""
    rows = [HEAD, *map(_row, bindings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )


def _row(bound: WorkerBound) -> tuple[str, ...]:
    return (
        bound.worker,
        bound.role,
        bound.pool,
        _slots(bound.slots) or "shared",
        bound.wanted,
        bound.reason,
    )


def _slots(slots: Sequence[int]) -> str:
    """Numbers in ascending order, runs of them as first-last."""
    runs: list[list[int]] = []
    for slot in sorted(slots):
        if runs and slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
