"""A reward's answer, and what a user's function may return as one.

Invariant: no verdict is not a score of 0; a score is a finite number or it is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, cast

from rollart.core.errors import FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reward's answer. `score` None is "no verdict", which is not 0: it enters no statistic.

    Attributes:
        components: named parts of the score, for reports; they are not added up.
        turns: the reward of each turn, or none of them; without a score, `as_verdict` sums them.
        reason: without a score, why, in words.
        failure: the same by kind.
    """

    score: float | None
    components: tuple[tuple[str, float], ...] = ()
    reason: str = ""
    failure: FailureKind | None = None
    turns: tuple[float, ...] = ()


def as_verdict(value: object, *, turns: int | None = None) -> Verdict:
    """A verdict as a user may return it: a finite number is a score.

    Args:
        turns: of the trajectory, where it is known: a verdict has a reward for each, or none.

    Raises `TypeError` for anything else, `ValueError` for NaN, infinity or other numbers of turns.
    """
    if not isinstance(value, Verdict):
        return Verdict(score=_finite(value))
    given = cast("object", value.components)
    pairs = (
        cast("Mapping[str, Any]", given).items() if isinstance(given, Mapping) else value.components
    )
    if not isinstance(cast("object", value.reason), str):
        raise TypeError(f"a reward returned the reason {value.reason!r}; a reason is text")
    rewards = tuple(_finite(turn) for turn in value.turns)
    if rewards and turns is not None and len(rewards) != turns:
        raise ValueError(
            f"a reward returned {len(rewards)} turns' rewards for {turns} turns; return one for "
            "each, or none"
        )
    score = None if value.score is None else _finite(value.score)
    if score is None and rewards and not value.reason:
        score = math.fsum(rewards)
    return Verdict(
        score=score,
        components=tuple((str(name), _finite(part)) for name, part in pairs),
        reason=value.reason,
        failure=value.failure,
        turns=rewards,
    )


def verdict_to_json(verdict: Verdict) -> Mapping[str, Any]:
    """As the wire has it; the kind of a failure is the caller's business and does not travel."""
    return {
        "score": verdict.score,
        "components": dict(verdict.components),
        "turns": list(verdict.turns),
        "reason": verdict.reason,
    }


def verdict_from_json(given: object) -> Verdict:
    """A verdict as any function may answer it: a number, or an object as `verdict_to_json` makes.

    Raises `TypeError` or `ValueError` naming what is wrong.
    """
    if not isinstance(given, Mapping):
        return as_verdict(given)
    table = cast("Mapping[str, Any]", given)
    unknown = sorted(set(table) - {"score", "components", "turns", "reason"})
    if unknown:
        raise ValueError(
            f"a verdict with {', '.join(map(repr, unknown))}; it has score, components, turns and "
            "reason"
        )
    components: object = table.get("components") or {}
    turns: object = table.get("turns") or ()
    reason, score = table.get("reason", ""), table.get("score")
    if score is None and not turns and not reason:
        raise ValueError("a verdict with neither a score nor a reason for none")
    if not isinstance(components, Mapping) or not isinstance(reason, str):
        raise TypeError("a verdict's components are an object of numbers and its reason is text")
    if not isinstance(turns, list | tuple):
        raise TypeError("a verdict's turns are a list of numbers")
    parts = cast("Mapping[str, Any]", components)
    numbers = cast("Sequence[Any]", turns)
    return as_verdict(
        Verdict(
            score=None if score is None else _finite(score),
            components=tuple((str(name), _finite(part)) for name, part in parts.items()),
            turns=tuple(map(_finite, numbers)),
            reason=reason,
        )
    )


def _finite(value: object) -> float:
    # NumPy's numbers say what they are through float(); text would, too, so it is kept out.
    if isinstance(value, bool | str | bytes) or not isinstance(value, SupportsFloat):
        raise TypeError(
            f"a reward returned {type(value).__name__}; return a float or a rollart Verdict"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a reward returned {number}; return a finite number")
    return number
