"""`rollart timeline`: a run as a file that ui.perfetto.dev opens."""

from pathlib import Path

from rollart.cli.common import BAD_INPUT, OK, fail, warn
from rollart.core.errors import RollartError

TIMELINE_FILE = "timeline.json.gz"


def timeline(run: Path, *, out: Path | None) -> int:
    """Returns the exit code."""
    from rollart.observe.eventlog import Wholeness, read_run
    from rollart.observe.report import log_of
    from rollart.observe.timeline import READ, write_timeline

    path = out or run / TIMELINE_FILE
    whole = Wholeness()
    try:
        records = write_timeline(read_run(log_of(run), only=READ, whole=whole), path)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    if whole.partial is not None:
        warn(f"{run}: partial timeline: {whole.partial}")
    print(f"timeline: {path} ({records} records); open it at https://ui.perfetto.dev")
    return OK
