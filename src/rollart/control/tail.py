"""Watches whether trajectories outlast the staleness bound.

Invariant: a pure judgement over what it was told; memory is bounded by the last `KEPT` of each.
"""

import statistics
from collections import deque
from collections.abc import Sequence

KEPT = 512
ENOUGH_TRAJECTORIES = 32
ENOUGH_STEPS = 3


class TailWatch:
    """Durations of trajectories and of steps, in seconds; warns once until the tail is short again.

    A trajectory that takes longer than alpha + 1 steps is stale before it ends, so slow tasks
    would vanish from what is trained.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._warned = False

    def after_step(self, seconds: float, durations: Sequence[float], *, alpha: int) -> str | None:
        """A warning if the 90th percentile of `durations` exceeds alpha + 1 median steps."""
        self._steps.append(seconds)
        if len(durations) < ENOUGH_TRAJECTORIES or len(self._steps) < ENOUGH_STEPS:
            return None
        p90 = statistics.quantiles(durations, n=10)[-1]
        step = statistics.median(self._steps)
        long = p90 > (alpha + 1) * step
        tell, self._warned = long and not self._warned, long
        if not tell:
            return None
        return (
            f"one trajectory in ten takes over {p90:.1f} s, longer than alpha + 1 = {alpha + 1} "
            f"steps of {step:.1f} s: slow tasks will be aborted as stale; raise protocol.alpha or "
            "rollout.batch_groups, or shorten the episodes"
        )
