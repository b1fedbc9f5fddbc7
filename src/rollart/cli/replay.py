"""`rollart replay`: a recorded schedule is run again under virtual time, and the logs compared."""

from pathlib import Path

from rollart.cli.common import FAILED, OK


def replay(run: Path) -> tuple[int, str]:
    """Exit code and text: 0 and the number of equal events, or 1 and the first difference.

    Raises:
        RollartError: the directory holds no run that can be replayed.
    """
    from rollart.recorded import replay_run

    report = replay_run(run)
    return (OK if report.equal else FAILED), str(report)
