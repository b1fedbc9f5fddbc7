"""Scripts: how long things take and what goes wrong, drawn from seeds by name.

Invariant: the same (seed, name) gives the same draw in every process, whatever was drawn before.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rollart.core.identity import derive_seed


@dataclass(frozen=True, slots=True)
class Draw:
    """Named random draws."""

    seed: int

    def rng(self, *name: str | int) -> random.Random:
        return random.Random(derive_seed(self.seed, *name))

    def chance(self, probability: float, *name: str | int) -> bool:
        return probability > 0 and self.rng(*name).random() < probability

    def seconds(self, span: tuple[float, float], *name: str | int) -> float:
        """Uniform over `span`."""
        return self.rng(*name).uniform(*span)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens in a scripted run. Spans are (least, most) seconds, rates are per operation.

    `engine_deaths` and `update_failures` list (engine, which occurrence): the n-th token step
    after which the engine dies, the n-th update that it refuses. The fields ending in `_for` name
    tasks by key to which it always happens; `slow_tasks` multiplies their environment's times.
    """

    seed: int = 0
    turns: tuple[int, int] = (1, 4)
    tokens_per_turn: tuple[int, int] = (1, 6)
    observation_tokens: int = 5
    token_s: tuple[float, float] = (0.01, 0.05)
    reset_s: tuple[float, float] = (0.0, 0.5)
    step_s: tuple[float, float] = (0.0, 0.3)
    reward_s: tuple[float, float] = (0.0, 0.2)
    train_s: tuple[float, float] = (0.5, 2.0)
    publish_s: tuple[float, float] = (0.0, 0.2)
    update_s: tuple[float, float] = (0.0, 0.3)
    reset_fails: float = 0.0
    step_hangs: float = 0.0
    step_fails: float = 0.0
    reward_hangs: float = 0.0
    reward_refuses: float = 0.0
    equal_scores: float = 0.0
    engine_deaths: Sequence[tuple[str, int]] = ()
    update_failures: Sequence[tuple[str, int]] = ()
    reset_fails_for: Collection[str] = ()
    step_hangs_for: Collection[str] = ()
    reward_hangs_for: Collection[str] = ()
    reward_refuses_for: Collection[str] = ()
    slow_tasks: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def draw(self) -> Draw:
        return Draw(self.seed)
