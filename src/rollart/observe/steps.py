"""One row a train step, put together from the events that speak of it.

Invariant: a row appears exactly when its train step ended; what its batch did not say is None.
"""

from dataclasses import dataclass

from rollart.core.events import BatchTaken, Phase, PhaseBegan, Stamped, StepTrained
from rollart.core.types import TrainStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A train step: times in seconds, lags in versions, `batch_tokens` prompt and response."""

    step: int
    ended_at: float
    seconds: float
    reward: float | None
    success: float | None
    batch_tokens: int
    groups: int
    trajectories: int
    start_lag_max: int | None
    token_lag_max: int
    token_lag_mean: float
    lag_tokens: int
    stats: TrainStats

    @property
    def tokens_per_s(self) -> float:
        """Prompt and response tokens of the batch over the step's time (arXiv 2512.22560)."""
        return self.batch_tokens / self.seconds if self.seconds > 0 else 0.0


class StepRows:
    """Feeds on events.

    A step's `seconds` run from the end of the step before, the first one's from its get_batch.
    """

    def __init__(self) -> None:
        self._batches: dict[int, BatchTaken] = {}
        self._previous_end: float | None = None

    def take(self, stamped: Stamped) -> StepRow | None:
        """The row that this event completes, if it does."""
        event = stamped.event
        if isinstance(event, PhaseBegan):
            if event.phase is Phase.GET_BATCH and self._previous_end is None:
                self._previous_end = stamped.time
        elif isinstance(event, BatchTaken):
            self._batches[event.step] = event
        elif isinstance(event, StepTrained):
            return self._row(event, stamped.time)
        return None

    def _row(self, event: StepTrained, time: float) -> StepRow:
        batch = self._batches.pop(event.step, None)
        begin = time if self._previous_end is None else self._previous_end
        self._previous_end = time
        return StepRow(
            step=event.step,
            ended_at=time,
            seconds=time - begin,
            reward=batch.score_mean if batch else None,
            success=batch.success_mean if batch else None,
            batch_tokens=batch.tokens if batch else 0,
            groups=batch.groups if batch else 0,
            trajectories=batch.trajectories if batch else 0,
            start_lag_max=batch.start_lag_max if batch else None,
            token_lag_max=event.token_lag_max,
            token_lag_mean=event.token_lag_mean,
            lag_tokens=event.tokens,
            stats=event.stats,
        )
