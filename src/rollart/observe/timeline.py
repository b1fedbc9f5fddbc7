"""A run as a timeline in the Trace Event format that ui.perfetto.dev and chrome://tracing open.

One lane a device, the steps of an iteration on one lane (recompute, which runs beside others, on a
second), counters, and a sample of trajectories.

Invariant: written as the events come, so that memory does not grow with the log; on one lane no two
slices overlap. Times are whole microseconds from the first event.
"""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from rollart.core.errors import RollartError
from rollart.core.events import (
    Admitted,
    BatchTaken,
    Committed,
    CreditsReturned,
    DeviceBusy,
    Disposed,
    DomainClosed,
    EngineDown,
    EngineUp,
    EnvironmentReset,
    Evaluated,
    Event,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RequestDropped,
    RunEnded,
    RunStarted,
    Stamped,
    StepTrained,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    Warned,
    WorkerBound,
)
from rollart.core.identity import Purpose

TRAJECTORY_LANES = 16
"""So many trajectories are shown at a time; who starts while a lane is free takes it."""

COUNTER_STEP = 0.02
"""A counter is written when it has moved by this share of its largest value."""

DEVICES, CONTROL, TRAJECTORIES = 1, 2, 3
_PROCESSES = {DEVICES: "devices", CONTROL: "control", TRAJECTORIES: "trajectories (a sample)"}

READ = (
    RunStarted, WorkerBound, DeviceBusy, PhaseBegan, PhaseEnded, TrajectoryStarted,
    EnvironmentReset, TurnEnded, RequestDropped, TrajectoryEnded, Disposed, GroupReady, BatchTaken,
    Committed, Admitted, CreditsReturned, StepTrained, EngineUp, EngineDown, DomainClosed, Warned,
    Evaluated, RunEnded,
)  # fmt: skip
"""The types of events that a timeline shows."""

Arguments = dict[str, str | int | float]


class TimelineError(RollartError):
    """A timeline that cannot be written: the message says where and why."""


class TraceEvent(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One record of the format; `ts` and `dur` in microseconds."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: int
    dur: int | None = None
    s: str = ""
    args: Arguments = {}


def write_timeline(events: Iterable[Stamped], path: Path) -> int:
    """Write the timeline to `path`, compressed if its name ends in .gz; returns how many records.

    Raises:
        TimelineError: it cannot be written; what stood at `path` is left as it was.
        LogError: the events cannot be read.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    encoder = msgspec.json.Encoder()
    count = 0
    try:
        with _opened(part, compressed=path.suffix == ".gz") as file:
            file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
            for record in trace(events):
                file.write(b",\n" if count else b"")
                file.write(encoder.encode(record))
                count += 1
            file.write(b"\n]}\n")
        part.replace(path)
    except OSError as error:
        raise TimelineError(f"{path}: cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


@contextmanager
def _opened(path: Path, *, compressed: bool) -> "Iterator[IO[bytes] | gzip.GzipFile]":
    with path.open("wb") as file:
        if not compressed:
            yield file
            return
        with gzip.GzipFile(
            filename="", fileobj=file, mode="wb", compresslevel=5, mtime=0
        ) as packed:
            yield packed


def trace(events: Iterable[Stamped]) -> Iterator[TraceEvent]:
    """The records of a timeline, in the order in which the events tell of them."""
    timeline = _Timeline()
    for stamped in events:
        yield from timeline.take(stamped)
    yield from timeline.close()


@dataclass(slots=True)
class _Lane:
    tid: int
    free_at: int = 0


@dataclass(slots=True)
class _Counter:
    value: int = 0
    shown: int | None = None
    most: int = 1

    def move(self, value: int) -> bool:
        """Take a new value; whether it is far enough from what was shown."""
        self.value, self.most = value, max(self.most, value)
        if self.shown is not None and abs(value - self.shown) < max(1, COUNTER_STEP * self.most):
            return False
        self.shown = value
        return True


@dataclass(slots=True)
class _Shown:
    """A trajectory that is shown: on which lane, and from when (s) the next slice may begin."""

    lane: str
    since: float


class _Lanes:
    """Places for slices: a name's lane, and further ones for what would overlap there."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, str], list[_Lane]] = {}
        self._used = 0
        self._origin: float | None = None

    def at(self, time: float) -> int:
        """Loop time (s) as microseconds since the first event."""
        if self._origin is None:
            self._origin = time
        return int((time - self._origin) * 1e6)

    def lane(self, process: int, name: str) -> Iterator[TraceEvent]:
        """Make sure that the lane is there, also if nothing ever happens on it."""
        if (process, name) not in self._lanes:
            yield from self._add(process, name)

    def slice(  # noqa: PLR0917
        self, process: int, name: str, what: str, begin: float, end: float, args: Arguments
    ) -> Iterator[TraceEvent]:
        start, stop = max(0, self.at(begin)), max(0, self.at(end))
        lanes = self._lanes.setdefault((process, name), [])
        lane = next((lane for lane in lanes if lane.free_at <= start), None)
        if lane is None:
            yield from self._add(process, name)
            lane = lanes[-1]
        lane.free_at = max(stop, start)
        yield TraceEvent(
            ph="X", name=what, pid=process, tid=lane.tid, ts=start, dur=stop - start, args=args
        )

    def _add(self, process: int, name: str) -> Iterator[TraceEvent]:
        if not self._used:
            for pid, title in _PROCESSES.items():
                yield _metadata("process_name", pid, 0, name=title)
                yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        self._used += 1
        lanes = self._lanes.setdefault((process, name), [])
        title = f"{name} ({len(lanes) + 1})" if lanes else name
        lanes.append(_Lane(self._used))
        yield _metadata("thread_name", process, self._used, name=title)
        yield _metadata("thread_sort_index", process, self._used, sort_index=self._used)


def _metadata(kind: str, pid: int, tid: int, **args: str | int | float) -> TraceEvent:
    return TraceEvent(ph="M", name=kind, pid=pid, tid=tid, ts=0, args=args)


class _Timeline:
    """Turns events into records."""

    def __init__(self) -> None:
        self._lanes = _Lanes()
        self._began: dict[Phase, tuple[int, float]] = {}
        self._counters: dict[str, _Counter] = {}
        self._running: set[str] = set()
        self._shown: dict[str, _Shown] = {}
        self._free = [f"trajectory {place + 1}" for place in reversed(range(TRAJECTORY_LANES))]
        self._ready: dict[int, int] = {}
        self._in_hand = 0
        self._run = ""
        self._now = 0.0

    def take(self, stamped: Stamped) -> Iterator[TraceEvent]:
        time, event = stamped.time, stamped.event
        self._now = time
        self._lanes.at(time)
        if isinstance(event, TurnEnded | RequestDropped | EnvironmentReset):
            yield from self._turns(time, event)
        elif isinstance(event, DeviceBusy):
            args: Arguments = {"hardware": event.hardware}
            yield from self._lanes.slice(
                DEVICES, event.device, event.work, event.begin, event.end, args
            )
        elif isinstance(event, PhaseBegan | PhaseEnded):
            yield from self._phases(time, event)
        else:
            yield from self._trajectories(time, event)
            yield from self._counts(time, event)
            yield from self._marks(time, event)

    def close(self) -> Iterator[TraceEvent]:
        """The log is over: what was under way is shown up to here."""
        for phase, (step, began) in self._began.items():
            yield from self._phase(phase, step, began, self._now, "unfinished")
        for name, shown in self._shown.items():
            yield from self._part(name, shown, "unfinished", self._now)
        for name, counter in self._counters.items():
            yield self._counter(name, counter.value, self._now)

    # -- control -----------------------------------------------------------------------------------

    def _phases(self, time: float, event: PhaseBegan | PhaseEnded) -> Iterator[TraceEvent]:
        if isinstance(event, PhaseBegan):
            self._began[event.phase] = (event.step, time)
            return
        step, began = self._began.pop(event.phase, (event.step, time - event.seconds))
        yield from self._phase(event.phase, step, began, time, "" if event.ok else "failed")

    def _phase(
        self, phase: Phase, step: int, began: float, ended: float, mark: str
    ) -> Iterator[TraceEvent]:
        lane = "recompute" if phase is Phase.RECOMPUTE else "steps"
        args: Arguments = {"step": step}
        if mark:
            args["outcome"] = mark
        yield from self._lanes.slice(CONTROL, lane, phase.value, began, ended, args)

    def _marks(self, time: float, event: Event) -> Iterator[TraceEvent]:
        match event:
            case RunStarted():
                self._run = f"{event.run}/"
                yield from self._lanes.lane(CONTROL, "steps")
                return
            case WorkerBound():
                if event.role in {"training", "generation"}:
                    yield from self._lanes.lane(DEVICES, event.worker)
                return
            case EngineUp():
                yield from self._lanes.lane(DEVICES, event.engine)
                said = f"{event.engine} is up"
            case EngineDown():
                said = f"{event.engine} is lost: {event.reason}"
            case DomainClosed():
                said = f"domain {event.domain} closed: {event.reason}"
            case Warned():
                said = f"warning: {event.message}"
            case Evaluated():
                said = f"evaluated {event.domain} {event.when} {event.mode}"
            case RunEnded():
                said = f"ended: {event.reason}"
            case _:
                return
        yield TraceEvent(ph="i", name=said, pid=CONTROL, tid=0, ts=self._lanes.at(time), s="g")

    # -- trajectories ------------------------------------------------------------------------------

    def _trajectories(self, time: float, event: Event) -> Iterator[TraceEvent]:
        match event:
            case TrajectoryStarted():
                if self._free:
                    self._shown[event.trajectory] = _Shown(self._free.pop(), time)
            case TrajectoryEnded():
                if (shown := self._shown.get(event.trajectory)) is not None:
                    scored_at = max(shown.since, time - event.reward_s)
                    yield from self._part(event.trajectory, shown, "control", scored_at)
                    yield from self._part(event.trajectory, shown, "reward", time)
                    self._hide(event.trajectory)
            case Disposed():
                if (shown := self._shown.get(event.trajectory)) is not None:
                    what = f"cancelled ({event.disposition.value})"
                    yield from self._part(event.trajectory, shown, what, time)
                    self._hide(event.trajectory)
            case _:
                pass

    def _turns(
        self, time: float, event: TurnEnded | RequestDropped | EnvironmentReset
    ) -> Iterator[TraceEvent]:
        if isinstance(event, RequestDropped):
            name = event.request.removeprefix(self._run).rpartition("/")[0]
        else:
            name = event.trajectory
        if (shown := self._shown.get(name)) is None:
            return
        if isinstance(event, EnvironmentReset):
            yield from self._part(name, shown, "reset", time)
            return
        asked = shown.since if event.asked_at is None else event.asked_at
        yield from self._part(name, shown, "control", asked)
        args: Arguments = {"engine": event.engine, "sampled": event.sampled_tokens}
        if isinstance(event, RequestDropped):
            yield from self._part(name, shown, "generate (dropped)", time, args)
            return
        stepped = time - event.env_s
        answered = stepped if event.answered_at is None else event.answered_at
        yield from self._part(name, shown, "generate", answered, args | {"turn": event.turn})
        yield from self._part(name, shown, "control", stepped)
        yield from self._part(name, shown, "environment", time)

    def _part(
        self, name: str, shown: _Shown, what: str, end: float, args: Arguments | None = None
    ) -> Iterator[TraceEvent]:
        """The next slice of a trajectory, up to `end` (s); empty ones are left out."""
        begin = shown.since
        shown.since = max(begin, end)
        if self._lanes.at(shown.since) > self._lanes.at(begin):
            yield from self._lanes.slice(
                TRAJECTORIES,
                shown.lane,
                what,
                begin,
                shown.since,
                {"trajectory": name, **(args or {})},
            )

    def _hide(self, name: str) -> None:
        self._free.append(self._shown.pop(name).lane)

    # -- counters ----------------------------------------------------------------------------------

    def _counts(self, time: float, event: Event) -> Iterator[TraceEvent]:
        match event:
            case TrajectoryStarted(purpose=Purpose.TRAIN.value):
                self._running.add(event.trajectory)
                yield from self._count("in flight", len(self._running), time)
            case TrajectoryEnded() | Disposed():
                self._running.discard(event.trajectory)
                yield from self._count("in flight", len(self._running), time)
                if isinstance(event, Disposed):
                    yield from self._left(time, event)
            case GroupReady():
                self._ready[event.group] = event.members
                yield from self._buffered(time)
            case BatchTaken():
                self._in_hand = event.groups
                yield from self._buffered(time)
            case StepTrained():
                self._in_hand = 0
            case Committed():
                yield from self._count("committed version", event.version, time)
            case Admitted() | CreditsReturned():
                yield from self._count("outstanding groups", event.outstanding, time)
            case _:
                pass

    def _left(self, time: float, event: Disposed) -> Iterator[TraceEvent]:
        if event.group in self._ready:
            self._ready[event.group] -= 1
            if self._ready[event.group] <= 0:
                del self._ready[event.group]
                if event.disposition.value == "trained":
                    self._in_hand = max(0, self._in_hand - 1)
                yield from self._buffered(time)

    def _buffered(self, time: float) -> Iterator[TraceEvent]:
        yield from self._count("buffered groups", len(self._ready) - self._in_hand, time)

    def _count(self, name: str, value: int, time: float) -> Iterator[TraceEvent]:
        counter = self._counters.setdefault(name, _Counter())
        if counter.move(value):
            yield self._counter(name, value, time)

    def _counter(self, name: str, value: int, time: float) -> TraceEvent:
        args: Arguments = {"value": value}
        return TraceEvent(ph="C", name=name, pid=CONTROL, tid=0, ts=self._lanes.at(time), args=args)
