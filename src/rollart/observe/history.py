"""A run as its events tell it, gathered for summary and plots.

Invariant: built from events alone, in one pass; device intervals that follow on each other are
kept as one, so a long run stays small.
"""

import math
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from rollart.core.events import (
    Baseline,
    DeviceBusy,
    Disposed,
    EngineDown,
    Evaluated,
    GapMeasured,
    LateResult,
    LedgerClosed,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    RunStarted,
    Stamped,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    Warned,
    Work,
)
from rollart.core.identity import Purpose
from rollart.core.types import Status
from rollart.observe.domains import DomainStories
from rollart.observe.eventlog import SequenceCheck
from rollart.observe.functions import FunctionBooks
from rollart.observe.idle_causes import GENERATION
from rollart.observe.idle_log import IdleLog
from rollart.observe.intervals import Interval, append_joined, intersection
from rollart.observe.steps import StepRow, StepRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    step: int
    phase: Phase
    begin: float
    end: float


@dataclass(slots=True)
class History:
    """Everything a report needs. Times are loop time in seconds."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    first_time: float = math.inf
    last_time: float = -math.inf
    incarnations: int = 0
    steps: list[StepRow] = field(default_factory=list[StepRow])
    phases: list[PhaseSpan] = field(default_factory=list[PhaseSpan])
    training_began: float | None = None
    hardware: dict[str, str] = field(default_factory=dict[str, str])
    busy: dict[tuple[str, str], list[Interval]] = field(
        default_factory=dict[tuple[str, str], list[Interval]]
    )
    evaluations: list[Evaluated] = field(default_factory=list[Evaluated])
    baselines: list[Baseline] = field(default_factory=list[Baseline])
    gaps: list[GapMeasured] = field(default_factory=list[GapMeasured])
    ledger: LedgerClosed | None = None
    train_started: int = 0
    disposed: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    domains: DomainStories = field(default_factory=DomainStories)
    idle: IdleLog = field(default_factory=IdleLog)
    functions: FunctionBooks = field(default_factory=FunctionBooks)
    interruptions: int = 0
    engines_lost: int = 0
    requests_moved: int = 0
    late_results: int = 0
    warnings: list[str] = field(default_factory=list[str])
    sequence: SequenceCheck = field(default_factory=SequenceCheck)
    _rows: StepRows = field(default_factory=StepRows)

    @property
    def training_window(self) -> Interval:
        """From the first get_batch to the end of the last train step; empty where none ended.

        What comes before and after (start, evaluations) is no training and has no part in shares.
        """
        if not self.steps or self.training_began is None:
            return (0.0, 0.0)
        return (self.training_began, self.steps[-1].ended_at)

    @property
    def overlap(self) -> list[Interval]:
        """When some device trained while some device generated."""
        return intersection(self.busy_on({Work.TRAIN}), self.busy_on(GENERATION))

    def busy_on(self, works: Set[str]) -> list[Interval]:
        """Intervals in which any device did any of `works` (not merged)."""
        return [
            interval
            for (_, work), intervals in self.busy.items()
            if work in works
            for interval in intervals
        ]

    def take(self, stamped: Stamped) -> None:
        """Take the next event."""
        self.sequence.take(stamped.seq)
        self.first_time = min(self.first_time, stamped.time)
        self.last_time = max(self.last_time, stamped.time)
        self.incarnations = max(self.incarnations, stamped.incarnation + 1)
        if (row := self._rows.take(stamped)) is not None:
            self.steps.append(row)
        self.domains.take(stamped.event)
        self.idle.take(stamped)
        if self.functions.take(stamped.event):
            return
        self._take_flow(stamped)
        self._take_result(stamped)

    def _take_flow(self, stamped: Stamped) -> None:
        match stamped.event:
            case PhaseBegan(phase=Phase.GET_BATCH) if self.training_began is None:
                self.training_began = stamped.time
            case PhaseEnded() as event:
                begin, end = stamped.time - event.seconds, stamped.time
                self.phases.append(
                    PhaseSpan(step=event.step, phase=event.phase, begin=begin, end=end)
                )
            case DeviceBusy() as event:
                self.hardware[event.device] = event.hardware
                intervals = self.busy.setdefault((event.device, event.work), [])
                append_joined(intervals, (event.begin, event.end))
            case TrajectoryStarted(purpose=Purpose.TRAIN.value):
                self.train_started += 1
            case TurnEnded() as event:
                self.interruptions += event.interruptions
            case TrajectoryEnded(purpose=Purpose.TRAIN.value, status=Status.FAILED.value) as event:
                self.failures[event.failure or "unknown"] += 1
            case Disposed() as event:
                self.disposed[event.disposition.value] += 1
            case _:
                pass

    def _take_result(self, stamped: Stamped) -> None:
        match stamped.event:
            case RunStarted() as event:
                self.started = event
            case RunEnded() as event:
                self.ended = event
            case Evaluated() as event:
                self.evaluations.append(event)
            case Baseline() as event:
                self.baselines.append(event)
            case GapMeasured() as event:
                self.gaps.append(event)
            case LedgerClosed() as event:
                self.ledger = event
            case EngineDown() as event:
                self.engines_lost += 1
                self.requests_moved += event.moved_requests
            case LateResult():
                self.late_results += 1
            case Warned() as event:
                self.warnings.append(event.message)
            case _:
                pass


def gather(events: Iterable[Stamped]) -> History:
    """The history of a run."""
    history = History()
    for stamped in events:
        history.take(stamped)
    return history
