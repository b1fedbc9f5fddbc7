"""A run directory's report: summary, object, picture.

Invariant: reads the event log alone; writes nothing but what it is asked to.
"""

from pathlib import Path

import msgspec

from rollart.core.errors import RollartError
from rollart.observe.eventlog import EVENTS_FILE, read_events
from rollart.observe.history import History, gather
from rollart.observe.summary import RunSummary, summary_of
from rollart.observe.summary_json import json_object

REPORT_FILE = "report.json"
WORLD_FILE = "world.toml"
"""In the directory of a simulated run: the world that it met."""
PLOT_FILE = "report.png"


class ReportError(RollartError):
    """There is nothing to report on, or it cannot be written: the message says what to do."""


def log_of(run: Path) -> Path:
    """The event log of the run in directory `run`.

    Raises:
        ReportError: no such directory, or no run in it.
    """
    if not run.exists():
        raise ReportError(f"{run}: does not exist; give the directory of a run")
    if not run.is_dir():
        raise ReportError(f"{run}: is a file; give the directory of a run")
    log = run / EVENTS_FILE
    if not log.is_file():
        raise ReportError(
            f"{run}: holds no {EVENTS_FILE}, so it is not a run; give a run's directory"
        )
    return log


def load_history(run: Path) -> History:
    """The history of the run in directory `run`.

    Raises:
        ReportError: as `log_of`, or a run without a single event.
        LogError: the log cannot be read.
    """
    log = log_of(run)
    try:
        history = gather(read_events(log))
    except OSError as error:
        raise ReportError(f"{log}: cannot be read: {error}") from error
    if history.last_time < history.first_time:
        raise ReportError(f"{log}: holds no event yet; wait until the run has started")
    return history


def json_text(summary: RunSummary) -> str:
    """The summary as JSON text, indented; numbers that are not finite are null."""
    return msgspec.json.format(msgspec.json.encode(json_object(summary)), indent=2).decode()


def write_plot(history: History, path: Path, *, summary: RunSummary | None = None) -> None:
    """Draw the run into a PNG. Raises `ReportError` if it cannot be drawn or written."""
    try:
        from rollart.observe.plots import draw

        draw(history, path, summary=summary)
    except ModuleNotFoundError as error:
        raise ReportError(
            f"no plot without {error.name}; install it with: pip install 'rollart[local]'"
        ) from error
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error}") from error


def write_report(run: Path) -> RunSummary:
    """Write report.json and report.png into a run's directory.

    Raises:
        ReportError, LogError: as `load_history`, or a file cannot be written. The JSON stands
            before the picture is tried.
    """
    history = load_history(run)
    summary = summary_of(history)
    path = run / REPORT_FILE
    try:
        path.write_text(json_text(summary) + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error}") from error
    write_plot(history, run / PLOT_FILE, summary=summary)
    return summary
