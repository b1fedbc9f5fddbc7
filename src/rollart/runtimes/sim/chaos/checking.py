"""Checks are run one by one, so that one that fails itself hides nothing that the others found.

Invariant: an error within a check is told as such, never as a promise that was broken.
"""

from collections.abc import Callable, Iterable
from typing import ParamSpec

CHECK = "check"
"""The word that begins a sentence about a check that failed, in place of one for a promise."""

P = ParamSpec("P")


def told_by(check: Callable[P, Iterable[str]], *args: P.args, **kwargs: P.kwargs) -> list[str]:
    """The sentences of `check`; if it raises, those up to there and one about that."""
    found: list[str] = []
    try:
        for sentence in check(*args, **kwargs):
            found.append(sentence)
    except Exception as error:
        name = getattr(check, "__name__", repr(check)).lstrip("_")
        found.append(f"{CHECK}: {name} raised {error!r}; mend the check, it judged nothing more")
    return found
