"""`rollart train`: run a job, then print its result."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rollart.cli.common import BAD_INPUT, FAILED, INTERRUPTED, OK, Jobs, fail
from rollart.cli.report import print_result, print_summary
from rollart.core.errors import ConfigError, RollartError


def train(
    jobs: Jobs, file: Path, overrides: Sequence[str], *, runtime: str, world: Path | None
) -> int:
    """Returns the exit code."""
    try:
        outcome = jobs.run(file, overrides, runtime=runtime, world=world, live=sys.stdout.isatty())
    except ConfigError as error:
        return fail(BAD_INPUT, str(error))
    except RollartError as error:
        return fail(FAILED, str(error))
    try:
        if outcome.summary is not None:
            print_summary(outcome.summary)
        else:
            print_result(outcome.directory)  # or say why there is none
    except RollartError as error:
        # The run is over and its end is told below; what cannot be shown must not hide it.
        fail(FAILED, str(error))
    print(f"run directory: {outcome.directory}")
    if outcome.interrupted:
        return fail(INTERRUPTED, f"interrupted: {outcome.reason}")
    return OK if outcome.ok else fail(FAILED, outcome.reason)
