"""A recorded run, run again: a run directory's job file and event log through the real control.

Invariant: nothing but those two files is read, and nothing is written.
"""

from pathlib import Path

from rollart.core.errors import RollartError
from rollart.core.jobfile import load_job
from rollart.observe.eventlog import EVENTS_FILE, read_events
from rollart.runtimes.sim.replay.run import ReplayReport, replay_events

JOB_FILE = "job.toml"


def replay_run(run: Path) -> ReplayReport:
    """Replay the run in `run`, and compare.

    Raises:
        RollartError: the directory holds no run that can be replayed.
    """
    if not (run / JOB_FILE).is_file():
        raise RollartError(f"{run}: holds no run ({JOB_FILE} is missing); give a run's directory")
    try:
        job = load_job(run / JOB_FILE)
        log = list(read_events(run / EVENTS_FILE))
    except OSError as error:
        raise RollartError(f"{run}: not the directory of a run ({error}); give one") from error
    return replay_events(job, log)
