"""A run seen domain by domain: what each started, how it went, what became of it.

Invariant: built from events alone, in one pass; a trajectory is remembered by name from its end to
its leaving, and after that only in sums. Evaluation stands apart, in its own results.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollart.core.events import (
    Baseline,
    Disposed,
    DomainClosed,
    Evaluated,
    Event,
    StepTrained,
    TrajectoryEnded,
    TrajectoryStarted,
)
from rollart.core.identity import Purpose
from rollart.core.types import Disposition, Status
from rollart.observe.average import Average
from rollart.observe.bias import Counts, DomainBias, Leavings, bias_of

Named = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class DomainStory:
    """What has been gathered of one domain's training trajectories."""

    started: int = 0
    steps_trained: int = 0
    closed: str | None = None
    reward: Average = field(default_factory=Average)
    success: Average = field(default_factory=Average)
    turns: Average = field(default_factory=Average)
    sampled_tokens: Average = field(default_factory=Average)
    elapsed_s: Average = field(default_factory=Average)
    failures: Counter[str] = field(default_factory=Counter[str])
    dispositions: Counter[Disposition] = field(default_factory=Counter[Disposition])
    leavings: Leavings = field(default_factory=Leavings)


class DomainStories:
    """Feeds on events; `of` gives the domains in the order in which they appeared."""

    def __init__(self) -> None:
        self.of: dict[str, DomainStory] = {}
        self._ended: dict[str, tuple[float, float | None]] = {}
        """Seconds and score of those that ended and have not left."""
        self._in_batch: set[str] = set()

    def take(self, event: Event) -> None:
        match event:
            case TrajectoryStarted(purpose=Purpose.TRAIN.value):
                self._story(event.domain).started += 1
            case TrajectoryEnded(purpose=Purpose.TRAIN.value):
                self._end(event)
            case Disposed():
                self._leave(event)
            case DomainClosed():
                self._story(event.domain).closed = event.reason
            case StepTrained():
                # Its trajectories have left as trained just before.
                for domain in self._in_batch:
                    self._story(domain).steps_trained += 1
                self._in_batch.clear()
            case _:
                pass

    def _story(self, domain: str) -> DomainStory:
        if (story := self.of.get(domain)) is None:
            story = self.of[domain] = DomainStory()
        return story

    def _end(self, event: TrajectoryEnded) -> None:
        story = self._story(event.domain)
        story.reward.add(event.score)
        story.success.add(event.success)
        if event.status == Status.FAILED.value:
            story.failures[event.failure or "unknown"] += 1
        else:
            story.turns.add(event.turns)
            story.sampled_tokens.add(event.sampled_tokens)
            story.elapsed_s.add(event.elapsed_s)
        self._ended[event.trajectory] = (event.elapsed_s, event.score)

    def _leave(self, event: Disposed) -> None:
        story = self._story(event.domain)
        story.dispositions[event.disposition] += 1
        if event.disposition is Disposition.TRAINED:
            self._in_batch.add(event.domain)
        ended = self._ended.pop(event.trajectory, None)
        elapsed_s, score = ended or (event.elapsed_s, None)
        story.leavings.add(
            elapsed_s,
            event.disposition,
            # Whatever was then decided about it, what has ended by itself took as long as it took.
            censored=event.censored and ended is None,
            score=score,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heldout:
    """One evaluation: shares 0..1, over `scored` of `tasks`, all under one `version`."""

    when: str
    mode: str
    version: int
    tasks: int
    scored: int
    success: float | None
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainResult:
    """A domain's training trajectories in numbers, and its held-out tasks.

    `reward` and `success` are means over all that ended with one, `turns`, `sampled_tokens` and
    `elapsed_s` (s) over all that did not fail. `steps_trained` is the number of train steps that
    had any of it. `closed` says why it admits no more tasks, None if it does.
    """

    domain: str
    started: int
    steps_trained: int
    reward: float | None
    success: float | None
    turns: float | None
    sampled_tokens: float | None
    elapsed_s: float | None
    failures: Counts
    dispositions: Counts
    closed: str | None
    bias: DomainBias
    heldout: tuple[Heldout, ...]
    baselines: Named
    baseline_tasks: int

    @property
    def heldout_tasks(self) -> int:
        return max([self.baseline_tasks, *(one.tasks for one in self.heldout)])

    def last(self, when: str, mode: str) -> Heldout | None:
        """The last evaluation of this kind."""
        found = [one for one in self.heldout if (one.when, one.mode) == (when, mode)]
        return found[-1] if found else None

    def success_at(self, when: str, mode: str) -> float | None:
        last = self.last(when, mode)
        return None if last is None else last.success

    @property
    def scored_after(self) -> int:
        """Held-out tasks that have a verdict after training, in the mode that has fewest."""
        return min((one.scored for one in self.heldout if one.when == "after"), default=0)

    @property
    def during(self) -> tuple[Heldout, ...]:
        """Evaluations beside training."""
        return tuple(one for one in self.heldout if one.when not in ("before", "after"))


def domain_results(
    declared: Iterable[str],
    stories: DomainStories,
    evaluations: Sequence[Evaluated],
    baselines: Sequence[Baseline],
) -> tuple[DomainResult, ...]:
    """One result a domain: the declared ones first, then whatever events speak of."""
    evaluated: dict[str, list[Evaluated]] = defaultdict(list)
    for event in evaluations:
        evaluated[event.domain].append(event)
    compared: dict[str, list[Baseline]] = defaultdict(list)
    for event in baselines:
        compared[event.domain].append(event)
    names = dict.fromkeys((*declared, *stories.of, *evaluated, *compared))
    return tuple(
        _result(name, stories.of.get(name) or DomainStory(), evaluated[name], compared[name])
        for name in names
    )


def _result(
    name: str, story: DomainStory, evaluations: list[Evaluated], baselines: list[Baseline]
) -> DomainResult:
    return DomainResult(
        domain=name,
        started=story.started,
        steps_trained=story.steps_trained,
        reward=story.reward.mean,
        success=story.success.mean,
        turns=story.turns.mean,
        sampled_tokens=story.sampled_tokens.mean,
        elapsed_s=story.elapsed_s.mean,
        failures=tuple(sorted(story.failures.items())),
        dispositions=tuple((d.value, story.dispositions[d]) for d in Disposition),
        closed=story.closed,
        bias=bias_of(name, story.started, story.leavings),
        heldout=tuple(
            Heldout(
                when=event.when,
                mode=event.mode,
                version=event.version,
                tasks=event.tasks,
                scored=event.scored,
                success=event.success,
                score=event.score,
            )
            for event in evaluations
        ),
        baselines=tuple((event.name, event.success) for event in baselines),
        baseline_tasks=max((event.tasks for event in baselines), default=0),
    )
