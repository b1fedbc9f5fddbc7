"""What a row of the evaluation is: arms to simulate, numbers taken from them, bands to lie in.

Invariant: a row is judged by its parts alone, each the mean over the seeds against its band.
Controls, causes and sweeps are rows of their own that belong to one of the paper's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from rollart.paper.arms import Arm
from rollart.paper.measure import Measured

Seen = Mapping[str, Measured]
"""What was measured of each arm, by its name, for one seed."""


class Kind(StrEnum):
    """Fitted or held out; a control is ours, a cause is a miss's taken away, a sweep only shows."""

    MICRO = "m"
    END_TO_END = "e"
    CONTROL = "control"
    CAUSE = "cause"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One number of a row: the paper's value as text, and where ours must lie."""

    label: str
    paper: str = ""
    low: float = float("-inf")
    high: float = float("inf")

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the evaluation.

    Attributes:
        id: what `--rows` names.
        paper, band: as the paper and the comparison say it, for people.
        parts: the numbers, in the order in which `value` gives them.
        value: the numbers of one seed, from what was measured of the arms.
        of: of a control, a cause or a sweep, the row it belongs to.
        assumed: what had to be chosen to run it at all.
        why: what the model shows where it misses.
    """

    id: str
    kind: Kind
    what: str
    paper: str
    band: str
    parts: tuple[Part, ...]
    arms: tuple[Arm, ...]
    value: Callable[[Seen], Sequence[float]]
    seeds: int = 3
    of: str = ""
    assumed: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """A part's number: the mean over seeds, and the least and the greatest."""

    part: Part
    mean: float
    least: float
    most: float

    @property
    def ok(self) -> bool:
        return self.part.holds(self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row with its numbers. `arms` has, by name, what was measured with each seed."""

    row: Row
    parts: tuple[PartResult, ...]
    arms: Mapping[str, tuple[Measured, ...]]

    @property
    def seeds(self) -> int:
        return max((len(runs) for runs in self.arms.values()), default=0)

    @property
    def ok(self) -> bool:
        return all(part.ok for part in self.parts)


def judged(row: Row, measured: Mapping[str, Sequence[Measured]]) -> RowResult:
    """The row's numbers from its arms' runs, one for each seed.

    Raises:
        ValueError: the arms have runs of different numbers of seeds.
    """
    runs = {arm.name: tuple(measured[arm.name]) for arm in row.arms}
    by_seed = [
        tuple(row.value(dict(zip(runs, seen, strict=True))))
        for seen in zip(*runs.values(), strict=True)
    ]
    return RowResult(
        row=row,
        parts=tuple(
            PartResult(part=part, mean=fmean(values), least=min(values), most=max(values))
            for part, values in zip(row.parts, zip(*by_seed, strict=True), strict=True)
        ),
        arms=runs,
    )


def within(label: str, paper: float, share: float) -> Part:
    """A part that must lie within a share of the paper's number."""
    return Part(label=label, paper=f"{paper:g}", low=paper * (1 - share), high=paper * (1 + share))
