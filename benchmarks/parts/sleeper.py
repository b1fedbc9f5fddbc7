"""Environments that only take their time: they sleep, and cost no processor."""

import math
import random
import time

from rollart import StepResult, Task, as_observation


class Sleeper:
    """Sleeps in each reset and step, then answers with a fixed number of words.

    Options:
        turns: steps an episode.
        words: words of each observation.
        mean_s: mean seconds of a reset and of a step.
        sigma: of their lognormal distribution; 0 makes them all equal.
        slow_resets: share of resets that take `slow_factor` times as long.

    The score is drawn, whatever the agent says, so that every group has a signal to train on.
    """

    def __init__(
        self,
        *,
        turns: int,
        words: int,
        mean_s: float,
        sigma: float = 0.0,
        slow_resets: float = 0.0,
        slow_factor: float = 20.0,
    ) -> None:
        self.turns, self.mean_s, self.sigma = turns, mean_s, sigma
        self.slow_resets, self.slow_factor = slow_resets, slow_factor
        self._observation = " ".join(f"w{number % 128}" for number in range(words))

    def reset(self, task: Task, seed: int) -> str:
        self.rng = random.Random(seed)
        self.done = 0
        slow = self.rng.random() < self.slow_resets
        time.sleep(self._latency() * (self.slow_factor if slow else 1.0))
        return self._observation

    def step(self, action: str) -> StepResult:
        self.done += 1
        time.sleep(self._latency())
        return StepResult(
            observation=as_observation(self._observation),
            reward=self._reward() if self.done == self.turns else 0.0,
            done=self.done == self.turns,
        )

    def _reward(self) -> float:
        return self.rng.random()

    def _latency(self) -> float:
        """Seconds; the mean of exp(mu + sigma z) is exp(mu + sigma^2 / 2)."""
        if not self.mean_s:
            return 0.0
        return self.rng.lognormvariate(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma)


class Straggler(Sleeper):
    """A `Sleeper` of which a share is slow, and is slow because it tries harder.

    Options beside those of `Sleeper`:
        long_share: share of episodes that take `long_factor` times as long.
        success_long, success_short: how likely each kind succeeds; the score is 1 or 0.
    """

    def __init__(
        self,
        *,
        long_share: float = 0.5,
        long_factor: float = 3.0,
        success_long: float = 0.6,
        success_short: float = 0.2,
        **options: float,
    ) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self.long_share, self.long_factor = long_share, long_factor
        self.success_long, self.success_short = success_long, success_short
        self.long = False

    def reset(self, task: Task, seed: int) -> str:
        self.long = random.Random(f"long {seed}").random() < self.long_share
        return super().reset(task, seed)

    def _reward(self) -> float:
        success = self.success_long if self.long else self.success_short
        return float(self.rng.random() < success)

    def _latency(self) -> float:
        return super()._latency() * (self.long_factor if self.long else 1.0)
