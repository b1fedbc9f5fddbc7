"""The result of a run as tables for a terminal.

Invariant: drawn from a `RunSummary` alone; nothing is computed here but formats.
"""

from typing import TYPE_CHECKING

from rollart.observe.summary import RunSummary
from rollart.observe.words import UNKNOWN, count, duration, number, percent, small

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def result(summary: RunSummary) -> "RenderableType":
    """Success before and after beside the baselines, then speed, lags, ledger and losses."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if summary.partial is not None:
        parts.append(Text(f"partial report: {summary.partial}", style="bold yellow"))
    if any(domain.heldout_tasks for domain in summary.domains):
        parts.append(_success(summary))
    parts.append(_numbers(summary))
    parts.append(_ledger(summary))
    return Group(*parts)


def _table(title: str) -> "Table":
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", header_style="dim")


def _success(summary: RunSummary) -> "Table":
    from rich.text import Text

    table = _table("Success on held-out tasks")
    for heading in ("domain", "tasks", "policy"):
        table.add_column(heading)
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    for domain in summary.domains:
        tasks = str(domain.heldout_tasks)
        table.add_row(
            domain.domain,
            tasks,
            "trained, sampled",
            number(domain.sampled_before, 3),
            f"[bold]{number(domain.sampled_after, 3)}[/]",
        )
        table.add_row(
            "",
            "",
            "trained, greedy",
            number(domain.greedy_before, 3),
            number(domain.greedy_after, 3),
        )
        for name, success in domain.baselines:
            table.add_row("", "", Text(f"baseline: {name}"), number(success, 3), number(success, 3))
        table.add_section()
    return table


def _numbers(summary: RunSummary) -> "Table":
    from rich.text import Text

    table = _table(f"Run {summary.run or '(unknown)'}")
    table.add_column("what")
    table.add_column("value", justify="right")
    planned = "" if summary.steps_planned is None else f" of {summary.steps_planned}"
    rows = (
        ("protocol", f"{summary.protocol or UNKNOWN}, alpha {number(summary.alpha, 0)}"),
        ("seed", number(summary.seed, 0)),
        ("steps", f"{summary.steps}{planned}"),
        ("wall time", duration(summary.wall_s)),
        ("tokens/s (prompt and response)", count(summary.tokens_per_s)),
        ("trained tokens", count(summary.trained_tokens)),
        ("start lag, maximum", number(summary.start_lag_max, 0)),
        ("token lag, maximum", number(summary.token_lag_max, 0)),
        ("token lag, mean", number(summary.token_lag_mean)),
        ("log-prob gap, float32 check", small(summary.logprob_gap_scored)),
        ("log-prob gap, while training", small(summary.logprob_gap_trained)),
        ("training and generation at once", duration(summary.overlap_s)),
        *((f"busy: {share.device}", percent(share.busy)) for share in summary.devices),
        ("interruptions", str(summary.interruptions)),
        ("engines lost", str(summary.engines_lost)),
        ("warnings", str(summary.warnings)),
        ("ended", summary.ended or UNKNOWN),
    )
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _ledger(summary: RunSummary) -> "Table":
    ledger = summary.ledger
    table = _table("Ledger of trajectories")
    table.add_column("what became of them")
    table.add_column("count", justify="right")
    table.add_row("started", str(ledger.started))
    table.add_section()
    for name, number_of in ledger.dispositions:
        table.add_row(name.replace("_", " "), str(number_of))
        if name == "failed":
            for kind, failures in summary.failures:
                table.add_row(f"  {kind.replace('_', ' ')}", f"[dim]{failures}[/]")
    table.add_row("buffered", str(ledger.buffered))
    table.add_row("in flight", str(ledger.in_flight))
    table.add_section()
    table.add_row("balanced", "yes" if ledger.balanced else "[bold red]NO[/]")
    return table
