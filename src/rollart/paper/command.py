"""One evaluation from its rows' names to its text, and the page where one is wanted."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rollart.core.errors import ConfigError
from rollart.paper.effort import FULL, QUICK, Effort
from rollart.paper.evaluation import all_rows, chosen_rows
from rollart.paper.parameters import frozen
from rollart.paper.run import Told, run_rows
from rollart.paper.table import json_lines, text_table


def evaluate(
    wanted: Sequence[str],
    *,
    quick: bool,
    as_json: bool,
    out: Path | None,
    processes: int | None,
    tell: Told,
) -> str:
    """Run rows and return what to print.

    Args:
        wanted: rows by id; all if there are none.
        out: where to write the page, if anywhere.
        processes: that run side by side; one a core if None.

    Raises:
        ConfigError: a row is not known, or there would be no process.
        RollartError: a simulated run did not reach its end.
    """
    effort = QUICK if quick else FULL
    rows = chosen_rows(effort, wanted)
    chosen = {row.id for row in rows}
    not_run = [row for row in all_rows(effort) if row.id not in chosen]
    if processes is not None and processes < 1:
        raise ConfigError(f"--processes {processes}: rows need at least one; use 1 or more")
    processes = processes or os.cpu_count() or 1
    began = time.monotonic()
    results, cpu_s = run_rows(rows, processes=processes, tell=tell)
    seconds = time.monotonic() - began
    if out is not None:
        from rollart.paper.doc import Circumstances, write_page

        flags = [
            *(["--quick"] if quick else []),
            *(f"--rows {' '.join(wanted)}" for _ in wanted[:1]),
        ]
        write_page(
            out,
            results,
            not_run=not_run,
            frozen=frozen(),
            circumstances=Circumstances(
                command=" ".join(["rollart paper", *flags]),
                effort=said(effort),
                seconds=seconds,
                cpu_s=cpu_s,
                processes=processes,
            ),
        )
    if as_json:
        return json_lines(results)
    hits = sum(result.ok for result in results)
    return "\n".join(
        [
            text_table(results, not_run if wanted else []),
            f"{hits} of {len(results)} within their bands; {said(effort)} effort; "
            f"{seconds:.0f} s on {processes} processes, {cpu_s:.0f} s of CPU",
        ]
    )


def said(effort: Effort) -> str:
    """What an effort leaves out, in words."""
    if not effort.is_quick:
        return "full"
    return (
        f"quick (end-to-end rows on a half or a quarter of GPUs and batch, models "
        f"{' and '.join(effort.models)}, {effort.counted} steps, {effort.seeds} seed)"
    )
