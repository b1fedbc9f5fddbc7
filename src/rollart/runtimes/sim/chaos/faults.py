"""Faults: what may go wrong around control, and which of it befalls a run.

Invariant: a plan is drawn from its seed alone, and seeds that follow one another go round every
kind at every step. A fault stands at a moment of a step: so long after the run entered a phase of
it for the n-th time, and at that phase's end at the latest.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rollart.core.config import JobConfig
from rollart.core.events import Phase
from rollart.core.identity import derive_seed


class Step(StrEnum):
    """The six steps of an iteration."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    RECOMPUTE = "recompute"
    TRAIN_STEP = "train_step"


STEP_OF: Mapping[Phase, Step] = {
    Phase.GET_BATCH: Step.GET_BATCH,
    Phase.ABORT_STALE: Step.SUSPEND,
    Phase.SUSPEND: Step.SUSPEND,
    Phase.UPDATE: Step.UPDATE,
    Phase.RESUME: Step.RESUME,
    Phase.RECOMPUTE: Step.RECOMPUTE,
    Phase.TRAIN_STEP: Step.TRAIN_STEP,
    Phase.PUBLISH: Step.TRAIN_STEP,
}

PHASES = Counter(STEP_OF.values())
"""How many phases make up each step."""


class FaultKind(StrEnum):
    """What goes wrong."""

    ENGINE_DIES = "engine dies"
    ENGINE_SLOWS = "engine slows down"
    ENGINE_REVIVES = "engine falls silent, revives"
    ENGINE_RETURNS_LATE = "engine dies, returns late"
    ENV_HANGS = "environment hangs"
    ENV_CRASHES = "environment crashes"
    ENV_GARBAGE = "environment shows garbage"
    REWARD_HANGS = "reward hangs"
    REWARD_REFUSES = "reward says 429"
    REWARD_WRONG = "reward answers wrongly"
    DELTAS_LOST = "result lost"
    DELTAS_LATE = "result late"
    DELTAS_TWICE = "result twice"
    PULL_FAILS_ON_ONE = "weight pull fails on one"
    PULL_FAILS_ON_ALL = "weight pull fails on all"
    STORE_LOST = "weight store lost"
    TRAINER_DIES = "trainer dies"


ENGINE_FAULTS = frozenset(
    {
        FaultKind.ENGINE_DIES,
        FaultKind.ENGINE_SLOWS,
        FaultKind.ENGINE_REVIVES,
        FaultKind.ENGINE_RETURNS_LATE,
    }
)

CELLS = tuple((kind, step) for kind in FaultKind for step in Step)
"""Every kind at every step."""

STRIDE = 41
"""Prime to the number of cells, so that neighbouring seeds differ in kind and all come round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan.

    Attributes:
        nth: it comes when the run enters a phase of the step for the n-th time, from 0.
        delay_s: seconds after that, unless the phase ends before.
        lasts_s: seconds, of what lasts.
        times: operations that meet it, of what is met more than once.
        pick: a number that chooses the victim, and the variant.
    """

    kind: FaultKind
    step: Step
    nth: int
    delay_s: float
    lasts_s: float
    times: int
    pick: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.step} #{self.nth} + {self.delay_s:.2f} s"


def draw_faults(seed: int, job: JobConfig) -> tuple[Fault, ...]:
    """The plan of `seed`: one fault of the cell whose turn it is, and up to three of any."""
    rng = random.Random(derive_seed(seed, "faults"))
    cells = [CELLS[seed * STRIDE % len(CELLS)]]
    cells += [rng.choice(CELLS) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    return tuple(_draw(rng, kind, step, job) for kind, step in cells)


def _draw(rng: random.Random, kind: FaultKind, step: Step, job: JobConfig) -> Fault:
    times = job.timeouts
    longest = {
        FaultKind.ENGINE_SLOWS: 3.0 * times.engine_s,
        FaultKind.ENGINE_REVIVES: 2.5 * times.engine_s,
        FaultKind.ENGINE_RETURNS_LATE: 2.0 * times.engine_s,
        FaultKind.DELTAS_LATE: 2.0 * times.engine_s,
        FaultKind.PULL_FAILS_ON_ONE: 2.0 * times.weights_s,
        FaultKind.PULL_FAILS_ON_ALL: 1.5 * times.weights_s,
    }.get(kind, 0.0)
    return Fault(
        kind=kind,
        step=step,
        nth=rng.randrange(job.run.steps * PHASES[step]),
        delay_s=rng.choice((0.0, rng.uniform(0.0, 0.3), rng.uniform(0.0, 3.0))),
        lasts_s=rng.uniform(0.05, 1.0) * longest,
        times=rng.randint(1, 8) if kind is FaultKind.PULL_FAILS_ON_ONE else rng.randint(1, 3),
        pick=rng.randrange(1 << 16),
    )
