"""Redundancy: who of many is kept, and how many spares are worth their cost. Pure decisions.

Invariant: in a race the first to finish are kept, so the kept are shorter than the started; in the
unbiased mode who is kept was settled before the start, and a spare only replaces what failed.
"""

import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass

ENOUGH_OUTCOMES = 32
"""Trajectories to have seen before their times say anything about spares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How long a trajectory took (s). `censored`: it was cancelled, so it would have taken longer.

    `failed`: it ended without anything to train on.
    """

    seconds: float
    censored: bool = False
    failed: bool = False


def first_to_finish(done: Sequence[int], *, size: int) -> tuple[int, ...] | None:
    """The places kept in a race, or None while the group is not full.

    Args:
        done: places in the order in which they finished.
    """
    return tuple(done[:size]) if len(done) >= size else None


def first_in_order(
    done: Collection[int], given_up: Collection[int], *, size: int, places: int
) -> tuple[int, ...] | None:
    """The places kept whatever their speed: the first that did not fail; None while any is out."""
    chosen = [place for place in range(places) if place not in given_up][:size]
    full = len(chosen) == size and all(place in done for place in chosen)
    return tuple(chosen) if full else None


def worthwhile_spares(outcomes: Sequence[Outcome], *, size: int, most: int) -> int:
    """The number of spares, 0 to `most`, with the least place-seconds until `size` have finished.

    A group of n places holds them until its slowest kept member ends; another place shortens that
    wait and costs itself. Expected order statistics are taken at k / (N + 1) of the measured
    distribution, N being the places that do not fail.
    """
    if len(outcomes) < ENOUGH_OUTCOMES:
        return 0
    ended = [outcome for outcome in outcomes if not outcome.censored]
    failing = sum(outcome.failed for outcome in ended) / len(ended) if ended else 0.0
    curve = SurvivalCurve.of([outcome for outcome in outcomes if not outcome.failed])

    def cost(spares: int) -> float:
        places = size + spares
        good = places * (1.0 - failing)
        seconds = curve.quantile(min(size / (good + 1.0), 1.0))
        missing = max(0.0, size - good) / size
        return places * seconds * (1.0 + missing)

    return min(range(most + 1), key=cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalCurve:
    """How many are still under way at which age; Kaplan and Meier, JASA 53 (1958), 457-481.

    `ended[i]` is the share that has ended at age `ages[i]` (s), of what would have ended by itself.
    """

    ages: tuple[float, ...]
    ended: tuple[float, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "SurvivalCurve":
        """From ages at the end or at cancellation."""
        ordered = sorted(outcomes, key=lambda outcome: (outcome.seconds, outcome.censored))
        alive = 1.0
        ages: list[float] = []
        ended: list[float] = []
        for passed, outcome in enumerate(ordered):
            if not outcome.censored:
                alive *= 1.0 - 1.0 / (len(ordered) - passed)
            ages.append(outcome.seconds)
            ended.append(1.0 - alive)
        return cls(ages=tuple(ages), ended=tuple(ended))

    def quantile(self, share: float) -> float:
        """The age (s) at which `share` has ended; the highest age seen if it never gets there."""
        if not self.ages:
            return 0.0
        return self.ages[min(bisect.bisect_left(self.ended, share - 1e-9), len(self.ages) - 1)]


def surplus_groups(
    live: Sequence[tuple[int, int | None]], buffered: Sequence[int], *, count: int, unbiased: bool
) -> tuple[int, ...]:
    """Ids of the groups that are too many once a batch is full.

    Args:
        live: (id, start version) of the groups under way.
        buffered: ids of those that are ready.
        count: how many are too many.
        unbiased: end the newest, whatever their state, instead of those longest under way.
    """
    if count <= 0:
        return ()
    if unbiased:
        return tuple(sorted([*(group for group, _ in live), *buffered], reverse=True)[:count])
    slowest = sorted(live, key=lambda entry: (entry[1] is None, entry[1] or 0, entry[0]))
    ids = [group for group, _ in slowest] + sorted(buffered, reverse=True)
    return tuple(ids[:count])
