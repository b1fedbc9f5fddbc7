"""What came of sending samples to a function: pure, of what was measured.

Invariant: a sample agrees when the two verdicts are equal number by number, or when neither has a
score for the same reason by kind; an answer that never came agrees with nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart.core.errors import FailureKind
from rollart.core.scoring.verdict import Verdict

TOLERANCE = 1e-9
_GIVEN = (None, FailureKind.REWARD_NO_VERDICT)  # by the function, on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One sample.

    Attributes:
        seconds: from the call to its outcome; function_s: of them, in the function.
        here: the verdict of the function on this machine; None: it was not asked.
    """

    sample: str
    verdict: Verdict
    seconds: float
    function_s: float | None
    tries: int
    cold: bool
    here: Verdict | None = None

    @property
    def error(self) -> str:
        """Kind of what went wrong, or nothing: a function may decline to score."""
        kind = self.verdict.failure
        return "" if kind in _GIVEN else str(kind)

    @property
    def differs(self) -> str:
        """In what the two verdicts differ, or nothing."""
        return "" if self.here is None else difference(self.verdict, self.here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """All samples of one function at a URL.

    Attributes:
        function, version: as it says itself.
        here, here_version: the function on this machine; empty: none was given.
    """

    url: str
    function: str
    version: str
    here: str
    here_version: str
    seconds: float
    tried: Sequence[Tried]

    @property
    def ok(self) -> bool:
        return not self.errors and not self.disagreements and self.same_version

    @property
    def same_version(self) -> bool:
        return not self.here or self.version == self.here_version

    @property
    def errors(self) -> Mapping[str, int]:
        """How many of each kind."""
        return Counter(one.error for one in self.tried if one.error)

    @property
    def disagreements(self) -> list[Tried]:
        return [one for one in self.tried if one.differs]

    def latency_s(self, quantile: float) -> float | None:
        """Of calls that were answered, cold ones apart while there are others."""
        answered = [one for one in self.tried if one.function_s is not None]
        warm = [one.seconds for one in answered if not one.cold]
        return _quantile(warm or [one.seconds for one in answered], quantile)

    def function_s(self, quantile: float) -> float | None:
        return _quantile(
            [one.function_s for one in self.tried if one.function_s is not None], quantile
        )

    @property
    def cold_s(self) -> list[float]:
        """Seconds of each call that was its instance's first."""
        return [one.seconds for one in self.tried if one.cold]


def difference(there: Verdict, here: Verdict) -> str:
    """In what two verdicts differ, in words; nothing where they agree."""
    if (there.score is None) != (here.score is None) or there.failure != here.failure:
        return f"{_shown(there)} there, {_shown(here)} here"
    numbers = [("score", there.score, here.score)]
    ours, theirs = dict(here.components), dict(there.components)
    if ours.keys() != theirs.keys() or len(here.turns) != len(there.turns):
        return "other components or turns there than here"
    numbers += [(name, theirs[name], ours[name]) for name in ours]
    turns = zip(there.turns, here.turns, strict=True)
    numbers += [(f"turn {index}", left, right) for index, (left, right) in enumerate(turns)]
    for name, left, right in numbers:
        if not _equal(left, right):
            return f"{name} is {left!r} there, {right!r} here"
    return ""


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(verdict: Verdict) -> str:
    if verdict.score is not None:
        return f"score {verdict.score!r}"
    return f"no verdict ({verdict.failure or 'declined'}: {verdict.reason[:200]})"


def _quantile(values: Sequence[float], quantile: float) -> float | None:
    """The nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)] if ordered else None
