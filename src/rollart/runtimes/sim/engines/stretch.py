"""A run of iterations of one composition: who decodes and how much is prefilled stay the same.

Contexts grow by the same number of tokens each iteration, and an iteration's seconds are affine in
them, so iteration j (from 0) takes `first_s + j * growth_s`. Invariant: ends of iterations are
computed by one formula, `after`, so two questions about one iteration never disagree.
"""

import math
from dataclasses import dataclass, field

from rollart.core.events import Work
from rollart.runtimes.sim.engines.seq import Seq


@dataclass(slots=True, eq=False)
class Stretch:
    """`count` iterations from `start` on, in seconds.

    `chunks` are the sequences that are prefilled and what each gets an iteration, in tokens.
    `ends_at` is the end of the last iteration; cutting brings it forward.
    """

    start: float
    first_s: float
    growth_s: float
    count: int
    work: Work
    chunks: tuple[tuple[Seq, int], ...] = ()
    ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.first_s > 0.0:
            raise ValueError(f"an iteration of {self.first_s} s: it must take some time")
        self.ends_at = self.after(self.count)

    def after(self, iterations: int) -> float:
        """When so many iterations are over."""
        return self.start + iterations * (self.first_s + self.growth_s * (iterations - 1) * 0.5)

    def done(self, now: float) -> int:
        """Iterations that are over at `now`."""
        if now >= self.ends_at:
            return self.count
        count = int(self._iterations(now))
        while count > 0 and self.after(count) > now:
            count -= 1
        while self.after(count + 1) <= now:
            count += 1
        return count

    def cut(self, now: float) -> None:
        """End it with the iteration that is running at `now`; what ends at `now` is over."""
        if now >= self.ends_at:
            return
        count = max(1, math.ceil(self._iterations(now)))
        while count > 1 and self.after(count - 1) >= now:
            count -= 1
        while self.after(count) < now:
            count += 1
        self.count = count
        self.ends_at = self.after(count)

    def _iterations(self, now: float) -> float:
        """How many iterations fit before `now`: the root of a quadratic, up to rounding."""
        passed = now - self.start
        if passed <= 0.0:
            return 0.0
        base = self.first_s - 0.5 * self.growth_s
        root = math.sqrt(max(0.0, base * base + 2.0 * self.growth_s * passed))
        return 2.0 * passed / (base + root)
