"""What is read off one simulated run, from its events alone.

Invariant: all figures but the counts are of the same stretch of time, from the batch that ends the
warm-up to the last one taken. Seconds and tokens.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from rollart.core.events import (
    BatchTaken,
    DeviceBusy,
    DeviceReserved,
    Disposed,
    Event,
    Phase,
    PhaseBegan,
    PhaseEnded,
    StepTrained,
    TrajectoryStarted,
    Work,
    WorkerBound,
    is_computing,
)

TRAINER_POOL = "trainer"
REWARD_POOL = "reward"
GENERATION = "generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        step_s: from one batch to the next, in the mean.
        rollout_s: that `get_batch` waited, in the mean.
        tokens: of a batch, prompts and answers, in the mean.
        busy: share of its time that each pool worked: generation by GPU class, the trainer, and
            rewards of the GPUs kept for them or of the time for which instances were there.
        update_s: that rollout stood still for new weights, a step.
        push_s: that a version took to the store.
        lag: versions between sampling and training, over the trained tokens, in the mean.
        started, stale, surplus, failed: trajectories of the whole run.
    """

    step_s: float
    rollout_s: float
    tokens: float
    busy: tuple[tuple[str, float], ...]
    update_s: float
    push_s: float
    lag: float
    started: int
    stale: int
    surplus: int
    failed: int

    @property
    def throughput(self) -> float:
        """Tokens of a batch over the step's seconds."""
        return self.tokens / self.step_s

    @property
    def training(self) -> float:
        """Share of a step that the trainer spends on training and on pushing its weights."""
        return self.use(TRAINER_POOL) + self.push_s / self.step_s

    def use(self, pool: str) -> float:
        """Share of its time that a pool worked; 0 for one that there was not."""
        return dict(self.busy).get(pool, 0.0)


class Watch:
    """The event sink of a run that is measured."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._batches: list[tuple[float, BatchTaken]] = []
        self._phases: list[PhaseEnded] = []
        self._trained: list[StepTrained] = []
        self._busy: list[DeviceBusy] = []
        self._workers: Counter[str] = Counter()
        self._reserved: dict[str, DeviceReserved] = {}
        self._gone: Counter[str] = Counter()
        self._started = 0

    def emit(self, event: Event) -> None:
        match event:
            case DeviceBusy():
                self._busy.append(event)
            case DeviceReserved():
                self._reserved[event.device] = event
            case TrajectoryStarted():
                self._started += 1
            case Disposed():
                self._gone[event.disposition.value] += 1
            case PhaseBegan(phase=Phase.GET_BATCH) if self._began is None:
                self._began = asyncio.get_running_loop().time()
            case PhaseEnded():
                self._phases.append(event)
            case BatchTaken():
                self._batches.append((asyncio.get_running_loop().time(), event))
            case StepTrained():
                self._trained.append(event)
            case WorkerBound() if event.role == GENERATION:
                self._workers[event.hardware] += 1
            case _:
                pass

    def measured(self, *, skip: int) -> Measured:
        """Figures of the run, but for the first `skip` steps.

        Raises:
            ValueError: there are no more steps than that.
        """
        if self._began is None or len(self._batches) <= skip:
            raise ValueError(
                f"the run took {len(self._batches)} batches and the first {skip} are not counted, "
                "so nothing is left to measure; give it more steps or skip fewer"
            )
        ends = [self._began, *(at for at, _ in self._batches)]
        begin, end = ends[skip], ends[-1]
        counted = self._batches[skip:]
        return Measured(
            step_s=(end - begin) / len(counted),
            rollout_s=self._mean_phase(Phase.GET_BATCH, skip),
            tokens=fmean(batch.tokens for _, batch in counted),
            busy=tuple(sorted(self._shares(begin, end).items())),
            update_s=self._mean_phase(Phase.UPDATE, max(skip, 1)),
            push_s=self._mean_phase(Phase.PUBLISH, 0),
            lag=_mean(step.token_lag_mean for step in self._trained if step.step >= skip),
            started=self._started,
            stale=self._gone["stale"],
            surplus=self._gone["surplus"],
            failed=self._gone["failed"],
        )

    def _mean_phase(self, phase: Phase, skip: int) -> float:
        return _mean(
            each.seconds for each in self._phases if each.phase is phase and each.step >= skip
        )

    def _shares(self, begin: float, end: float) -> Mapping[str, float]:
        """How much of the stretch each pool worked."""
        worked: defaultdict[str, float] = defaultdict(float)
        devices: defaultdict[str, set[str]] = defaultdict(set)
        for busy in self._busy:
            seconds = min(busy.end, end) - max(busy.begin, begin)
            pool = _pool(busy)
            if seconds > 0 and pool is not None:
                worked[pool] += seconds
                devices[pool].add(busy.device)
        rewards = worked.pop(REWARD_POOL, 0.0)
        shares = {
            pool: seconds / (max(len(devices[pool]), self._workers[pool]) * (end - begin))
            for pool, seconds in worked.items()
        }
        if reserved := self._kept_s(begin, end):
            shares[REWARD_POOL] = rewards / reserved
        return shares

    def _kept_s(self, begin: float, end: float) -> float:
        """GPU-seconds of the stretch that were there for rewards."""
        return sum(
            max(0.0, (end if one.end is None else min(one.end, end)) - max(one.begin, begin))
            for one in self._reserved.values()
        )


def _pool(busy: DeviceBusy) -> str | None:
    if busy.work == Work.REWARD:
        return REWARD_POOL
    if busy.work == Work.TRAIN:
        return TRAINER_POOL
    return busy.hardware if is_computing(busy.work) else None


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
