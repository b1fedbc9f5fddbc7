"""What the commands share: exit codes, the one line of an error, and what they ask of a job.

Invariant: bad input is one line on standard error and exit code 2, before anything starts.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rollart.observe.summary import RunSummary

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = """exit codes:
  0    done
  1    the run ended with a failure; the reason is printed
  2    bad input; one line says what, and nothing was started
  130  interrupted by Ctrl-C and ended cleanly: weights and report are written"""


class Outcome(Protocol):
    """How a run ended."""

    @property
    def directory(self) -> Path: ...
    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def summary(self) -> "RunSummary | None":
        """What its report says, where one could be made."""
        ...


class EvalResult(Protocol):
    """What an evaluation found; prints itself as a table."""

    def as_json(self) -> str:
        """One JSON object."""
        ...


class Jobs(Protocol):
    """What the commands call: `rollart.job`."""

    def check(
        self, path: Path, overrides: Sequence[str], /, *, runtime: str, world: Path | None
    ) -> object:
        """Everything that can be checked without starting; the plan, which prints itself."""
        ...

    def run(
        self,
        path: Path,
        overrides: Sequence[str],
        /,
        *,
        runtime: str,
        world: Path | None,
        live: bool,
    ) -> Outcome: ...

    def evaluate(
        self,
        model: Path,
        path: Path,
        overrides: Sequence[str],
        /,
        *,
        tasks: int | None,
        warn: Callable[[str], None],
    ) -> EvalResult: ...


def fail(code: int, message: str) -> int:
    """Say what is wrong on one line of standard error; returns `code`."""
    _say(message)
    return code


def warn(message: str) -> None:
    """Say something on one line of standard error, and go on."""
    _say(f"warning: {message}")


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(f"rollart: {line}", file=sys.stderr)
