"""One row a train step, put together from the events that speak of it.

Invariant: a row appears exactly when its train step ended; what its batch did not say is None.
"""

from dataclasses import dataclass, field

from rollart.core.events import (
    BatchTaken,
    Disposed,
    Phase,
    PhaseBegan,
    Stamped,
    StepTrained,
    TrajectoryEnded,
)
from rollart.core.identity import Purpose
from rollart.core.types import Disposition, Status, TrainStats
from rollart.observe.average import Average


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRow:
    """One domain's training trajectories since the step before: means over those that ended.

    `ended` counts them, `failed` those of them that failed, `trained` those in the step's batch.
    """

    domain: str
    reward: float | None
    success: float | None
    turns: float | None
    sampled_tokens: float | None
    elapsed_s: float | None
    ended: int
    failed: int
    trained: int


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
    domains: tuple[DomainRow, ...]

    @property
    def tokens_per_s(self) -> float:
        """Prompt and response tokens of the batch over the step's time (arXiv 2512.22560)."""
        return self.batch_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _DomainSums:
    reward: Average = field(default_factory=Average)
    success: Average = field(default_factory=Average)
    turns: Average = field(default_factory=Average)
    sampled_tokens: Average = field(default_factory=Average)
    elapsed_s: Average = field(default_factory=Average)
    ended: int = 0
    failed: int = 0
    trained: int = 0

    def note(self, event: TrajectoryEnded) -> None:
        self.ended += 1
        self.reward.add(event.score)
        self.success.add(event.success)
        if event.status == Status.FAILED.value:
            self.failed += 1
            return
        self.turns.add(event.turns)
        self.sampled_tokens.add(event.sampled_tokens)
        self.elapsed_s.add(event.elapsed_s)

    def row(self, domain: str) -> DomainRow:
        return DomainRow(
            domain=domain,
            reward=self.reward.mean,
            success=self.success.mean,
            turns=self.turns.mean,
            sampled_tokens=self.sampled_tokens.mean,
            elapsed_s=self.elapsed_s.mean,
            ended=self.ended,
            failed=self.failed,
            trained=self.trained,
        )


class StepRows:
    """Feeds on events.

    A step's `seconds` run from the end of the step before, the first one's from its get_batch.
    """

    def __init__(self) -> None:
        self._batches: dict[int, BatchTaken] = {}
        self._previous_end: float | None = None
        self._reward = Average()
        self._success = Average()
        self._domains: dict[str, _DomainSums] = {}

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
        elif isinstance(event, Disposed):
            if event.disposition is Disposition.TRAINED:
                self._of(event.domain).trained += 1
        elif isinstance(event, StepTrained):
            return self._row(event, stamped.time)
        return None

    def _note(self, event: TrajectoryEnded) -> None:
        if event.purpose != Purpose.TRAIN.value:
            return
        self._reward.add(event.score)
        self._success.add(event.success)
        self._of(event.domain).note(event)

    def _of(self, domain: str) -> "_DomainSums":
        if (sums := self._domains.get(domain)) is None:
            sums = self._domains[domain] = _DomainSums()
        return sums

    def _row(self, event: StepTrained, time: float) -> StepRow:
        batch = self._batches.pop(event.step, None)
        begin = time if self._previous_end is None else self._previous_end
        self._previous_end = time
        reward, self._reward = self._reward.mean, Average()
        success, self._success = self._success.mean, Average()
        # A domain that was there once has a row in every later step, for its silence is news.
        domains = tuple(sums.row(domain) for domain, sums in self._domains.items())
        self._domains = {domain: _DomainSums() for domain in self._domains}
        return StepRow(
            step=event.step,
            ended_at=time,
            seconds=time - begin,
            reward=reward,
            success=success,
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
            domains=domains,
        )
