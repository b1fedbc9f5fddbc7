"""`rollart timeline`: a run as a file that ui.perfetto.dev opens."""

from pathlib import Path

from rollart.cli.common import BAD_INPUT, OK, fail
from rollart.core.errors import RollartError

TIMELINE_FILE = "timeline.json.gz"


def timeline(run: Path, *, out: Path | None) -> int:
    """Returns the exit code."""
    from rollart.observe.eventlog import read_events
    from rollart.observe.report import log_of
    from rollart.observe.timeline import READ, write_timeline

    path = out or run / TIMELINE_FILE
    try:
        records = write_timeline(read_events(log_of(run), only=READ), path)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    print(f"timeline: {path} ({records} records); open it at https://ui.perfetto.dev")
    return OK
