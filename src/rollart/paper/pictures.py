"""Pictures for the page: every part whose band has two ends, the prefix cache, and the bound."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollart.paper.rows import Kind, PartResult, RowResult

HIT, MISS, BAND, LINE = "#2a6f97", "#c1121f", "#c9d6df", "#333333"
LEFT, RIGHT = -1.0, 2.0
"""Ends of the picture, in widths of a band; what lies beyond is shown there as an arrow."""


def draw(results: Sequence[RowResult], folder: Path) -> list[tuple[str, str]]:
    """Draw what there are results for; returns (file's name, what it shows)."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, str]] = []
    for kind, name in ((Kind.MICRO, "micro.png"), (Kind.END_TO_END, "end_to_end.png")):
        banded = [
            (result, part)
            for result in results
            if result.row.kind is kind
            for part in result.parts
            if _has_band(part)
        ]
        if banded:
            figure = Figure(figsize=(9, 1.2 + 0.27 * len(banded)), layout="constrained")
            _bands(figure.subplots(), banded)
            figure.savefig(folder / name, dpi=110)
            drawn.append((name, f"rows {kind}: ours over the paper's band"))
    for result in results:
        if result.row.kind is Kind.SWEEP:
            figure = Figure(figsize=(6, 3.2), layout="constrained")
            _sweep(figure.subplots(), result)
            figure.savefig(folder / f"{result.row.id}.png", dpi=110)
            drawn.append((f"{result.row.id}.png", result.row.what))
    return drawn


def _has_band(part: PartResult) -> bool:
    return part.part.low != float("-inf") and part.part.high != float("inf")


def _bands(axes: Any, banded: Sequence[tuple[RowResult, PartResult]]) -> None:
    """Each part on a line of its own, its band scaled to 0..1."""
    for at, (_, part) in enumerate(banded):
        low, high = part.part.low, part.part.high
        places = [(value - low) / (high - low) for value in (part.least, part.mean, part.most)]
        colour = HIT if part.ok else MISS
        axes.barh(at, 1.0, color=BAND, height=0.7)
        axes.plot([places[0], places[2]], [at, at], color=LINE, linewidth=1)
        shown = min(max(places[1], LEFT), RIGHT)
        mark = "o" if shown == places[1] else "<" if shown == LEFT else ">"
        axes.plot(shown, at, mark, color=colour, markersize=5)
    axes.set_yticks(
        range(len(banded)),
        [f"{result.row.id}  {part.part.label}" for result, part in banded],
        fontsize=7,
    )
    axes.invert_yaxis()
    axes.set_xlim(LEFT - 0.05, RIGHT + 0.05)
    axes.set_xticks([0, 1], ["band's low end", "high end"])
    axes.set_title("Ours within the band (least, mean and most over seeds)", fontsize=9)


def _sweep(axes: Any, result: RowResult) -> None:
    labels = [part.part.label for part in result.parts]
    axes.plot(labels, [part.mean for part in result.parts], "o-", color=HIT)
    axes.axhline(1.0, color=LINE, linewidth=0.8)
    axes.set_title(result.row.what, fontsize=8)
    axes.set_ylabel("2 H800 over 6 H20", fontsize=8)
