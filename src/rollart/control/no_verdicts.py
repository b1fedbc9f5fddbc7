"""Trajectories without a verdict: when rewards have failed so often that the run ends.

Invariant: no verdict is not a score, so it enters no statistic; it is counted here, with why, among
the run's latest trajectories for which a verdict was asked. One domain of many that fails by itself
is closed (`dead_groups`) and stops no other.
"""

from collections import Counter, deque

from rollart.core.errors import FailureKind
from rollart.core.types import Trajectory

LATEST = 100
"""Trajectories that a share is taken of; with fewer, nothing is decided."""

REASONS = frozenset(
    {FailureKind.REWARD_ERROR, FailureKind.REWARD_TIMEOUT, FailureKind.REWARD_NO_VERDICT}
)


class NoVerdicts:
    """Counts; a share of at most `most` is borne."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._latest: deque[tuple[str, FailureKind] | None] = deque(maxlen=LATEST)

    def count(self, trajectory: Trajectory) -> str | None:
        """Note how a trajectory ended; returns why the run is to end, if it is."""
        failure = trajectory.failure if trajectory.failure in REASONS else None
        if failure is None and trajectory.score is None:
            return None  # no verdict was asked: it was lost before
        self._latest.append(None if failure is None else (trajectory.id.domain, failure))
        if failure is None or len(self._latest) < LATEST:
            return None
        without = Counter(lost for lost in self._latest if lost is not None)
        if without.total() <= self._most * LATEST:
            return None
        counts = ", ".join(
            f"{number} {kind.value} in {domain}" for (domain, kind), number in without.most_common()
        )
        return (
            f"{without.total()} of the latest {LATEST} trajectories have no verdict ({counts}), "
            f"more than faults.max_no_verdict = {self._most:g} allows; the last: "
            f"{trajectory.detail}; mend the reward, or raise faults.max_no_verdict"
        )
