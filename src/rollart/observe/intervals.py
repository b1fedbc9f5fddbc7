"""Sets of time intervals: how long, where they meet.

Invariant: results are sorted, disjoint and of positive length; everything is pure.
"""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""(begin, end) in seconds."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union: sorted, with touching and overlapping intervals joined, empty ones left out."""
    union: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def total(intervals: Iterable[Interval]) -> float:
    """Seconds covered, each second once."""
    return sum(end - begin for begin, end in merged(intervals))


def intersection(one: Iterable[Interval], other: Iterable[Interval]) -> list[Interval]:
    """Where both have something."""
    first, second = merged(one), merged(other)
    common: list[Interval] = []
    at_first = at_second = 0
    while at_first < len(first) and at_second < len(second):
        begin = max(first[at_first][0], second[at_second][0])
        end = min(first[at_first][1], second[at_second][1])
        if end > begin:
            common.append((begin, end))
        if first[at_first][1] <= second[at_second][1]:
            at_first += 1
        else:
            at_second += 1
    return common


def clipped(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The part within `window`."""
    return intersection(intervals, [window])


def append_joined(intervals: list[Interval], new: Interval) -> None:
    """Append `new`, joined with the last interval where it continues it: keeps long runs short."""
    if intervals and intervals[-1][0] <= new[0] <= intervals[-1][1]:
        intervals[-1] = (intervals[-1][0], max(intervals[-1][1], new[1]))
    else:
        intervals.append(new)


def busy_share(intervals: Sequence[Interval], window: Interval) -> float:
    """Share of `window` that is covered, 0..1; 0 for an empty window."""
    length = window[1] - window[0]
    return total(clipped(intervals, window)) / length if length > 0 else 0.0
