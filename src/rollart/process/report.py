"""How a child ended."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass


class ExitCause(enum.Enum):
    """Who ended the child."""

    ITSELF = "ended by itself"
    CLOSED = "was closed"
    KILLED = "was killed by its owner"
    SILENT = "was silent and was killed"
    CHANNEL = "broke its channel and was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """One child's end.

    Attributes:
        name: the child's name.
        pid: its process id (may already belong to another process).
        cause: who ended it.
        reason: a sentence with the details, e.g. the seconds without a heartbeat.
        code: exit code, None when a signal ended it or when it is unknown.
        signal: number of the signal that ended it, else None.
        output: the last lines that it wrote to stdout and stderr.
    """

    name: str
    pid: int
    cause: ExitCause
    reason: str
    code: int | None
    signal: int | None
    output: str

    @property
    def clean(self) -> bool:
        """True when the child returned with exit code 0."""
        return self.code == 0

    def __str__(self) -> str:
        status = f"{self.name} (pid {self.pid}) {self.cause.value}: {self.reason}"
        return f"{status}\n{self.output}".rstrip()


def exit_report(
    *, name: str, pid: int, cause: ExitCause, why: str, returncode: int | None, output: str
) -> ExitReport:
    """Build a report from a return code as `subprocess` gives it (negative: a signal).

    Args:
        why: what is known apart from the return code; may be empty.
        returncode: None when nobody could tell, e.g. when the fork server died as well.
    """
    killed_by = -returncode if returncode is not None and returncode < 0 else None
    if returncode is None:
        status = "exit status unknown"
    elif killed_by is not None:
        status = f"signal {_signal_name(killed_by)}"
    else:
        status = f"exit code {returncode}"
    return ExitReport(
        name=name,
        pid=pid,
        cause=cause,
        reason=f"{why}; {status}" if why else status,
        code=returncode if returncode is not None and returncode >= 0 else None,
        signal=killed_by,
        output=output,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
