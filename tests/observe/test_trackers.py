import dataclasses
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollart.core.events import Evaluated, Stamped, StepTrained
from rollart.observe.background import BackgroundTracker
from rollart.observe.points import Point
from rollart.observe.trackers import JsonlTracker, MetricsFeed, TrackerGroup

Run = Callable[..., list[Stamped]]


def point(at: int, time: float = 0.0, series: str = "train", axis: str = "step") -> Point:
    return Point(series=series, axis=axis, at=at, time=time, values=(("reward", 0.5),))


def rows(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


class Kept:
    """A tracker that keeps its points; `before` may raise or block."""

    def __init__(self, before: Callable[[Point], object] = lambda _: None) -> None:
        self.points: list[Point] = []
        self.closed = False
        self._before = before

    def log(self, point: Point) -> None:
        self._before(point)
        self.points.append(point)

    def close(self) -> None:
        self.closed = True


def test_metrics_hold_one_row_for_each_train_step(tmp_path: Path, synthetic_run: Run) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    feed = MetricsFeed(tracker)
    for stamped in synthetic_run(steps=6):
        feed.take(stamped)
    tracker.close()
    train = [row for row in rows(tmp_path / "metrics.jsonl") if row["series"] == "train"]
    assert [row["step"] for row in train] == list(range(6))
    assert [row["token_lag_max"] for row in train] == [0, 1, 2, 2, 2, 2]
    # Steps are 1.28 s long from the second on, and hold 1000 prompt and response tokens.
    assert train[3]["step_s"] == pytest.approx(1.28)
    assert train[3]["tokens_per_s"] == pytest.approx(1000 / 1.28)
    assert train[3]["loss"] == 0.1


def test_evaluations_stand_on_their_own_axis_and_lose_no_point_to_later_steps(
    tmp_path: Path, synthetic_run: Run
) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    feed = MetricsFeed(tracker)
    events = synthetic_run(steps=4)
    late = next(s for s in events if isinstance(s.event, Evaluated))
    for stamped in [*events, late]:
        feed.take(stamped)
    tracker.close()
    evaluations = [
        row
        for row in rows(tmp_path / "metrics.jsonl")
        if row["series"] == "eval/FrozenLake/sampled"
    ]
    assert [row["version"] for row in evaluations] == [0, 4, 0]
    assert [row["success"] for row in evaluations] == [0.11, 0.87, 0.11]


def test_values_that_are_not_finite_or_absent_are_null_and_nothing_raises(
    tmp_path: Path, synthetic_run: Run
) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    feed = MetricsFeed(tracker)
    # No batch was announced, so reward and success are not known.
    (trained,) = (s for s in synthetic_run(steps=1) if isinstance(s.event, StepTrained))
    assert isinstance(trained.event, StepTrained)
    stats = dataclasses.replace(trained.event.stats, loss=math.nan, grad_norm=math.inf)
    feed.take(dataclasses.replace(trained, event=dataclasses.replace(trained.event, stats=stats)))
    tracker.log(Point(series="system", axis="sample", at=1, time=0.0, values=()))
    tracker.close()
    first, empty = rows(tmp_path / "metrics.jsonl")
    assert first["loss"] is None
    assert first["grad_norm"] is None
    assert first["reward"] is None
    assert empty == {"series": "system", "sample": 1, "time": 0.0}


def test_a_background_tracker_gets_every_point_in_order_and_is_closed() -> None:
    kept, said = Kept(), list[str]()
    tracker = BackgroundTracker("kept", lambda: kept, warn=said.append)
    for at in range(200):
        tracker.log(point(at))
    tracker.close()
    assert [p.at for p in kept.points] == list(range(200))
    assert kept.closed
    assert (tracker.lost, said) == (0, [])


def test_a_tracker_that_blocks_costs_the_run_no_time_and_loses_points_loudly() -> None:
    release, said = threading.Event(), list[str]()
    kept = Kept(lambda _: release.wait(60))
    tracker = BackgroundTracker("stuck", lambda: kept, warn=said.append, capacity=10)
    began = time.perf_counter()
    for at in range(1000):
        tracker.log(point(at, time=at * 0.1))
    assert time.perf_counter() - began < 1.0
    # 100 s of event time: a warning at the first loss and one a minute later.
    assert len(said) == 2
    tracker.close(wait_s=0.05)
    assert "did not end within 0.05 s" in said[-1]
    # One may be inside the tracker, which nobody can know to be lost.
    assert tracker.lost in {999, 1000}
    release.set()


def test_a_tracker_that_cannot_be_made_or_raises_is_told_of_once_a_minute() -> None:
    said = list[str]()
    tried = threading.Semaphore(0)

    def unmakeable() -> Kept:
        tried.release()
        raise ConnectionError("no route to the tracking server")

    tracker = BackgroundTracker("remote", unmakeable, warn=said.append)
    tracker.log(point(0))
    assert tried.acquire(timeout=10)
    deadline = time.monotonic() + 10
    while not tracker.lost and time.monotonic() < deadline:
        time.sleep(0.001)
    for at in range(1, 50):
        tracker.log(point(at, time=0.5))
    assert len(said) == 1
    assert "remote" in said[0]
    assert "ConnectionError: no route to the tracking server" in said[0]
    tracker.close()
    assert tracker.lost == 50


def test_a_tracker_that_blocks_for_ever_does_not_keep_the_program_from_ending() -> None:
    program = """
import threading
from rollart.observe.background import BackgroundTracker
from rollart.observe.points import Point

def block():
    threading.Event().wait()

tracker = BackgroundTracker("stuck", block, warn=print)
tracker.log(Point(series="train", axis="step", at=0, time=0.0, values=()))
tracker.close(wait_s=0.1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "did not end within 0.1 s" in done.stdout


def test_a_point_that_a_tracker_refuses_is_lost_alone() -> None:
    def refuse_odd(p: Point) -> None:
        if p.at % 2:
            raise ValueError("steps must be even")

    kept, said = Kept(refuse_odd), list[str]()
    tracker = BackgroundTracker("picky", lambda: kept, warn=said.append)
    for at in range(10):
        tracker.log(point(at, time=float(at)))
    tracker.close()
    assert [p.at for p in kept.points] == [0, 2, 4, 6, 8]
    assert tracker.lost == 5
    assert any("steps must be even" in line for line in said)


class Broken(Exception):
    pass


def unmakeable() -> Kept:
    raise Broken("at init")


def raising() -> Kept:
    def refuse(_: Point) -> None:
        raise Broken("on log")

    return Kept(refuse)


def blocking() -> Kept:
    return Kept(lambda _: time.sleep(60))


@pytest.mark.parametrize("bad", [unmakeable, raising, blocking])
def test_no_broken_tracker_slows_the_others_or_costs_the_local_file_a_point(
    tmp_path: Path, synthetic_run: Run, bad: Callable[[], Kept]
) -> None:
    good, said = Kept(), list[str]()
    group = TrackerGroup(
        {"metrics": lambda: JsonlTracker(tmp_path / "m.jsonl"), "bad": bad, "good": lambda: good},
        warn=said.append,
    )
    feed = MetricsFeed(group)
    began = time.perf_counter()
    events = synthetic_run(steps=100)
    made = time.perf_counter()
    for stamped in events:
        feed.take(stamped)
        if isinstance(stamped.event, StepTrained):
            time.sleep(0.001)
    assert time.perf_counter() - made < 2.0
    group.close(wait_s=0.5)
    assert time.perf_counter() - began < 5.0
    train = [row["step"] for row in rows(tmp_path / "m.jsonl") if row["series"] == "train"]
    assert train == [p.at for p in good.points if p.series == "train"] == list(range(100))
    assert said
    assert all("tracker bad: " in line for line in said)
    # A warning a minute of the run's time, and one at the end.
    minutes = (events[-1].time - events[0].time) / 60
    assert len(said) <= minutes + 2


def test_trackers_share_the_time_to_finish() -> None:
    group = TrackerGroup({f"stuck-{n}": blocking for n in range(3)}, warn=lambda _: None)
    group.log(point(0))
    began = time.perf_counter()
    group.close(wait_s=0.3)
    assert time.perf_counter() - began < 0.8
