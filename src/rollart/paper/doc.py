"""The evaluation as a page with pictures: every row, the misses too, and what was assumed.

Invariant: the page says what was measured and with how much effort, and nothing that was not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart.paper.parameters import Frozen
from rollart.paper.rows import Kind, Row, RowResult
from rollart.paper.table import number, utilisation, verdict

PICTURES = "paper"
"""The folder of pictures, beside the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How the results came about; `cpu_s` is of all processes together."""

    command: str
    effort: str
    seconds: float
    cpu_s: float
    processes: int


def write_page(
    path: Path,
    results: Sequence[RowResult],
    *,
    not_run: Sequence[Row],
    frozen: Frozen,
    circumstances: Circumstances,
) -> None:
    """Write the page and its pictures, over what is there."""
    from rollart.paper.pictures import draw

    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = draw(results, path.parent / PICTURES)
    lines = [
        *_head(results, len(not_run), circumstances, changes=bool(frozen.changes)),
        *_summary(results, not_run),
        *(f"\n![{what}]({PICTURES}/{name})" for name, what in pictures),
        *_rows(results),
        *_parameters(frozen),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(
    results: Sequence[RowResult], left: int, how: Circumstances, *, changes: bool
) -> Iterator[str]:
    own = [result for result in results if result.row.kind in {Kind.MICRO, Kind.END_TO_END}]
    hits = sum(result.ok for result in own)
    yield "# The paper's evaluation on modelled hardware"
    yield ""
    yield (
        f"{hits} of {len(own)} rows lie within their bands"
        + (f"; {left} were not run" if left else "")
        + f". Written by `{how.command}` "
        f"({how.effort} effort) in {how.seconds / 60:.0f} minutes on {how.processes} processes, "
        f"which worked {how.cpu_s / 60:.0f} minutes together."
    )
    yield ""
    changed = (
        "every number that was changed since is in the log below, with all rows before and after"
        if changes
        else "no number was changed since"
    )
    yield (
        "Rows m are the paper's micro-benchmarks, to which parameters were fitted. Rows e are its "
        "end-to-end results: they are held out. The fit was committed before the first of them "
        f"was run; {changed}. A miss stays a miss. Controls and causes are ours. A control takes "
        "away what a gain comes from, so that the gain must vanish. A cause takes away what a miss "
        "is put down to, at half of the size: it explains the miss if the row then lies in its "
        "band, and does not alone if it does not."
    )
    yield ""
    yield (
        "A timing model says nothing about time to score, so stale and aborted trajectories and "
        "the lag of trained tokens are given instead, row by row. Train + push is the share of a "
        "step that the trainer spends on training and on pushing its weights: near 100 %, it paces "
        "the run."
    )


def _summary(results: Sequence[RowResult], not_run: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield "| row | kind | what | paper | band | ours | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        row = result.row
        ours = "; ".join(f"{part.part.label} **{part.mean:.3g}**" for part in result.parts)
        yield (
            f"| {row.id} | {row.kind} | {row.what} | {row.paper or '-'} | {row.band or '-'} | "
            f"{ours} | {verdict(result)} |"
        )
    for row in not_run:
        yield (
            f"| {row.id} | {row.kind} | {row.what} | {row.paper or '-'} | {row.band or '-'} | - | "
            "not run |"
        )


def _rows(results: Sequence[RowResult]) -> Iterator[str]:
    for result in results:
        yield from _row(result)


def _row(result: RowResult) -> Iterator[str]:
    row = result.row
    yield ""
    yield f"## {row.id}: {verdict(result)}"
    yield ""
    yield f"{row.what[0].upper()}{row.what[1:]}. Seeds: {result.seeds}."
    if row.assumed:
        yield f"Assumed: {row.assumed}."
    if row.why and not result.ok:
        yield ""
        yield f"**Why it misses.** {row.why}"
    yield ""
    yield "| part | paper | band | ours (least-most) | |"
    yield "|---|---|---|---|---|"
    for part in result.parts:
        low, high = part.part.low, part.part.high
        free = low == float("-inf") and high == float("inf")
        band = "-" if free else f"{low:.3g} to {high:.3g}"
        mark = "" if free else "hit" if part.ok else "**miss**"
        yield f"| {part.part.label} | {part.part.paper or '-'} | {band} | {number(part)} | {mark} |"
    yield ""
    yield from _arms(result)


def _arms(result: RowResult) -> Iterator[str]:
    yield "| arm | step s | rollout s | train + push | tokens/s | busy | stale of started | lag |"
    yield "|---|---|---|---|---|---|---|---|"
    use = utilisation(result)
    for name, runs in result.arms.items():
        count = len(runs)
        mean = {
            key: sum(getattr(run, key) for run in runs) / count
            for key in ("step_s", "rollout_s", "training", "throughput", "stale", "started", "lag")
        }
        yield (
            f"| {name} | {mean['step_s']:.0f} | {mean['rollout_s']:.0f} | "
            f"{mean['training']:.0%} | {mean['throughput']:.0f} | {_shares(use[name])} | "
            f"{mean['stale']:.0f} of {mean['started']:.0f} | {mean['lag']:.2f} |"
        )


def _shares(use: Mapping[str, float]) -> str:
    return ", ".join(f"{pool} {share:.0%}" for pool, share in use.items()) or "-"


def _parameters(frozen: Frozen) -> Iterator[str]:
    fitted = frozen.fitted
    yield ""
    yield "## Parameters, and every change since the fit"
    yield ""
    yield (
        "Fitted to rows m by `python -m rollart.paper.fit`: "
        f"m-r2 with {fitted.r2_batch} trajectories, {fitted.r2_turns} turns and "
        f"{fitted.r2_answer_tokens} tokens an answer; m-redundancy with sigma "
        f"{fitted.task_sigma:g} between tasks and {fitted.member_sigma:g} within. Rates of links "
        "and of loading weights were fitted to m-weights. Everything else is in the catalogues "
        f"of hardware, models and workloads (fingerprint `{frozen.fingerprint}`), each number with "
        "its source or marked as inferred."
    )
    if not frozen.changes:
        yield ""
        yield "No parameter was changed since the fit."
    for change in frozen.changes:
        yield ""
        yield f"### {change.date}: {change.what}"
        yield ""
        yield change.why
        for when, rows in (("before", change.before), ("after", change.after)):
            yield f"\n<details><summary>All rows {when}</summary>\n\n```\n{rows.strip()}\n```"
            yield "\n</details>"
