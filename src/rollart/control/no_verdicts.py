"""Trajectories without a verdict: when a domain's reward has failed so often that the run ends.

Invariant: no verdict is not a score, so it enters no statistic; it is counted here, with why, among
the domain's latest trajectories for which a verdict was asked.
"""

from collections import Counter, defaultdict, deque

from rollart.core.errors import FailureKind
from rollart.core.types import Trajectory

LATEST = 100
"""Trajectories of a domain that a share is taken of; with fewer, nothing is decided."""

REASONS = frozenset(
    {FailureKind.REWARD_ERROR, FailureKind.REWARD_TIMEOUT, FailureKind.REWARD_NO_VERDICT}
)


class NoVerdicts:
    """Counts; a share of at most `most` is borne."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._latest: defaultdict[str, deque[FailureKind | None]] = defaultdict(
            lambda: deque(maxlen=LATEST)
        )

    def count(self, trajectory: Trajectory) -> str | None:
        """Note how a trajectory ended; returns why the run is to end, if it is."""
        failure = trajectory.failure if trajectory.failure in REASONS else None
        if failure is None and trajectory.score is None:
            return None  # no verdict was asked: it was lost before
        domain = trajectory.id.domain
        latest = self._latest[domain]
        latest.append(failure)
        if failure is None or len(latest) < LATEST:
            return None
        without = Counter(kind for kind in latest if kind is not None)
        if without.total() <= self._most * LATEST:
            return None
        counts = ", ".join(f"{number} {kind.value}" for kind, number in without.most_common())
        return (
            f"domain {domain}: {without.total()} of its latest {LATEST} trajectories have no "
            f"verdict ({counts}), more than faults.max_no_verdict = {self._most:g} allows; the "
            f"last: {trajectory.detail}; mend the reward, or raise faults.max_no_verdict"
        )
