"""Where a run stands, as its events say: what the live view shows.

Invariant: a fold over events that holds no more than what is in flight; it draws nothing.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from rollart.core.events import (
    Admitted,
    BatchTaken,
    CreditsReturned,
    DeviceBusy,
    Disposed,
    DomainClosed,
    EngineAcknowledged,
    EngineDown,
    EngineUp,
    EnvironmentReset,
    Evaluated,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunStarted,
    Stamped,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    is_computing,
)
from rollart.core.identity import Purpose
from rollart.observe.intervals import Interval, append_joined, busy_share
from rollart.observe.steps import DomainRow, StepRow, StepRows

STEPS_FOR_PACE = 10
STARVING_STEPS = 5
"""A domain of which so many train steps in a row had nothing starves."""

PAUSING = frozenset({Phase.SUSPEND, Phase.UPDATE})
"""Phases in which engines take no step."""

WAITS = {
    Phase.GET_BATCH: "waits for a full batch",
    Phase.ABORT_STALE: "waits for aborts of stale trajectories",
    Phase.SUSPEND: "waits for engines to pause",
    Phase.UPDATE: "waits for engines to load weights",
    Phase.RESUME: "resumes engines",
    Phase.RECOMPUTE: "waits for engines to rebuild KV",
    Phase.TRAIN_STEP: "trains",
    Phase.PUBLISH: "publishes weights",
}


@dataclass(slots=True)
class EngineView:
    version: int | None = None
    down: str = ""


@dataclass(slots=True)
class DomainView:
    in_flight: int = 0
    row: DomainRow | None = None
    steps_without: int = 0
    closed: str = ""

    @property
    def starving(self) -> bool:
        return not self.closed and self.steps_without >= STARVING_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnShares:
    """Where a turn's seconds went since the last step: shares of their sum (0..1)."""

    queued: float
    prefill: float
    decode: float
    environment: float


class Progress:
    """Take every event with `take`; the rest are readings."""

    def __init__(self) -> None:
        self.run = ""
        self.steps_planned = 0
        self.time_limit_s: float | None = None
        self.batch_groups = 0
        self.steps_done = 0
        self.row: StepRow | None = None
        self.open_phases: dict[Phase, float] = {}
        self.now = 0.0
        self.engines: dict[str, EngineView] = {}
        self.domains: dict[str, DomainView] = {}
        self.outstanding = 0
        self.capacity = 0
        self.batch_wait_s = 0.0
        self._waited = 0.0
        self._began: float | None = None
        self._rows = StepRows()
        self._pace: deque[float] = deque(maxlen=STEPS_FOR_PACE)
        self._groups_of: dict[str, int] = {}
        self._resetting: set[str] = set()
        self._evaluating: set[str] = set()
        self._running: dict[str, str] = {}
        """The domain of each training trajectory in flight."""
        self._ready: set[int] = set()
        self._in_batch = 0
        self._busy: dict[str, list[Interval]] = {}
        self._turn_seconds = [0.0, 0.0, 0.0, 0.0]

    @property
    def phase(self) -> Phase | None:
        """The phase that began last of those that have not ended (recompute runs beside others)."""
        return next(reversed(self.open_phases), None)

    @property
    def in_flight(self) -> int:
        """Training trajectories that roll out now."""
        return len(self._running)

    @property
    def evaluating(self) -> int:
        return len(self._evaluating)

    @property
    def resetting(self) -> int:
        """Trajectories whose environment has not come up yet."""
        return len(self._resetting)

    @property
    def buffered_groups(self) -> int:
        """Groups that are complete and not in a batch."""
        return max(0, len(self._ready) - self._in_batch)

    @property
    def left_s(self) -> float | None:
        """Seconds that the remaining steps take at the pace of the last ones, or the time limit."""
        left: list[float] = []
        if self._pace:
            pace = sum(self._pace) / len(self._pace)
            left.append((self.steps_planned - self.steps_done) * pace)
        if self.time_limit_s is not None and self._began is not None:
            left.append(max(0.0, self._began + self.time_limit_s - self.now))
        return min(left, default=None)

    def busy_of(self, engine: str) -> float:
        """Share of the time since the last step ended that the engine was busy."""
        since = self.row.ended_at if self.row else 0.0
        return busy_share(self._busy.get(engine, []), (since, self.now))

    @property
    def turn_shares(self) -> TurnShares | None:
        whole = sum(self._turn_seconds)
        if whole <= 0:
            return None
        queued, prefill, decode, environment = (part / whole for part in self._turn_seconds)
        return TurnShares(queued=queued, prefill=prefill, decode=decode, environment=environment)

    def take(self, stamped: Stamped) -> StepRow | None:
        """Take the next event; the row of the train step that it ends, if it does."""
        self.now = stamped.time
        self._take_trajectory(stamped)
        self._take_trainer(stamped)
        self._take_engines(stamped)
        row = self._rows.take(stamped)
        if row is not None:
            self._end_step(row)
        return row

    def _end_step(self, row: StepRow) -> None:
        self.row = row
        self.steps_done += 1
        self._in_batch = 0
        self._pace.append(row.seconds)
        trained = {domain.domain: domain for domain in row.domains}
        for tag, view in self.domains.items():
            if (domain := trained.get(tag)) is not None and domain.ended:
                view.row = domain
            view.steps_without = 0 if domain and domain.trained else view.steps_without + 1
        self.batch_wait_s, self._waited = self._waited, 0.0
        self._busy.clear()
        self._turn_seconds = [0.0, 0.0, 0.0, 0.0]

    def _take_trajectory(self, stamped: Stamped) -> None:
        match stamped.event:
            case TrajectoryStarted() as event:
                self._resetting.add(event.trajectory)
                if event.purpose == Purpose.TRAIN.value:
                    self._groups_of[event.trajectory] = event.group
                    self._running[event.trajectory] = event.domain
                    self._domain(event.domain).in_flight += 1
                else:
                    self._evaluating.add(event.trajectory)
            case EnvironmentReset() as event:
                self._resetting.discard(event.trajectory)
            case TurnEnded() as event:
                cost = event.cost
                for place, seconds in enumerate(
                    (
                        cost.queued_s + event.proxy_queued_s,
                        cost.prefill_s,
                        cost.decode_s,
                        event.env_s,
                    )
                ):
                    self._turn_seconds[place] += seconds
            case TrajectoryEnded() as event:
                self._forget(event.trajectory)
            case Disposed() as event:
                self._forget(event.trajectory)
                self._ready.discard(self._groups_of.pop(event.trajectory, -1))
            case GroupReady() as event:
                self._ready.add(event.group)
            case _:
                pass

    def _forget(self, trajectory: str) -> None:
        self._resetting.discard(trajectory)
        if (domain := self._running.pop(trajectory, None)) is not None:
            self._domain(domain).in_flight -= 1
        self._evaluating.discard(trajectory)

    def _domain(self, tag: str) -> DomainView:
        return self.domains.setdefault(tag, DomainView())

    def _take_trainer(self, stamped: Stamped) -> None:
        match stamped.event:
            case RunStarted() as event:
                self.run = event.run
                self.steps_planned = event.steps
                self.batch_groups = event.batch_groups
                self.time_limit_s = time_limit(event.config)
                self.domains = {tag: DomainView() for tag in event.domains}
            case PhaseBegan() as event:
                if event.phase is Phase.GET_BATCH and self._began is None:
                    self._began = stamped.time
                self.open_phases[event.phase] = stamped.time
            case PhaseEnded() as event:
                if event.phase is Phase.GET_BATCH:
                    self._waited += event.seconds
                self.open_phases.pop(event.phase, None)
            case BatchTaken() as event:
                self._in_batch = event.groups
            case DomainClosed() as event:
                self._domain(event.domain).closed = event.reason
            case Evaluated():
                self._evaluating.clear()
            case Admitted() | CreditsReturned() as event:
                self.outstanding, self.capacity = event.outstanding, event.capacity
            case _:
                pass

    def _take_engines(self, stamped: Stamped) -> None:
        match stamped.event:
            case EngineUp() as event:
                self.engines[event.engine] = EngineView()
            case EngineDown() as event:
                self.engines.setdefault(event.engine, EngineView()).down = event.reason
            case EngineAcknowledged() as event:
                self.engines.setdefault(event.engine, EngineView()).version = event.version
            case DeviceBusy() as event if is_computing(event.work):
                append_joined(self._busy.setdefault(event.device, []), (event.begin, event.end))
            case _:
                pass


class _RunSection(msgspec.Struct):
    time_limit_s: float | None = None


class _Config(msgspec.Struct):
    run: _RunSection = msgspec.field(default_factory=_RunSection)


def time_limit(config: str) -> float | None:
    """Seconds that training may take, from a run's configuration as JSON; None if none is set."""
    try:
        return msgspec.json.decode(config, type=_Config).run.time_limit_s
    except msgspec.DecodeError:
        return None
