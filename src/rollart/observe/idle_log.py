"""What the idle account needs of a run, gathered from its events in one pass.

Invariant: nothing is judged here; intervals are kept as they are told.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rollart.core.events import (
    Committed,
    DeviceBusy,
    DeviceReserved,
    EngineAcknowledged,
    EngineDown,
    EngineUp,
    Phase,
    PhaseBegan,
    PhaseEnded,
    Stamped,
    WorkerBound,
)
from rollart.observe.batch_wait import BatchWaits
from rollart.observe.idle_causes import TRAINING
from rollart.observe.intervals import Interval
from rollart.observe.rollout_states import Handlers, RolloutStates

ENGINE, TRAINER, REWARD = "engine", "trainer", "reward"
_TRAINER_ROLE = "training"
_PART_MARKS = frozenset("/:.#")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of the account. `engine` is the engine that it is, or is a part of.

    `there` is when (s) it was reserved, without an end if it never went; None for always.
    """

    name: str
    hardware: str
    role: str
    slots: float
    engine: str
    there: Interval | None


class IdleLog:
    """Feeds on events.

    Attributes:
        classes: class by engine, as the job's affinity has it.
        hardware: class by worker and by device that was busy.
        phases: when (s) each step of an iteration was under way.
        suspended: from each suspend to its resume's end.
        settling: between what was ended for an update and the suspension.
        down, behind: when an engine was dead, or alive without the committed version.
    """

    def __init__(self) -> None:
        self.states = RolloutStates()
        self.batch_waits = BatchWaits(self.states)
        self.classes: dict[str, str] = {}
        self.hardware: dict[str, str] = {}
        self.phases: defaultdict[Phase, list[Interval]] = defaultdict(list[Interval])
        self.suspended: list[Interval] = []
        self.settling: list[Interval] = []
        self.down: defaultdict[str, list[Interval]] = defaultdict(list[Interval])
        self.behind: defaultdict[str, list[Interval]] = defaultdict(list[Interval])
        self._slots: defaultdict[tuple[str, str], set[int]] = defaultdict(set[int])
        """By worker and hardware: a prefill/decode group may be bound to several classes."""
        self._there: dict[str, Interval] = {}
        self._roles: dict[str, str] = {}
        self._engines: dict[str, int] = {}
        """The version that each engine holds; -1 for none."""
        self._committed = -1
        self._open: dict[Phase, float] = {}
        self._suspended_at: float | None = None
        self._aborted_at: float | None = None
        self._down_at: dict[str, float] = {}
        self._behind_at: dict[str, float] = {}
        own: Handlers = {
            WorkerBound: self._bind,
            EngineUp: self._up,
            EngineDown: self._lose,
            EngineAcknowledged: self._acknowledge,
            Committed: self._commit,
            PhaseBegan: self._begin,
            PhaseEnded: self._end,
            DeviceBusy: self._note,
            DeviceReserved: self._reserve,
        }
        tables = (own, self.states.handlers, self.batch_waits.handlers)
        self._handlers = {
            kind: tuple(table[kind] for table in tables if kind in table)
            for kind in {kind for table in tables for kind in table}
        }

    def take(self, stamped: Stamped) -> None:
        """Take the next event."""
        for handler in self._handlers.get(type(stamped.event), ()):
            handler(stamped.time, stamped.event)

    def close(self, time: float) -> None:
        """What still goes on counts up to `time` (s)."""
        self.states.close(time)
        for phase, began in self._open.items():
            self.phases[phase].append((began, time))
        self._open.clear()
        if self._suspended_at is not None:
            self.suspended.append((self._suspended_at, time))
            self._suspended_at = None
        for since, spans in ((self._down_at, self.down), (self._behind_at, self.behind)):
            for engine, began in since.items():
                spans[engine].append((began, time))
            since.clear()

    def engine_of(self, device: str) -> str | None:
        """The engine that a device is or is part of: `engine-0`, `engine-0/decode`."""
        if device in self._engines:
            return device
        for engine in self._engines:
            if device.startswith(engine) and device[len(engine)] in _PART_MARKS:
                return engine
        return None

    @property
    def gpus(self) -> Mapping[str, int]:
        """Slots by hardware class that workers are bound to."""
        held: Counter[str] = Counter()
        for (_, hardware), slots in self._slots.items():
            held[hardware] += len(slots)
        return {hardware: count for hardware, count in held.items() if count}

    def devices(self, busy: Mapping[str, Mapping[str, object]]) -> list[Device]:
        """Those that say when they are busy or that they are there; and of engines and trainers,
        if any does, all.

        Args:
            busy: kinds of work by device.
        """
        found = {name: self._role(name, busy.get(name, {})) for name in (*busy, *self._there)}
        told = {engine for name in found if (engine := self.engine_of(name)) is not None}
        if ENGINE in found.values():
            found |= {name: ENGINE for name in self._engines if name not in told}
        if TRAINER in found.values():
            found |= {name: TRAINER for name, role in self._roles.items() if role == _TRAINER_ROLE}
        workers = {name: self.engine_of(name) or name for name in found}
        sharing = Counter((workers[name], self.hardware.get(name, "")) for name in found)
        return [
            Device(
                name=name,
                hardware=(hardware := self.hardware.get(name, "")),
                role=role,
                slots=max(1, len(self._slots.get((workers[name], hardware), ())))
                / sharing[workers[name], hardware],
                engine=workers[name],
                there=self._there.get(name),
            )
            for name, role in sorted(found.items())
        ]

    def _role(self, device: str, works: Mapping[str, object]) -> str:
        if self.engine_of(device) is not None:
            return ENGINE
        trains = self._roles.get(device) == _TRAINER_ROLE or "train" in works
        return TRAINER if trains or ("publish" in works and works.keys() <= TRAINING) else REWARD

    def _bind(self, _time: float, event: WorkerBound) -> None:
        self._roles[event.worker] = event.role
        self._slots[event.worker, event.hardware].update(event.slots)
        self.hardware.setdefault(event.worker, event.hardware)

    def _note(self, _time: float, event: DeviceBusy) -> None:
        self.hardware[event.device] = event.hardware

    def _reserve(self, _time: float, event: DeviceReserved) -> None:
        self.hardware[event.device] = event.hardware
        self._there[event.device] = (event.begin, math.inf if event.end is None else event.end)

    # -- engines -----------------------------------------------------------------------------------

    def _up(self, time: float, event: EngineUp) -> None:
        self.classes[event.engine] = event.hardware
        self.hardware.setdefault(event.engine, event.hardware)
        self._engines[event.engine] = -1
        if (began := self._down_at.pop(event.engine, None)) is not None:
            self.down[event.engine].append((began, time))
        if self._committed >= 0:
            self._behind_at.setdefault(event.engine, time)

    def _lose(self, time: float, event: EngineDown) -> None:
        self._catch_up(time, event.engine)
        self._down_at.setdefault(event.engine, time)

    def _acknowledge(self, time: float, event: EngineAcknowledged) -> None:
        self._engines[event.engine] = event.version
        if event.version >= self._committed:
            self._catch_up(time, event.engine)

    def _catch_up(self, time: float, engine: str) -> None:
        if (began := self._behind_at.pop(engine, None)) is not None:
            self.behind[engine].append((began, time))

    def _commit(self, time: float, event: Committed) -> None:
        self._committed = event.version
        for engine, version in self._engines.items():
            if version < event.version and engine not in self._down_at:
                self._behind_at.setdefault(engine, time)

    # -- steps -------------------------------------------------------------------------------------

    def _begin(self, time: float, event: PhaseBegan) -> None:
        self._open[event.phase] = time
        if event.phase is Phase.SUSPEND:
            self._suspended_at = time
            if self._aborted_at is not None:
                self.settling.append((self._aborted_at, time))
                self._aborted_at = None

    def _end(self, time: float, event: PhaseEnded) -> None:
        if (began := self._open.pop(event.phase, None)) is not None:
            self.phases[event.phase].append((began, time))
        if event.phase is Phase.ABORT_STALE:
            self._aborted_at = time
        elif event.phase is Phase.RESUME and self._suspended_at is not None:
            self.suspended.append((self._suspended_at, time))
            self._suspended_at = None
