"""Tasks that are slow or fast as a whole: a factor on step times that a task's trajectories share.

Invariant: the factor follows from the seed and the task's name; all else is the workload beneath.
"""

import math
from statistics import NormalDist

from rollart.runtimes.sim.episodes.workload import DomainWorkload, RunWorkload, Span
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.runtimes.sim.world.distributions import place

_STANDARD = NormalDist()


class TaskSpread:
    """A `DomainWorkload` around another; the factor is lognormal with median 1."""

    def __init__(self, inner: DomainWorkload, *, sigma: float, seed: int) -> None:
        self._inner = inner
        self._sigma = sigma
        self._seed = seed

    @property
    def prefix_hit(self) -> float:
        return self._inner.prefix_hit

    def turns(self, name: str) -> int:
        return self._inner.turns(name)

    def first(self, task: str) -> int:
        return self._inner.first(task)

    def observed(self, name: str, turn: int) -> int:
        return self._inner.observed(name, turn)

    def answered(self, name: str, seed: int) -> int:
        return self._inner.answered(name, seed)

    def reset(self, name: str) -> Span:
        return self._inner.reset(name)

    def pull(self, name: str) -> float:
        return self._inner.pull(name)

    def step(self, name: str, turn: int) -> Span:
        """The step beneath, times its task's factor. `name` is domain/task/member."""
        span = self._inner.step(name, turn)
        _, task, _ = name.split("/", 2)
        at = _STANDARD.inv_cdf(place(self._seed, "task's pace", task))
        return Span(seconds=span.seconds * math.exp(self._sigma * at), fails=span.fails)

    def succeeds(self, name: str) -> bool:
        return self._inner.succeeds(name)

    def scoring(self, name: str) -> Span:
        return self._inner.scoring(name)

    def score(self, name: str, group: str) -> float:
        return self._inner.score(name, group)


def spread_tasks(
    launcher: SimLauncher, *, tags: tuple[str, ...], sigma: float, seed: int
) -> SimLauncher:
    """The same launcher, before it launched anything, with tasks spread in every domain."""
    found = {tag: TaskSpread(launcher.workload.domain(tag), sigma=sigma, seed=seed) for tag in tags}
    launcher.workload = RunWorkload(found)
    return launcher
