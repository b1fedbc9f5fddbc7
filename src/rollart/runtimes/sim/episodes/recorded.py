"""A workload resampled from a run's event log: lengths, turns and waits, by domain.

A simulated trajectory takes the shape of one recorded trajectory of its domain, drawn by its name,
so that what goes together in a trajectory (many turns, long answers, slow steps) stays together.
Only those that ended well have a shape: what was aborted, often because it was long, and steps that
failed are left out, so the workload is somewhat shorter and smoother than what was recorded.
Invariant: numbers are only ever those of the log, and every draw is a pure function of names.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rollart.core.errors import ConfigError, RollartError
from rollart.core.events import (
    DeviceBusy,
    EnvironmentReset,
    Stamped,
    TrajectoryEnded,
    TurnEnded,
    Work,
)
from rollart.core.identity import Purpose
from rollart.core.types import Status
from rollart.runtimes.sim.episodes.workload import EVAL_MARK, Span
from rollart.runtimes.sim.world.distributions import place
from rollart.runtimes.sim.world.places import reward_worker

T = TypeVar("T")

_ENDED_WELL = (Status.FINISHED.value, Status.TRUNCATED.value)

_SAME_S = 1e-6
"""Seconds within which a reward's work and its verdict end together."""


@dataclass(slots=True)
class _Turns:
    """What is known of one trajectory while the log is read."""

    prompts: list[int] = field(default_factory=list[int])
    answers: list[int] = field(default_factory=list[int])
    steps: list[float] = field(default_factory=list[float])
    reset_s: float = 0.0
    held: tuple[str, int] | None = None
    """The engine that has the prefix in its cache, and the version that it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One recorded trajectory: tokens observed before each later turn, answered, and seconds.

    `reward_s` is what the reward computed, or, `with_queue`, what it was waited for.
    """

    observed: tuple[int, ...]
    answers: tuple[int, ...]
    steps: tuple[float, ...]
    reset_s: float
    reward_s: float
    with_queue: bool
    score: float | None
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDomainData:
    """All that a log says of one domain. `failed_resets` are the seconds that those took.

    `prefix_hit` is of turns whose engine and version are those of the turn before.
    """

    shapes: tuple[Shape, ...]
    first: tuple[int, ...]
    failed_resets: tuple[float, ...]
    resets: int
    prefix_hit: float


class RecordedDomain:
    """The `DomainWorkload` over a record."""

    def __init__(self, data: RecordedDomainData, *, seed: int) -> None:
        self._data = data
        self._seed = seed
        self.prefix_hit = data.prefix_hit

    def turns(self, name: str) -> int:
        """See `DomainWorkload`, also for the rest."""
        return len(self._shape(name).answers)

    def first(self, task: str) -> int:
        return self._one_of(self._data.first, "first", task, 0)

    def observed(self, name: str, turn: int) -> int:
        shape = self._shape(name)
        return shape.observed[turn - 1] if turn <= len(shape.observed) else 1

    def answered(self, name: str, seed: int) -> int:
        answers = self._shape(name).answers
        return answers[int(place("answer", seed) * len(answers))]

    def pull(self, name: str) -> float:
        return 0.0  # resets were recorded whole

    def reset(self, name: str) -> Span:
        data = self._data
        chance = len(data.failed_resets) / max(1, data.resets)
        if chance and place(self._seed, "reset fails", name) < chance:
            seconds = self._one_of(data.failed_resets, "reset failure", name, 0)
            return Span(seconds=seconds, fails=True)
        return Span(seconds=self._shape(name).reset_s)

    def step(self, name: str, turn: int) -> Span:
        steps = self._shape(name).steps
        return Span(seconds=steps[min(turn, len(steps) - 1)])

    def succeeds(self, name: str) -> bool:
        return self._shape(name).success

    def scoring(self, name: str) -> Span:
        shape = self._shape(name)
        return Span(seconds=shape.reward_s, fails=shape.score is None)

    def score(self, name: str, group: str) -> float:
        return self._shape(name).score or 0.0

    def _shape(self, name: str) -> Shape:
        return self._one_of(self._data.shapes, "shape", name, 0)

    def _one_of(self, values: tuple[T, ...], what: str, name: str, turn: int) -> T:
        return values[int(place(self._seed, what, name, turn) * len(values))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The workload of each domain of a run, and in words what to doubt about it."""

    domains: Mapping[str, RecordedDomain]
    doubts: tuple[str, ...]


def load_recorded(run: Path, *, seed: int, pooled: Collection[str] = ()) -> Recorded:
    """What the log of the run in `run` says.

    Args:
        pooled: domains whose rewards queue for places of their own.

    Raises:
        ConfigError: there is no such log, it is damaged, or nothing in it ended.
    """
    from rollart.observe.eventlog import EVENTS_FILE, Wholeness, read_run

    log, whole = run / EVENTS_FILE, Wholeness()
    try:
        found = gather(read_run(log, only=READ, whole=whole))
    except (OSError, RollartError) as error:
        raise ConfigError(
            f'recorded.run = "{run}": its event log cannot be read ({error}); give the directory '
            "of a run"
        ) from error
    if not found:
        raise ConfigError(
            f'recorded.run = "{run}": no trajectory of it ended; give a run that trained'
        )
    return Recorded(
        domains={tag: RecordedDomain(data, seed=seed) for tag, data in found.items()},
        doubts=tuple(
            f'recorded.run = "{run}": {words}' for words in _doubts(whole.partial, found, pooled)
        ),
    )


def _doubts(
    partial: str | None, found: Mapping[str, RecordedDomainData], pooled: Collection[str]
) -> Iterator[str]:
    if partial is not None:
        yield f"{partial}; what it has until then is the workload"
    queued = [
        tag
        for tag, data in found.items()
        if tag in pooled and any(shape.with_queue and shape.reward_s for shape in data.shapes)
    ]
    if queued:
        yield (
            f"of rewards of {', '.join(queued)} it says how long a verdict was waited for, not "
            "how long it was computed; each holds its place in the pool for so long, so what "
            "queued there queues twice"
        )


READ = (TurnEnded, EnvironmentReset, TrajectoryEnded, DeviceBusy)
"""The types of events that a workload is made of."""


def gather(events: Iterable[Stamped]) -> Mapping[str, RecordedDomainData]:
    """What a log says of each domain of which a training trajectory ended well."""
    under_way: dict[str, _Turns] = defaultdict(_Turns)
    shapes: dict[str, list[Shape]] = defaultdict(list)
    first: dict[str, list[int]] = defaultdict(list)
    failed: dict[str, list[float]] = defaultdict(list)
    resets: dict[str, int] = defaultdict(int)
    hits: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    computed = _RewardTimes()
    for stamped in events:
        match stamped.event:
            case EnvironmentReset() as event:
                tag = _domain_of(event.trajectory)
                resets[tag] += 1
                under_way[event.trajectory].reset_s = event.seconds
                if not event.ok:
                    failed[tag].append(event.seconds)
            case TurnEnded() as event:
                turns = under_way[event.trajectory]
                turns.prompts.append(event.prompt_tokens)
                turns.answers.append(event.sampled_tokens)
                turns.steps.append(event.env_s)
                if turns.held == (event.engine, event.first_version):
                    # A model of an engine flushes its cache itself, and has none of another's.
                    earlier = turns.prompts[-2] + turns.answers[-2]
                    found = hits[_domain_of(event.trajectory)]
                    found[0] += min(event.cost.cached_tokens, earlier)
                    found[1] += earlier
                turns.held = (event.engine, event.last_version)
            case DeviceBusy(work=Work.REWARD.value) as event:
                computed.take(event)
            case TrajectoryEnded() as event:
                turns = under_way.pop(event.trajectory, _Turns())
                service_s = computed.of(event, stamped.time)
                wanted = event.purpose == Purpose.TRAIN.value and event.status in _ENDED_WELL
                if wanted and turns.prompts:
                    shapes[event.domain].append(_shape(turns, event, service_s))
                    first[event.domain].append(turns.prompts[0])
            case _:
                pass
    return {
        tag: RecordedDomainData(
            shapes=tuple(known),
            first=tuple(first[tag]),
            failed_resets=tuple(failed[tag]),
            resets=resets[tag],
            prefix_hit=hits[tag][0] / hits[tag][1] if hits[tag][1] else 1.0,
        )
        for tag, known in shapes.items()
    }


class _RewardTimes:
    """How long rewards computed: of those at work on a device, what ended with the verdict."""

    def __init__(self) -> None:
        self._ended: dict[str, list[DeviceBusy]] = defaultdict(list)

    def take(self, busy: DeviceBusy) -> None:
        """A device of a reward pool has worked."""
        self._ended[busy.device.rpartition("-")[0]].append(busy)

    def of(self, ended: TrajectoryEnded, now: float) -> float | None:
        """Seconds of the work that ended now, and that no other verdict is from; None if none did.

        Where a device takes several calls at once, its work may have begun before this one's.
        """
        name = reward_worker(ended.domain)
        recent = [busy for busy in self._ended[name] if busy.end >= now - _SAME_S]
        found = next((busy for busy in recent if busy.end - busy.begin <= ended.reward_s), None)
        if found is None and recent:
            found = recent[0]
        self._ended[name] = [busy for busy in recent if busy is not found]
        return None if found is None else min(found.end - found.begin, ended.reward_s)


def _shape(turns: _Turns, ended: TrajectoryEnded, service_s: float | None) -> Shape:
    before = [p + a for p, a in zip(turns.prompts, turns.answers, strict=True)]
    return Shape(
        # Where a template rewrites history, a prompt may be shorter than what came before.
        observed=tuple(
            max(1, prompt - known)
            for prompt, known in zip(turns.prompts[1:], before[:-1], strict=True)
        ),
        answers=tuple(turns.answers),
        steps=tuple(turns.steps),
        reset_s=turns.reset_s,
        reward_s=ended.reward_s if service_s is None else service_s,
        with_queue=service_s is None,
        score=ended.score,
        success=ended.success is not None and ended.success >= 0.5,
    )


def _domain_of(trajectory: str) -> str:
    return trajectory.partition("/")[0].removeprefix(EVAL_MARK)
