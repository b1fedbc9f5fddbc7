"""Metrics to trackers: one point a train step, one an evaluation, each on its own axis.

Invariant: trackers are best effort. A slow or broken one sits behind `BackgroundTracker`, where it
can lose points and never time: the run waits for none.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from rollart.core.events import Evaluated, Stamped
from rollart.observe.steps import StepRow, StepRows

METRICS_FILE = "metrics.jsonl"
WARN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Named values of one series at a place `at` on its own `axis`, `time` (s) into the run.

    Series do not share an axis, so a late evaluation of an old version is a point like any other.
    """

    series: str
    axis: str
    at: int
    time: float
    values: tuple[tuple[str, float | None], ...]


class Tracker(Protocol):
    """Where points go. It may raise or block if it sits behind a `BackgroundTracker`."""

    def log(self, point: Point) -> None: ...

    def close(self) -> None: ...


class JsonlTracker:
    """Writes each point as one JSON line: series, its axis, time, then the values, by name.

    Values that are not finite, or absent, are null.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def log(self, point: Point) -> None:
        row = {"series": point.series, point.axis: point.at, "time": point.time}
        self._file.write(msgspec.json.encode(row | dict(point.values)) + b"\n")

    def close(self) -> None:
        self._file.close()


class MetricsFeed:
    """A consumer of events that gives a tracker its points."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._rows = StepRows()

    def take(self, stamped: Stamped) -> None:
        if (row := self._rows.take(stamped)) is not None:
            self._tracker.log(train_point(row))
        elif isinstance(stamped.event, Evaluated):
            self._tracker.log(evaluation_point(stamped.event, stamped.time))


def train_point(row: StepRow) -> Point:
    """A train step's numbers: lags in versions, times in seconds."""
    stats = row.stats
    return Point(
        series="train",
        axis="step",
        at=row.step,
        time=row.ended_at,
        values=(
            ("reward", row.reward),
            ("success", row.success),
            ("batch_reward", row.batch_reward),
            ("batch_success", row.batch_success),
            ("step_s", row.seconds),
            ("train_s", stats.seconds),
            ("tokens_per_s", row.tokens_per_s),
            ("batch_tokens", row.batch_tokens),
            ("trained_tokens", stats.trained_tokens),
            ("trajectories", row.trajectories),
            ("start_lag_max", row.start_lag_max),
            ("token_lag_max", row.token_lag_max),
            ("token_lag_mean", row.token_lag_mean),
            ("loss", stats.loss),
            ("grad_norm", stats.grad_norm),
            ("learning_rate", stats.learning_rate),
            ("entropy", stats.entropy),
            ("clip_fraction", stats.clip_fraction),
            ("approx_kl", stats.approx_kl),
            ("ratio_max", stats.ratio_max),
            ("same_version_gap", stats.same_version_gap),
        ),
    )


def evaluation_point(event: Evaluated, at: float) -> Point:
    """An evaluation's numbers, on the axis of the version that it measured."""
    return Point(
        series=f"eval/{event.domain}/{event.mode}",
        axis="version",
        at=event.version,
        time=at,
        values=(
            ("success", event.success),
            ("score", event.score),
            ("tasks", event.tasks),
            ("scored", event.scored),
            ("seconds", event.seconds),
        ),
    )


class BackgroundTracker:
    """Runs a tracker on a thread of its own, from its making to its closing.

    `log` puts the point in a bounded queue and returns; when the queue is full the point is lost.
    A tracker that raises loses that point; one that cannot be made is tried again a minute later.
    Losses are counted in `lost`, and told by `warn`, which runs in the caller of `log` or
    `close`, at most once a minute.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        *,
        warn: Callable[[str], None],
        capacity: int = 1000,
    ) -> None:
        self.lost = 0
        self._name = name
        self._make = make
        self._warn = warn
        self._capacity = capacity
        self._queue: deque[Point] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._problem = ""
        self._told = 0
        self._warned_at = float("-inf")
        # A daemon: a tracker that blocks for ever must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, point: Point) -> None:
        """Take a point. Never blocks, never raises."""
        with self._changed:
            if len(self._queue) >= self._capacity:
                self.lost += 1
                self._problem = "it is too slow, and its queue is full"
            else:
                self._queue.append(point)
                self._changed.notify()
        if point.time - self._warned_at >= WARN_EVERY_S and self._tell():
            self._warned_at = point.time

    def close(self, wait_s: float = 5.0) -> None:
        """Let it finish for at most `wait_s` seconds, then leave it behind."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            with self._changed:
                self.lost += len(self._queue)
                self._queue.clear()
                self._problem = f"it did not end within {wait_s:g} s"
        self._tell()

    def _tell(self) -> bool:
        with self._changed:
            problem, self._problem = self._problem, ""
            lost, self._told = self.lost - self._told, self.lost
        if problem:
            self._warn(f"tracker {self._name}: {problem}; {lost} points lost, the run goes on")
        return bool(problem)

    def _work(self) -> None:
        tracker: Tracker | None = None
        retry_at = float("-inf")
        while (point := self._next()) is not None:
            try:
                if tracker is None and time.monotonic() >= retry_at:
                    retry_at = time.monotonic() + WARN_EVERY_S
                    tracker = self._make()
                if tracker is None:
                    self._failed("it could not be made")
                else:
                    tracker.log(point)
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
        try:
            if tracker is not None:
                tracker.close()
        except Exception as error:
            self._failed(f"{type(error).__name__} while closing: {error}", points=0)

    def _next(self) -> Point | None:
        """The next point; None when closing and all are done."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _failed(self, problem: str, points: int = 1) -> None:
        with self._changed:
            self.lost += points
            self._problem = problem
