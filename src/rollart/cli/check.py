"""`rollart check`: print the plan of a job, or what is wrong with it."""

from collections.abc import Sequence
from pathlib import Path

from rollart.cli.common import BAD_INPUT, OK, Jobs, fail
from rollart.core.errors import ConfigError


def check(
    jobs: Jobs, file: Path, overrides: Sequence[str], *, runtime: str, world: Path | None
) -> int:
    """Returns the exit code."""
    try:
        plan = jobs.check(file, overrides, runtime=runtime, world=world)
    except ConfigError as error:
        return fail(BAD_INPUT, str(error))
    print(plan)
    return OK
