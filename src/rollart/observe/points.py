"""Points of a run's metrics: what trackers are given, made of events.

Invariant: pure; every series has an axis of its own, and what is not known is None, never 0.
"""

from dataclasses import dataclass
from typing import Protocol

from rollart.core.events import Evaluated
from rollart.observe.steps import StepRow


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


def domain_points(row: StepRow) -> list[Point]:
    """A train step's numbers of each domain, each on an axis of its own."""
    return [
        Point(
            series=f"domain/{domain.domain}",
            axis="step",
            at=row.step,
            time=row.ended_at,
            values=(
                ("reward", domain.reward),
                ("success", domain.success),
                ("turns", domain.turns),
                ("sampled_tokens", domain.sampled_tokens),
                ("elapsed_s", domain.elapsed_s),
                ("ended", domain.ended),
                ("failed", domain.failed),
                ("trained", domain.trained),
            ),
        )
        for domain in row.domains
    ]


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
