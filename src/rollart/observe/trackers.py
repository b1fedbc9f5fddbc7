"""Where a run's metrics go: metrics.jsonl always, and the trackers that the job names.

Invariant: trackers are best effort. Each sits behind a `BackgroundTracker` of its own, where it can
lose points and never time; none knows of the others.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from rollart.core.errors import ConfigError
from rollart.core.events import Evaluated, Stamped
from rollart.observe.background import BackgroundTracker
from rollart.observe.points import Point, Tracker, domain_points, evaluation_point, train_point
from rollart.observe.steps import StepRows

METRICS_FILE = "metrics.jsonl"

EXTERNAL = ("tensorboard", "wandb")
"""Trackers that a job may name; each is a package and an extra of that name."""

CLOSE_S = 10.0
"""Seconds that trackers have to finish once the run is over."""

Maker = Callable[[], Tracker]


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
            for point in domain_points(row):
                self._tracker.log(point)
        elif isinstance(stamped.event, Evaluated):
            self._tracker.log(evaluation_point(stamped.event, stamped.time))


class TrackerGroup:
    """A tracker that hands each point to several, each in the background. Never raises or blocks.

    `close` gives all of them together `wait_s` seconds to finish.
    """

    def __init__(self, makers: Mapping[str, Maker], *, warn: Callable[[str], None]) -> None:
        self._trackers = [BackgroundTracker(name, make, warn=warn) for name, make in makers.items()]

    @property
    def lost(self) -> int:
        """Points that any of them lost."""
        return sum(tracker.lost for tracker in self._trackers)

    def log(self, point: Point) -> None:
        for tracker in self._trackers:
            tracker.log(point)

    def close(self, wait_s: float = CLOSE_S) -> None:
        for tracker in self._trackers:
            tracker.finish()
        until = time.monotonic() + wait_s
        for tracker in self._trackers:
            tracker.close(max(0.0, until - time.monotonic()))


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def require_trackers(
    names: Sequence[str], *, installed: Callable[[str], bool] = _installed
) -> None:
    """Refuse a tracker whose package is missing, without loading any.

    Raises:
        ConfigError: it names the extra to install.
    """
    for name in names:
        if name not in EXTERNAL:
            raise ConfigError(
                f"run.trackers = [{name!r}]: unknown; use {' or '.join(map(repr, EXTERNAL))}"
            )
        if not installed(name):
            raise ConfigError(
                f"run.trackers = [{name!r}]: the package {name} is not installed; install it with: "
                f"pip install 'rollart[{name}]', or leave it out"
            )


def make_trackers(
    names: Sequence[str],
    directory: Path,
    *,
    run: str,
    config: str,
    warn: Callable[[str], None],
) -> TrackerGroup:
    """metrics.jsonl in a run's directory, and the named trackers beside it.

    Args:
        names: of `EXTERNAL`; TensorBoard writes to directory/tensorboard, Weights & Biases offline
            to directory/wandb, which `wandb sync` sends.
        run: the run's name there.
        config: the run's configuration as JSON.
        warn: is told of losses, in the caller of `log` or `close`, at most once a minute each.

    Raises:
        ConfigError: a package is missing.
    """
    require_trackers(names)

    def tensorboard() -> Tracker:
        from rollart.observe.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker(directory / "tensorboard")

    def wandb() -> Tracker:
        from rollart.observe.wandb_tracker import WandbTracker

        return WandbTracker(directory, run=run, config=config)

    external: dict[str, Maker] = {"tensorboard": tensorboard, "wandb": wandb}
    makers: dict[str, Maker] = {"metrics": lambda: JsonlTracker(directory / METRICS_FILE)}
    makers |= {name: external[name] for name in dict.fromkeys(names)}
    return TrackerGroup(makers, warn=warn)
