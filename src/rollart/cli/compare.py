"""`rollart compare`: runs side by side, as tables or as one JSON object."""

from collections.abc import Sequence
from pathlib import Path

from rollart.cli.common import BAD_INPUT, OK, fail, warn
from rollart.core.errors import RollartError


def compare(runs: Sequence[Path], *, as_json: bool) -> int:
    """Returns the exit code."""
    from rollart.observe.compare import compared, json_object, tables
    from rollart.prices import prices_of

    try:
        found = compared(runs, prices_of=prices_of)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    for run in found:
        if run.summary.partial is not None:
            warn(f"{run.name}: its figures are of a part of the run: {run.summary.partial}")
    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(json_object(found)), indent=2).decode())
        return OK
    from rich.console import Console

    Console(highlight=False).print(tables(found))
    return OK
