"""`rollart eval`: measure a model on the held-out tasks of a job."""

from collections.abc import Sequence
from pathlib import Path

from rollart.cli.common import BAD_INPUT, FAILED, OK, Jobs, fail, warn
from rollart.core.errors import ConfigError, RollartError


def evaluate(
    jobs: Jobs,
    model: Path,
    file: Path,
    overrides: Sequence[str],
    *,
    tasks: int | None,
    as_json: bool,
) -> int:
    """Returns the exit code. `tasks` is the number a domain; None leaves it to the job."""
    try:
        result = jobs.evaluate(model, file, overrides, tasks=tasks, warn=warn)
    except ConfigError as error:
        return fail(BAD_INPUT, str(error))
    except RollartError as error:
        return fail(FAILED, str(error))
    print(result.as_json() if as_json else result)
    return OK
