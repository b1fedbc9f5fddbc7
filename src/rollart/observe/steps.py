"""One row a train step, put together from the events that speak of it.

Invariant: a row appears exactly when its train step ended; what its batch did not say is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart.core.events import BatchTaken, Phase, PhaseBegan, Stamped, StepTrained, TrajectoryEnded
from rollart.core.identity import Purpose
from rollart.core.types import TrainStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A train step: times in seconds, lags in versions, `batch_tokens` prompt and response.

    `reward` and `success` are means over all training trajectories that ended since the step
    before, those too that were then filtered or dropped: what the policy does. `batch_reward` and
    `batch_success` are those of the trained batch, which filtering draws towards the middle.
    """

    step: int
    ended_at: float
    seconds: float
    reward: float | None
    success: float | None
    batch_reward: float | None
    batch_success: float | None
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
        self._rewards: list[float] = []
        self._successes: list[float] = []

    def take(self, stamped: Stamped) -> StepRow | None:
        """The row that this event completes, if it does."""
        event = stamped.event
        if isinstance(event, PhaseBegan):
            if event.phase is Phase.GET_BATCH and self._previous_end is None:
                self._previous_end = stamped.time
        elif isinstance(event, BatchTaken):
            self._batches[event.step] = event
        elif isinstance(event, TrajectoryEnded):
            self._note(event)
        elif isinstance(event, StepTrained):
            return self._row(event, stamped.time)
        return None

    def _note(self, event: TrajectoryEnded) -> None:
        if event.purpose != Purpose.TRAIN.value:
            return
        if event.score is not None:
            self._rewards.append(event.score)
        if event.success is not None:
            self._successes.append(event.success)

    def _row(self, event: StepTrained, time: float) -> StepRow:
        batch = self._batches.pop(event.step, None)
        begin = time if self._previous_end is None else self._previous_end
        self._previous_end = time
        rewards, self._rewards = self._rewards, []
        successes, self._successes = self._successes, []
        return StepRow(
            step=event.step,
            ended_at=time,
            seconds=time - begin,
            reward=mean(rewards),
            success=mean(successes),
            batch_reward=batch.score_mean if batch else None,
            batch_success=batch.success_mean if batch else None,
            batch_tokens=batch.tokens if batch else 0,
            groups=batch.groups if batch else 0,
            trajectories=batch.trajectories if batch else 0,
            start_lag_max=batch.start_lag_max if batch else None,
            token_lag_max=event.token_lag_max,
            token_lag_mean=event.token_lag_mean,
            lag_tokens=event.tokens,
            stats=event.stats,
        )


def mean(values: Sequence[float]) -> float | None:
    """None for no values."""
    return sum(values) / len(values) if values else None
