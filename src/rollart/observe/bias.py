"""Whether what is trained on is what was started: selection by time, and what it does to reward.

Whoever keeps the first to finish keeps the quick, and where the quick do worse or better, training
sees another task than the one that was set. Events tell of every started trajectory how long it
took, or how long it had run when it was ended (it is then *censored*: it would have taken longer).
From both follows, by the product-limit estimate (Kaplan and Meier, 1958), how long trajectories
take when nobody ends them, and each finished one's weight in an average over all that were started.

Invariant: pure, from events alone; evaluation has no part in it. Times are seconds.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from rollart.core.types import Disposition

BINS = 10
NOTABLE_SHARE = 0.05
NOTABLE_ERRORS = 3.0
"""Shares of slow trajectories differ notably by more than this, and this many standard errors."""

USED = frozenset({Disposition.TRAINED, Disposition.FILTERED})
"""Kept, or left out for equal scores only, which favours neither the quick nor the slow."""

Counts = tuple[tuple[str, int], ...]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_DISPOSITIONS = tuple(Disposition)


class Leavings:
    """What left a domain: 18 bytes a trajectory, so that long runs can be reported on."""

    def __init__(self) -> None:
        self._elapsed = array("d")
        self._score = array("d")
        self._disposition = bytearray()
        self._censored = bytearray()

    def __len__(self) -> int:
        return len(self._elapsed)

    def add(
        self, elapsed_s: float, disposition: Disposition, *, censored: bool, score: float | None
    ) -> None:
        """One trajectory; `elapsed_s` is to its end, or to when it was ended if `censored`."""
        self._elapsed.append(elapsed_s)
        self._score.append(math.nan if score is None else score)
        self._disposition.append(_DISPOSITIONS.index(disposition))
        self._censored.append(censored)

    def elapsed(self) -> Floats:
        return np.array(self._elapsed, np.float64)

    def scores(self) -> Floats:
        """NaN where there is none."""
        return np.array(self._score, np.float64)

    def censored(self) -> Flags:
        return np.frombuffer(bytes(self._censored), np.uint8).astype(np.bool_)

    def are(self, dispositions: Iterable[Disposition]) -> Flags:
        wanted = [_DISPOSITIONS.index(disposition) for disposition in dispositions]
        return np.isin(np.frombuffer(bytes(self._disposition), np.uint8), wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationBin:
    """Trajectories that left after at most `upto_s` and more than the bin before.

    `left` = `kept` + all `dropped`; `censored` of them were ended and would have taken longer.
    """

    upto_s: float
    left: int
    kept: int
    dropped: Counts
    censored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainBias:
    """Started, kept (trained) and dropped of one domain.

    `slow_s` cuts the durations as near to the middle as they allow. `slow_started` is the estimated
    share of all started that takes longer, `slow_kept` that of the kept. `reward_kept` and
    `reward_finished` are means over the kept and over all that have a score; `reward_started` is
    the estimated mean over all started, had none been ended, with its standard error: large where
    few of the slow finished, each of whom then stands for many. `notable`: what was dropped for
    another reason than equal scores depends on how long it took.
    """

    domain: str
    started: int
    kept: int
    dropped: Counts
    censored: int
    slow_s: float | None
    slow_started: float | None
    slow_kept: float | None
    reward_kept: float | None
    reward_finished: float | None
    reward_started: float | None
    reward_started_error: float | None
    notable: bool
    bins: tuple[DurationBin, ...]


def bias_of(domain: str, started: int, leavings: Leavings) -> DomainBias:
    """The bias of one domain's training data."""
    elapsed, censored, scores = leavings.elapsed(), leavings.censored(), leavings.scores()
    kept, used = leavings.are((Disposition.TRAINED,)), leavings.are(USED)
    survival = survival_of(elapsed, censored)
    cut = middle(survival)
    scored = ~np.isnan(scores)
    weights = survival.weights(elapsed, censored)
    slow_used = None if cut is None else _mean(elapsed[used] > cut.at)
    return DomainBias(
        domain=domain,
        started=started,
        kept=int(kept.sum()),
        dropped=_dropped(leavings, np.ones(len(leavings), np.bool_)),
        censored=int(censored.sum()),
        slow_s=cut.at if cut else None,
        slow_started=cut.share if cut else None,
        slow_kept=_mean(elapsed[kept] > cut.at) if cut else None,
        reward_kept=_mean(scores[kept & scored]),
        reward_finished=_mean(scores[scored]),
        reward_started=_mean(scores[scored], weights[scored]),
        reward_started_error=_error(scores[scored], weights[scored]),
        notable=cut is not None and _notable(cut.share, slow_used, int(used.sum())),
        bins=bins_of(leavings),
    )


def bins_of(leavings: Leavings, number: int = BINS) -> tuple[DurationBin, ...]:
    """Deciles of the time at which trajectories left; fewer where many took equally long."""
    if not len(leavings):
        return ()
    elapsed, censored = leavings.elapsed(), leavings.censored()
    kept = leavings.are((Disposition.TRAINED,))
    ranks = -(-np.arange(1, number + 1) * len(elapsed) // number) - 1
    edges = np.unique(np.sort(elapsed)[ranks])
    place = np.searchsorted(edges, elapsed, side="left")
    bins: list[DurationBin] = []
    for at, upto in enumerate(edges):
        inside = place == at
        bins.append(
            DurationBin(
                upto_s=float(upto),
                left=int(inside.sum()),
                kept=int((inside & kept).sum()),
                dropped=_dropped(leavings, inside),
                censored=int((inside & censored).sum()),
            )
        )
    return tuple(bins)


def _dropped(leavings: Leavings, among: Flags) -> Counts:
    counts = Counter(
        {
            disposition.value: int((leavings.are((disposition,)) & among).sum())
            for disposition in Disposition
            if disposition is not Disposition.TRAINED
        }
    )
    return tuple((name, count) for name, count in counts.items() if count)


def _mean(values: Floats | Flags, weights: Floats | None = None) -> float | None:
    """None for nothing to average over."""
    if not len(values):
        return None
    if weights is None:
        return float(values.mean())
    whole = float(weights.sum())
    return float((values * weights).sum() / whole) if whole > 0 else None


def _error(values: Floats, weights: Floats) -> float | None:
    """Standard error of the weighted mean, the weights taken as given.

    None where all weight lies on one value, of which no spread can be told.
    """
    mean, whole = _mean(values, weights), float(weights.sum())
    if mean is None or float(weights.max()) == whole:
        return None
    return math.sqrt(float((weights**2 * (values - mean) ** 2).sum())) / whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Survival:
    """The estimated share that takes longer than each of `times` (s), at which some ended.

    What the estimate leaves beyond the last of them is given to it (Efron, 1967), so the last
    share is 0.
    """

    times: Floats
    shares: Floats
    ended: Floats

    def weights(self, elapsed: Floats, censored: Flags) -> Floats:
        """Each trajectory's weight in a mean over all started; 0 for the censored. Sums to 1."""
        if not len(self.times):
            return np.zeros(len(elapsed))
        mass = -np.diff(self.shares, prepend=1.0)
        place = np.minimum(np.searchsorted(self.times, elapsed), len(self.times) - 1)
        return np.where(censored, 0.0, mass[place] / self.ended[place])


def survival_of(elapsed: Floats, censored: Flags) -> Survival:
    """Who is ended at a moment at which others finish counts as running at that moment."""
    times, ended = np.unique(elapsed[~censored], return_counts=True)
    running = len(elapsed) - np.searchsorted(np.sort(elapsed), times, side="left")
    shares = np.cumprod(1.0 - ended / np.maximum(running, 1), dtype=np.float64)
    if len(shares):
        shares[-1] = 0.0
    return Survival(times=times, shares=shares, ended=ended.astype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`share` of the started takes longer than `at` seconds."""

    at: float
    share: float


def middle(survival: Survival) -> Cut | None:
    """The cut nearest to the middle that leaves some on both sides; None if there is none."""
    if len(survival.times) < 2:
        return None
    place = int(np.argmin(np.abs(survival.shares[:-1] - 0.5)))
    return Cut(at=float(survival.times[place]), share=float(survival.shares[place]))


def _notable(expected: float, found: float | None, number: int) -> bool:
    if found is None:
        return False
    error = math.sqrt(expected * (1 - expected) / number)
    difference = abs(found - expected)
    return difference > NOTABLE_SHARE and difference > NOTABLE_ERRORS * error


class Redundancy(msgspec.Struct, frozen=True, kw_only=True):
    """What the job declared: spare members a group, spare groups a batch, and who is kept."""

    members: int = 0
    groups: int = 0
    mode: str = "race"

    def __bool__(self) -> bool:
        return self.members > 0 or self.groups > 0


class _Config(msgspec.Struct):
    redundancy: Redundancy = Redundancy()


def redundancy_of(config: str) -> Redundancy:
    """From a run's configuration as JSON; none if it says none."""
    try:
        return msgspec.json.decode(config, type=_Config).redundancy
    except msgspec.DecodeError:
        return Redundancy()


def worth_showing(biases: Sequence[DomainBias], redundancy: Redundancy) -> bool:
    """Whether anything was dropped by choice, or by time without it."""
    return bool(redundancy) or any(bias.notable for bias in biases)
