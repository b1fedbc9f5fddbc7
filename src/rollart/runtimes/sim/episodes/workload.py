"""What trajectories meet and say: lengths, turns, waits and mishaps, each drawn by name.

Invariant: every answer is a pure function of its arguments and of the run's seed, so nothing
depends on the order in which things happen. Times are seconds, lengths tokens.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rollart.core.errors import ConfigError
from rollart.core.records import record
from rollart.runtimes.sim.world.distributions import (
    Distribution,
    counter,
    drawer,
    is_constant,
    numbered_places,
    place,
    places_of,
)
from rollart.runtimes.sim.world.sections import DomainSection, Mishap, RewardSection

EVAL_MARK = "eval:"

Number = TypeVar("Number", int, float)


@record
class Span:
    """How long something takes (s), and whether it fails at the end."""

    seconds: float
    fails: bool = False


class DomainWorkload(Protocol):
    """One domain. `name` is a trajectory's identity as text, `turn` counts from 0."""

    @property
    def prefix_hit(self) -> float:
        """Share of earlier context that a prefix cache still has."""
        ...

    def turns(self, name: str) -> int:
        """Turns until the environment says that it is done."""
        ...

    def first(self, task: str) -> int:
        """Tokens of the task as it is first shown, to whoever plays it."""
        ...

    def observed(self, name: str, turn: int) -> int:
        """Tokens shown before the answer of this turn, from 1 on."""
        ...

    def answered(self, name: str, seed: int) -> int:
        """Tokens of the answer to the request with this seed."""
        ...

    def reset(self, name: str) -> Span: ...

    def pull(self, name: str) -> float:
        """Seconds that the image's pull takes before the reset; 0 where a cache has it."""
        ...

    def step(self, name: str, turn: int) -> Span: ...

    def succeeds(self, name: str) -> bool:
        """Whether the episode counts as a success."""
        ...

    def scoring(self, name: str) -> Span:
        """How long the reward takes, and whether it gives no verdict."""
        ...

    def score(self, name: str, group: str) -> float:
        """The reward of a trajectory, 0 to 1."""
        ...


class RunWorkload:
    """All domains of a run; this is what engines ask.

    A session is `run/domain/task/...`, the domain marked where it is evaluation's. `doubts` says in
    words what is not quite known of it.
    """

    def __init__(
        self, domains: Mapping[str, DomainWorkload], *, doubts: tuple[str, ...] = ()
    ) -> None:
        self._domains = domains
        self.doubts = doubts

    def domain(self, tag: str) -> DomainWorkload:
        """Raises `ConfigError` for a domain that has no workload."""
        if tag not in self._domains:
            raise ConfigError(f"domains.{tag}: has no workload; known: {', '.join(self._domains)}")
        return self._domains[tag]

    def answer_tokens(self, session: str, seed: int) -> int:
        """Tokens of one turn's whole answer."""
        name = session.partition("/")[2]
        return self._of(name).answered(name, seed)

    def cached_share(self, session: str) -> float:
        """Share of the session's earlier context that its engine's cache still has."""
        return self._of(session.partition("/")[2]).prefix_hit

    def _of(self, name: str) -> DomainWorkload:
        tag = name.partition("/")[0]
        return self._domains[tag if tag in self._domains else tag.removeprefix(EVAL_MARK)]


class DrawnDomain:
    """A domain whose every number is drawn from a distribution of the world file."""

    def __init__(self, spec: DomainSection, reward: RewardSection, *, seed: int) -> None:
        self._seed = seed
        self._spec = spec
        self._reward = reward
        self.prefix_hit = spec.prefix_hit
        self._turns = self._counts("turns", spec.turns)
        self._first = self._counts("first", spec.first_tokens)
        self._observed = self._counts("observed", spec.observation_tokens)
        self._answered = counter(spec.answer_tokens)
        self._answer_at = numbered_places("answer")
        self._reset = self._times("reset", spec.reset_s)
        self._step = self._times("step", spec.step_s)
        self._pull = None if spec.image is None else self._times("pull", spec.image.pull_s)
        self._scoring = self._times("scoring", reward.seconds)

    def turns(self, name: str) -> int:
        """See `DomainWorkload`, also for the rest."""
        return self._turns(name, 0)

    def first(self, task: str) -> int:
        return self._first(task, 0)

    def observed(self, name: str, turn: int) -> int:
        return self._observed(name, turn)

    def answered(self, name: str, seed: int) -> int:
        # The seed already depends on run, trajectory and turn.
        return self._answered(self._answer_at(seed))

    def pull(self, name: str) -> float:
        image = self._spec.image
        if image is None or self._pull is None or self._happens(image.hit, "cached", name, 0):
            return 0.0
        return self._pull(name, 0)

    def reset(self, name: str) -> Span:
        failure, hang = self._spec.reset_failure, self._spec.reset_hang
        if failure is not None and self._happens(failure.chance, "reset fails", name, 0):
            return Span(seconds=self._lasts(failure, "reset failure", name), fails=True)
        seconds = self._reset(name, 0)
        if hang is not None and self._happens(hang.chance, "reset hangs", name, 0):
            seconds += self._lasts(hang, "reset hang", name)
        return Span(seconds=seconds)

    def step(self, name: str, turn: int) -> Span:
        failure = self._spec.step_failure
        if failure is not None and self._happens(failure.chance, "step fails", name, turn):
            return Span(seconds=self._lasts(failure, "step failure", name), fails=True)
        return Span(seconds=self._step(name, turn))

    def succeeds(self, name: str) -> bool:
        return self._happens(self._spec.success, "success", name, 0)

    def scoring(self, name: str) -> Span:
        fails = self._happens(self._reward.failure, "no verdict", name, 0)
        return Span(seconds=self._scoring(name, 0), fails=fails)

    def score(self, name: str, group: str) -> float:
        if self._happens(self._reward.equal, "equal", group, 0):
            return place(self._seed, "score", group)
        return place(self._seed, "score", name)

    # -- draws -------------------------------------------------------------------------------

    def _happens(self, chance: float, what: str, name: str, turn: int) -> bool:
        return chance > 0 and place(self._seed, what, name, turn) < chance

    def _lasts(self, mishap: Mishap, what: str, name: str) -> float:
        return drawer(mishap.seconds)(place(self._seed, what, name))

    def _times(self, what: str, distribution: Distribution) -> Callable[[str, int], float]:
        return self._named(what, drawer(distribution), fixed=is_constant(distribution))

    def _counts(self, what: str, distribution: Distribution) -> Callable[[str, int], int]:
        return self._named(what, counter(distribution), fixed=is_constant(distribution))

    def _named(
        self, what: str, draw: Callable[[float], Number], *, fixed: bool
    ) -> Callable[[str, int], Number]:
        """Draws by name and turn; what is always the same costs no hash."""
        if fixed:
            always = draw(0.5)
            return lambda name, turn: always
        at = places_of(self._seed, what)
        return lambda name, turn: draw(at(name, turn))
