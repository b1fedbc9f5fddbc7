"""Results as a table for people and as JSON, one object a row.

Invariant: what is shown is what was measured; a row that was not run is said to be so.
"""

import json
from collections.abc import Iterator, Sequence
from statistics import fmean

from rollart.paper.rows import Kind, PartResult, Row, RowResult

PAPERS_OWN = (Kind.MICRO, Kind.END_TO_END)


def verdict(result: RowResult) -> str:
    """hit or miss; of a cause, whether it explains its row; a sweep only shows."""
    match result.row.kind:
        case Kind.SWEEP:
            return "shown"
        case Kind.CAUSE:
            return "explains" if result.ok else "not alone"
        case _:
            return "hit" if result.ok else "miss"


def number(part: PartResult) -> str:
    """The mean, and the range over seeds where there is one."""
    text = f"{part.mean:.3g}"
    if f"{part.least:.3g}" != f"{part.most:.3g}":
        text += f" ({part.least:.3g}-{part.most:.3g})"
    return text


def utilisation(result: RowResult) -> dict[str, dict[str, float]]:
    """By arm, the share of its time that each pool worked, in the mean over seeds."""
    return {
        name: {
            pool: round(fmean(run.use(pool) for run in runs), 3)
            for pool in sorted({pool for run in runs for pool, _ in run.busy})
        }
        for name, runs in result.arms.items()
    }


def text_table(results: Sequence[RowResult], not_run: Sequence[Row]) -> str:
    """Every row with its parts, as lines of text."""
    return "\n".join([*_lines(results), *(f"{row.id}: not run" for row in not_run)])


def _lines(results: Sequence[RowResult]) -> Iterator[str]:
    for result in results:
        row = result.row
        name = f"{row.id} [{row.kind}]" + (f" of {row.of}" if row.of else "")
        yield f"{verdict(result).upper():5} {name}: {row.what}"
        yield f"      paper {row.paper or '-'}; band {row.band or '-'}; seeds {result.seeds}"
        for part in result.parts:
            mark = " " if part.ok else "!"
            paper = f"   (paper {part.part.paper})" if part.part.paper else ""
            yield f"    {mark} {part.part.label}: {number(part)}{paper}"
        if row.why and not result.ok:
            yield f"      why: {row.why}"


def json_objects(results: Sequence[RowResult]) -> list[dict[str, object]]:
    """One object for each of the paper's rows; what belongs to a row stands within it."""
    by_row = [result for result in results if result.row.kind in PAPERS_OWN]
    return [
        {
            **_object(result),
            "related": [_object(other) for other in results if other.row.of == result.row.id],
        }
        for result in by_row
    ]


def json_lines(results: Sequence[RowResult]) -> str:
    """The same as text, one line each."""
    return "\n".join(json.dumps(found) for found in json_objects(results))


def _object(result: RowResult) -> dict[str, object]:
    row = result.row
    return {
        "id": row.id,
        "kind": row.kind.value,
        "what": row.what,
        "paper": row.paper,
        "band": row.band,
        "ours": {part.part.label: round(part.mean, 4) for part in result.parts},
        "ok": result.ok,
        "missed": [part.part.label for part in result.parts if not part.ok],
        "why": "" if result.ok else row.why,
        "assumed": row.assumed,
        "spread": {
            part.part.label: [round(part.least, 4), round(part.most, 4)] for part in result.parts
        },
        "seeds": result.seeds,
        "utilisation": utilisation(result),
    }
