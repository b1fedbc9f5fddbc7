"""Counts over time, for logs of millions of intervals.

Invariant: 16 bytes an interval while gathering, and nothing is looked at twice; results are arrays
over the segments between which nothing changes.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollart.observe.intervals import Interval

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]


class Edges:
    """A count that changes at moments (s), given in any order."""

    __slots__ = ("_begins", "_deltas", "_ends", "_times")

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._begins, self._ends = array("d"), array("d")
        self._times, self._deltas = array("d"), array("q")
        for begin, end in intervals:
            self.cover(begin, end)

    def __len__(self) -> int:
        """How often it changes."""
        return 2 * len(self._begins) + len(self._times)

    def cover(self, begin: float, end: float) -> None:
        """One more from `begin` to `end`; nothing if that is empty."""
        if end > begin:
            self._begins.append(begin)
            self._ends.append(end)

    def step(self, time: float, delta: int) -> None:
        """`delta` more from `time` on."""
        if delta:
            self._times.append(time)
            self._deltas.append(delta)

    @property
    def times(self) -> Floats:
        """When it changes, in no order."""
        return np.concatenate([self._begins, self._ends, self._times])

    @property
    def deltas(self) -> "npt.NDArray[np.int64]":
        """By how much, in the order of `times`."""
        ones = np.ones(len(self._begins), np.int64)
        return np.concatenate([ones, -ones, self._deltas])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """`bounds` [n + 1] strictly ascend from the window's begin to its end; `counts` [rows, n]."""

    bounds: Floats
    counts: Counts

    @property
    def lengths(self) -> Floats:
        return np.diff(self.bounds)


def sweep(window: Interval, rows: Sequence[Sequence[Edges]]) -> Segments:
    """The counts of each row, the sum of its edges, throughout `window`.

    What changed before the window holds at its begin.
    """
    edges = [one for row in rows for one in row]
    times = np.clip(np.concatenate([*(one.times for one in edges), window]), *window)
    order = np.argsort(times, kind="stable")
    times = times[order]
    last = np.append(times[1:] != times[:-1], True)
    bounds = times[last]
    counts = np.empty((len(rows), max(0, len(bounds) - 1)), np.int32)
    at = 0
    for number, row in enumerate(rows):
        changes = np.zeros(len(times), np.int64)
        for one in row:
            changes[at : at + len(one)] = one.deltas
            at += len(one)
        counts[number] = np.cumsum(changes[order])[last][:-1]
    return Segments(bounds=bounds, counts=counts)


class Meter:
    """Seconds of each code, 0 to `codes` - 1, up to any moment; `of` has the segments' codes."""

    def __init__(self, bounds: Floats, of: "npt.NDArray[np.int8]", codes: int) -> None:
        changes = np.flatnonzero(of[1:] != of[:-1]) + 1
        starts = np.concatenate([np.zeros(min(1, len(of)), np.int64), changes])
        self._bounds = np.append(bounds[:-1][starts], bounds[-1])
        lengths, kept = np.diff(self._bounds), of[starts]
        self._upto = {
            code: np.concatenate([[0.0], np.cumsum(np.where(kept == code, lengths, 0.0))])
            for code in range(codes)
            if np.any(kept == code)
        }
        self._codes = codes

    def between(self, begins: Floats, ends: Floats) -> Floats:
        """Seconds of each code [codes] within the intervals, which lie in the window."""
        seconds = np.zeros(self._codes)
        for code, upto in self._upto.items():
            passed = np.interp(ends, self._bounds, upto) - np.interp(begins, self._bounds, upto)
            seconds[code] = passed.sum()
        return seconds
