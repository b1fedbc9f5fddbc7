"""Redundancy: who of many is kept, and how many spares are worth their cost. Pure decisions.

Invariant: in a race the first to finish are kept, so the kept are shorter than the started; in the
unbiased mode who is kept was settled before the start, and a spare only replaces what failed.
"""

import bisect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollart.core.config import RedundancyConfig

MOST_POINTS = 64
"""Ages at which an expectation over a curve is taken."""

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
    wait and costs itself.
    """
    if len(outcomes) < ENOUGH_OUTCOMES:
        return 0
    ended = [outcome for outcome in outcomes if not outcome.censored]
    sound = 1.0 - sum(outcome.failed for outcome in ended) / len(ended) if ended else 1.0
    curve = SurvivalCurve.of([outcome for outcome in outcomes if not outcome.failed]).thinned()

    def cost(spares: int) -> float:
        places = size + spares
        return places * seconds_until_full(curve, size=size, places=places, sound=sound)

    return min(range(most + 1), key=cost)


def seconds_until_full(curve: "SurvivalCurve", *, size: int, places: int, sound: float) -> float:
    """Expected seconds until `size` of `places` have finished: the mean of an order statistic.

    A place finishes with probability `sound`. A group that is not full when all would have ended
    tries again, and takes the longest as long again.
    """
    seconds, begin, missing = 0.0, 0.0, 1.0
    for age, ended in zip(curve.ages, curve.ended, strict=True):
        seconds += (age - begin) * missing
        begin, missing = age, fewer_than(size, of=places, each=ended * sound)
    return seconds + begin * missing


def fewer_than(count: int, *, of: int, each: float) -> float:
    """Probability that fewer than `count` of `of` happen, each with probability `each`."""
    return sum(
        math.comb(of, happen) * each**happen * (1.0 - each) ** (of - happen)
        for happen in range(count)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """What the job's redundancy decides, over what the scheduler tells it."""

    config: RedundancyConfig

    @property
    def unbiased(self) -> bool:
        """Speed has no say in who is kept."""
        return self.config.mode == "unbiased"

    def members(self, outcomes: Sequence[Outcome], *, size: int) -> int:
        """Spare members of a group that begins now, in a domain with these last outcomes."""
        if self.config.mode != "adaptive":
            return self.config.members
        return worthwhile_spares(outcomes, size=size, most=self.config.members)

    def keep(
        self, done: Sequence[int], given_up: Collection[int], *, size: int, places: int
    ) -> tuple[int, ...] | None:
        """The places that are kept, or None while the group is not full."""
        if self.unbiased:
            return first_in_order(done, given_up, size=size, places=places)
        return first_to_finish(done, size=size)

    def batch_is_full(
        self, live: Collection[int], buffered: Collection[int], *, groups: int
    ) -> bool:
        """Whether a batch can be taken: any groups, or, without bias, those admitted first."""
        if len(buffered) < groups or not self.unbiased:
            return len(buffered) >= groups
        return not any(group in live for group in sorted([*live, *buffered])[:groups])

    def surplus(
        self,
        live: Sequence[tuple[int, int | None]],
        buffered: Collection[int],
        *,
        outstanding: int,
        capacity: int,
    ) -> tuple[int, ...]:
        """Ids of the groups beyond what would be outstanding without spare groups."""
        count = outstanding - (capacity - self.config.groups) if self.config.groups else 0
        return surplus_groups(live, buffered, count=count, unbiased=self.unbiased)


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

    def thinned(self) -> "SurvivalCurve":
        """The same curve on at most `MOST_POINTS` ages, the last one kept."""
        step = -(-len(self.ages) // MOST_POINTS) or 1
        return SurvivalCurve(
            ages=self.ages[::-1][::step][::-1], ended=self.ended[::-1][::step][::-1]
        )

    def quantile(self, share: float) -> float:
        """The age (s) at which `share` has ended; the highest age seen if it never gets there."""
        if not self.ages:
            return 0.0
        return self.ages[min(bisect.bisect_left(self.ended, share - 1e-9), len(self.ages) - 1)]


def surplus_groups(
    live: Sequence[tuple[int, int | None]], buffered: Collection[int], *, count: int, unbiased: bool
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
