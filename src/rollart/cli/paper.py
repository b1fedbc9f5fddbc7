"""`rollart paper`: the paper's evaluation on modelled hardware, beside ours."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rollart.cli.common import BAD_INPUT, FAILED, OK, fail
from rollart.core.errors import ConfigError, RollartError


def paper(
    rows: Sequence[str],
    *,
    quick: bool,
    as_json: bool,
    out: Path | None,
    processes: int | None,
) -> int:
    """Returns the exit code: a missed row is a result, not a failure."""
    from rollart.paper.command import evaluate

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        print(evaluate(rows, quick=quick, as_json=as_json, out=out, processes=processes, tell=tell))
    except ConfigError as error:
        return fail(BAD_INPUT, str(error))
    except RollartError as error:
        return fail(FAILED, str(error))
    return OK
