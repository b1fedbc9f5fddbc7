"""Advantage of each trajectory against the other trajectories of its group.

Invariant: a member without a score (no verdict, failed, invalid) enters no statistic and gets no
advantage; a group that cannot tell its members apart (one valid member, or scores equal up to
rounding) gives 0, never a quotient of rounding errors. Plain float64 arithmetic, no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rollart.core.types import scores_equal

AdvantageEstimator = Literal["grpo", "dr_grpo", "rloo", "rloo_norm"]
ADVANTAGE_ESTIMATORS: Final[tuple[AdvantageEstimator, ...]] = get_args(AdvantageEstimator)

DEFAULT_EPS: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How an estimator centres a score and whether it divides by the group's spread."""

    leave_one_out: bool
    normalise: bool


_FORMS: Final[dict[AdvantageEstimator, _Form]] = {
    "grpo": _Form(leave_one_out=False, normalise=True),
    "dr_grpo": _Form(leave_one_out=False, normalise=False),
    "rloo": _Form(leave_one_out=True, normalise=False),
    "rloo_norm": _Form(leave_one_out=True, normalise=True),
}


def group_advantages(
    scores: Sequence[float | None],
    estimator: AdvantageEstimator,
    *,
    eps: float = DEFAULT_EPS,
) -> tuple[float | None, ...]:
    """Return one advantage per member of ONE group, in the order of `scores`.

    With m the mean, s the population standard deviation (divided by n, not n - 1) and n the
    number of the members that have a score:

    - `grpo`: (R - m) / (s + eps), DeepSeekMath, arXiv 2402.03300
    - `dr_grpo`: R - m, arXiv 2503.20783
    - `rloo`: R - mean of the others = (R - m) · n / (n - 1), arXiv 2402.14740
    - `rloo_norm`: the same, divided by (s + eps)

    The spread is that of all n members in both normalised forms: the spread of the *others* is
    zero for [1, 0, 0, 0] and its quotient unbounded. Hence |advantage| ≤ √(n - 1) for `grpo` and
    ≤ n / √(n - 1) ≤ n for `rloo_norm`, for any scores and any eps ≥ 0.

    Args:
        scores: score of each member; None for a member without a verdict.
        eps: added to the spread, in units of the score. A value that is not small against the
            usual spread (0.05 for rewards in 0..1) damps groups whose members hardly differ.

    Raises:
        ValueError: a score is not finite, or eps is negative or not finite.
    """
    if not (eps >= 0.0 and math.isfinite(eps)):
        raise ValueError(f"eps is {eps}; the spread's offset must be finite and at least 0")
    valid = [score for score in scores if score is not None]
    for score in valid:
        if not math.isfinite(score):
            raise ValueError(
                f"score {score} is not finite; give None for a member that has no verdict"
            )
    form = _FORMS[estimator]
    n = len(valid)
    if n < 2 or scores_equal(min(valid), max(valid)):
        return tuple(None if score is None else 0.0 for score in scores)
    mean = math.fsum(valid) / n
    factor = n / (n - 1) if form.leave_one_out else 1.0
    if form.normalise:
        factor /= _population_std(valid, mean) + eps
    return tuple(None if score is None else (score - mean) * factor for score in scores)


def _population_std(values: Sequence[float], mean: float) -> float:
    """Two passes: E[x²] - m² loses every digit once the mean is large against the spread."""
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
