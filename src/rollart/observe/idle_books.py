"""Seconds of every cause, device by device: the table of `idle_causes`, on arrays.

Invariant: rules stand in the order of that table, and a segment of time is the first's that holds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rollart.core.events import Phase, is_computing
from rollart.core.types import Disposition
from rollart.observe.idle_causes import CAUSES, CODE, GENERATION, OF_A_DOMAIN, Cause
from rollart.observe.idle_log import ENGINE, REWARD, TRAINER, Device, IdleLog
from rollart.observe.intervals import Interval
from rollart.observe.rollout_states import At
from rollart.observe.sweep import Counts, Edges, Floats, Meter, Segments, sweep

Named = tuple[tuple[str, float], ...]
Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Works = Mapping[str, Mapping[str, Sequence[Interval]]]
"""When (s) devices were busy: by device and kind of work."""


class Books:
    """What is the same for many devices is worked out once."""

    def __init__(self, log: IdleLog, works: Works, window: Interval) -> None:
        self._log = log
        self._works = works
        self._window = window
        self._meters: dict[tuple[str, ...], Meter] = {}
        self._scoring: Meter | None = None
        self._edges = {device: _busy_edges(kinds) for device, kinds in works.items()}
        self._training = Edges(log.phases[Phase.TRAIN_STEP])
        self._rebuilding = Edges(log.phases[Phase.RECOMPUTE])
        self._suspended = Edges(log.suspended)
        self._served = _served(log)
        self._parts: defaultdict[str, list[str]] = defaultdict(list)
        for name in works:
            self._parts[log.engine_of(name) or name].append(name)
        self._asked: defaultdict[str, list[Edges]] = defaultdict(list)
        for (engine, _), edges in log.states.asked.items():
            self._asked[engine].append(edges)

    def seconds(self, device: Device, span: Interval) -> Floats:
        """Seconds of each cause, in the order of `CAUSES`, over `span`, which is in the window."""
        if device.role == TRAINER:
            return self._trainer(device, span)
        if device.role == ENGINE:
            return self._engine(device, span)
        return self._reward(device, span)

    def _busy(self, device: Device) -> tuple[list[Edges], list[Edges]]:
        """When it computed, and when it moved weights."""
        computing, moving = self._edges.get(device.name, (Edges(), Edges()))
        return [computing], [moving]

    # -- engines -----------------------------------------------------------------------------------

    def _engine(self, device: Device, span: Interval) -> Floats:
        log, engine = self._log, device.engine
        computing, moving = self._busy(device)
        others = [self._edges[name][0] for name in self._parts[engine] if name != device.name]
        found = sweep(
            span,
            [
                computing,
                moving,
                [Edges(log.down[engine])],
                [Edges(log.behind[engine]), self._suspended],
                [self._suspended],
                [self._training],
                self._asked[engine],
                others,
                [self._rebuilding],
                [log.states.held[engine]],
            ],
        )
        busy, moves, down, sync, suspended, trains, asked, other, rebuild, held = found.counts > 0
        codes = _first(
            found,
            (busy, Cause.BUSY),
            (down, Cause.DOWN),
            (moves, Cause.WEIGHT_SYNC),
            (suspended & trains, Cause.ADMISSION),
            (sync, Cause.WEIGHT_SYNC),
            (asked & other, Cause.NO_WORK),
            (asked & rebuild, Cause.WEIGHT_SYNC),
            (asked, Cause.UNKNOWN),
        )
        idle = codes < 0
        seconds = _seconds(found, codes)
        meter = self._meter(self._domains(log.classes[engine]))
        seconds += self._between(meter, found, idle & ~held)
        at_environments = self._between(meter, found, idle & held)
        straggling = CODE[Cause.STRAGGLER]
        at_environments[CODE[Cause.ENVIRONMENT]] += at_environments[straggling]
        at_environments[straggling] = 0.0
        return seconds + at_environments

    def _between(self, meter: Meter, found: Segments, where: Flags) -> Floats:
        return meter.between(found.bounds[:-1][where], found.bounds[1:][where])

    def _domains(self, hardware: str) -> tuple[str, ...]:
        """The domains of which engines of this class answer a fair part, and those nobody has."""
        return tuple(
            domain
            for domain in self._log.states.counts
            if not (turns := self._served.get(domain))
            or turns.get(hardware, 0) >= OF_A_DOMAIN * sum(turns.values())
        )

    def _meter(self, domains: tuple[str, ...]) -> Meter:
        """For engines that serve `domains` and hold no request: what they wait for."""
        if domains not in self._meters:
            self._meters[domains] = self._make_meter(domains)
        return self._meters[domains]

    def _make_meter(self, domains: tuple[str, ...]) -> Meter:
        states, size = self._log.states, self._log.states.group_size

        outside = [domain for domain in states.counts if domain not in domains]

        def those(of: Sequence[str], *places: At) -> list[Edges]:
            return [states.counts[domain][at] for domain in of for at in places]

        found = sweep(
            self._window,
            [
                *(those(domains, *places) for places in _PLACES),
                *(those(outside, *places) for places in _PLACES),
                [states.stale],
                [states.ready],
                [states.free],
                [states.tasks],
                [Edges(self._log.phases[Phase.GET_BATCH])],
            ],
        )
        inside, others, (stale, ready, free, tasks, waiting) = (
            found.counts[:3],
            found.counts[3:6],
            found.counts[6:],
        )
        held_back = np.where(waiting > 0, 0, ready) + np.where(tasks > 0, free * size, 0)
        no_task = np.where(tasks > 0, 0, free * size)
        held = (
            (stale, Cause.STALENESS_DROP),
            (held_back, Cause.ADMISSION),
            (no_task, Cause.NO_WORK),
        )
        codes = _first(
            found,
            *_most((*zip(inside, _WAITS, strict=True), *held)),
            *_most(tuple(zip(others, _WAITS, strict=True))),
            (waiting > 0, Cause.BUFFER_WAIT),
            (waiting <= 0, Cause.ADMISSION),
        )
        return Meter(found.bounds, codes, len(CAUSES))

    # -- trainers ----------------------------------------------------------------------------------

    def _trainer(self, device: Device, span: Interval) -> Floats:
        log, works = self._log, self._works.get(device.name, {})
        computing, moving = self._busy(device)
        steps = log.phases[Phase.TRAIN_STEP]
        intervals = [i for work, some in works.items() if is_computing(work) for i in some]
        waits = [(edges, cause) for cause, edges in log.batch_waits.waits.items() if edges]
        syncing = [*(log.phases[phase] for phase in _SYNC_PHASES), log.settling]
        found = sweep(
            span,
            [
                computing,
                moving,
                [Edges(_before_first(steps, intervals))],
                [self._training],
                [Edges(log.phases[Phase.ABORT_STALE])],
                [Edges(intervals) for intervals in syncing],
                *([edges] for edges, _ in waits),
            ],
        )
        busy, moves, loading, trains, aborts, syncs, *waiting = found.counts > 0
        codes = _first(
            found,
            (busy, Cause.BUSY),
            (moves, Cause.WEIGHT_SYNC),
            (loading, Cause.BUFFER_WAIT),
            (trains, Cause.UNKNOWN),
            *((count, cause) for count, (_, cause) in zip(waiting, waits, strict=True)),
            (aborts, Cause.STALENESS_DROP),
            (syncs, Cause.WEIGHT_SYNC),
        )
        codes[codes < 0] = CODE[Cause.UNKNOWN]
        return _seconds(found, codes)

    # -- rewards -----------------------------------------------------------------------------------

    def _reward(self, device: Device, span: Interval) -> Floats:
        if self._scoring is None:
            self._scoring = self._scoring_meter()
        computing, moving = self._busy(device)
        found = sweep(span, [[*computing, *moving]])
        busy = found.counts[0] > 0
        seconds = _seconds(found, _first(found, (busy, Cause.BUSY)))
        return seconds + self._between(self._scoring, found, ~busy)

    def _scoring_meter(self) -> Meter:
        """For devices that score and have nothing to score: what they wait for."""
        log, counts = self._log, self._log.states.counts.values()
        scorers = [
            self._edges[device.name][0]
            for device in log.devices(self._works)
            if device.role == REWARD and device.name in self._edges
        ]
        found = sweep(
            self._window,
            [
                scorers,
                [some[At.REWARD] for some in counts],
                [self._suspended],
                [self._training],
                [some[At.ENVIRONMENT] for some in counts],
                [some[at] for some in counts for at in (At.ENGINE, At.OTHERS)],
                [Edges(log.phases[Phase.GET_BATCH])],
            ],
        )
        scored, awaited, suspended, trains, environment, elsewhere, waiting = found.counts
        codes = _first(
            found,
            ((awaited > 0) & (scored > 0), Cause.NO_WORK),
            (awaited > 0, Cause.REWARD),
            ((suspended > 0) & (trains > 0), Cause.ADMISSION),
            (suspended > 0, Cause.WEIGHT_SYNC),
            ((environment > 0) & (environment >= elsewhere), Cause.ENVIRONMENT),
            ((elsewhere > 0) | (waiting > 0), Cause.NO_WORK),
            (elsewhere <= 0, Cause.ADMISSION),
        )
        return Meter(found.bounds, codes, len(CAUSES))

    # -- waste -------------------------------------------------------------------------------------

    def wasted(self, device: Device, span: Interval) -> Named:
        """Shares of `span` of generation whose trajectories left untrained, by how they left."""
        if device.role != ENGINE:
            return ()
        tokens = self._log.states.sampled.get(device.engine, {})
        sampled = sum(tokens.values())
        works = self._works.get(device.name, {})
        generating = [Edges(spans) for work, spans in works.items() if work in GENERATION]
        found = sweep(span, [generating])
        share = float(found.lengths[found.counts[0] > 0].sum()) / (span[1] - span[0])
        return tuple(
            (how.value, share * count / sampled)
            for how, count in tokens.items()
            if count and how is not Disposition.TRAINED
        )


_SYNC_PHASES = (Phase.SUSPEND, Phase.UPDATE, Phase.RESUME, Phase.RECOMPUTE, Phase.PUBLISH)


_PLACES = ((At.ENVIRONMENT,), (At.REWARD,), (At.ENGINE, At.OTHERS))
_WAITS = (Cause.ENVIRONMENT, Cause.REWARD, Cause.STRAGGLER)
"""Where trajectories are, and what an engine that has none of them waits for."""


def _most(counts: Sequence[tuple[Counts, Cause]]) -> list[tuple[Flags, Cause]]:
    """Rules: the cause of the largest count, if any is above 0; of equals, the first."""
    most = np.max(np.stack([count for count, _ in counts]), axis=0)
    return [((count == most) & (most > 0), cause) for count, cause in counts]


def _busy_edges(works: Mapping[str, Sequence[Interval]]) -> tuple[Edges, Edges]:
    computing, moving = Edges(), Edges()
    for work, intervals in works.items():
        for begin, end in intervals:
            (computing if is_computing(work) else moving).cover(begin, end)
    return computing, moving


def _served(log: IdleLog) -> dict[str, dict[str, int]]:
    """Requests by domain and by the class that answered them."""
    served: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (engine, domain), edges in log.states.asked.items():
        served[domain][log.classes.get(engine, "")] += len(edges)
    return {domain: dict(classes) for domain, classes in served.items()}


def _before_first(steps: Sequence[Interval], busy: Sequence[Interval]) -> list[Interval]:
    """Of each train step, the part before the trainer begins to work on it."""
    begins = np.sort(np.array([begin for begin, _ in busy], np.float64))
    parts: list[Interval] = []
    for begin, end in steps:
        place = int(np.searchsorted(begins, begin, side="left"))
        if place < len(begins) and begins[place] < end:
            parts.append((begin, float(begins[place])))
    return parts


def _first(found: Segments, *rules: tuple[Flags, Cause]) -> Codes:
    """The code of each segment by the first rule that holds; -1 where none does."""
    codes = np.full(found.counts.shape[1], -1, np.int8)
    for holds, cause in reversed(rules):
        codes[holds] = CODE[cause]
    return codes


def _seconds(found: Segments, codes: Codes) -> Floats:
    """Seconds of each code; segments without one count nowhere."""
    known = codes >= 0
    seconds = np.bincount(codes[known], weights=found.lengths[known], minlength=len(CAUSES))
    return seconds.astype(np.float64)
