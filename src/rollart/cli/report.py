"""`rollart report`: the result tables and picture of a run, or its JSON object."""

from pathlib import Path
from typing import TYPE_CHECKING

from rollart.cli.common import BAD_INPUT, OK, fail
from rollart.core.errors import RollartError

if TYPE_CHECKING:
    from rollart.observe.cost import Cost
    from rollart.observe.summary import RunSummary


def report(run: Path, *, as_json: bool, png: Path | None) -> int:
    """Returns the exit code."""
    from rollart.observe.cost import cost_of
    from rollart.observe.report import PLOT_FILE, ReportError, json_text, load_history, write_plot
    from rollart.observe.summary import summary_of
    from rollart.prices import prices_of

    try:
        history = load_history(run)
        summary = summary_of(history)
        if as_json:
            print(json_text(summary))
            if png is not None:
                write_plot(history, png, summary=summary)
            return OK
        print_summary(summary)
        cost = cost_of(history, summary, prices_of(run))
        if cost.price is not None:
            print(f"{cost.words}: {cost.price:g} an hour, where an H20 is 1; {_bought(cost)}")
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    path = png or run / PLOT_FILE
    try:
        write_plot(history, path, summary=summary)
    except ReportError as error:
        # Asked for, it is an error; drawn along with the table, its absence is only told.
        return fail(BAD_INPUT if png else OK, str(error))
    print(f"picture: {path}")
    return OK


def _bought(cost: "Cost") -> str:
    from rollart.observe.words import count

    return f"{count(cost.trained_tokens_per_s)} trained tokens a second for each 1 of it"


def print_result(run: Path) -> None:
    """Print the tables of a run. Raises `ReportError` or `LogError` if there are none."""
    from rollart.observe.report import load_history
    from rollart.observe.summary import summary_of

    print_summary(summary_of(load_history(run)))


def print_summary(summary: "RunSummary") -> None:
    """Print the tables of a run."""
    from rich.console import Console

    from rollart.observe.tables import result

    Console(highlight=False).print(result(summary))
