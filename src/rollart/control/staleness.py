"""The bound alpha, as pure functions.

Invariant: with n the committed version, a group may be trained or continued only if its oldest
start is at least n - alpha. The token lag is measured against the version that trains on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rollart.core.types import Group, Trajectory


def is_stale(start_version: int | None, *, committed: int, alpha: int) -> bool:
    """Whether a start lies outside the bound; what has not started cannot be stale."""
    return start_version is not None and start_version < committed - alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLag:
    """Lag over trained tokens, in versions."""

    tokens: int
    maximum: int
    total: int

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else 0.0


def token_lag(trajectories: Iterable[Trajectory], *, training_version: int) -> TokenLag:
    """Lag of every sampled token to `training_version`, the version that the step trains."""
    tokens = total = maximum = 0
    for trajectory in trajectories:
        for version, count in trajectory.version_runs():
            lag = training_version - version
            tokens += count
            total += lag * count
            maximum = max(maximum, lag)
    return TokenLag(tokens=tokens, maximum=maximum, total=total)


def start_lag(groups: Iterable[Group], *, committed: int) -> int:
    """Largest lag of a group's start to the committed version; 0 for no groups."""
    return max((committed - group.start_version for group in groups), default=0)
