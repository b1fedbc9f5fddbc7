"""`rollart replay`: a recorded schedule is run again under virtual time, and the logs compared."""

from pathlib import Path

from rollart.cli.common import FAILED, OK
from rollart.core.errors import RollartError


def replay(run: Path) -> tuple[int, str]:
    """Exit code and text: 0 and the number of equal events, or 1 and the first difference.

    Raises:
        RollartError: the directory holds no run that can be replayed.
    """
    from rollart.core.jobfile import load_job
    from rollart.observe.eventlog import EVENTS_FILE, read_events
    from rollart.runtimes.sim.replay.run import replay_events

    try:
        job = load_job(run / "job.toml")
        log = list(read_events(run / EVENTS_FILE))
    except OSError as error:
        raise RollartError(f"{run}: not the directory of a run ({error}); give one") from error
    report = replay_events(job, log)
    return (OK if report.equal else FAILED), str(report)
