"""Which worker of a cluster takes a call: a pure decision."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A living worker, its class of hardware, and how many calls it has at hand."""

    worker: str
    hardware: str
    calls: int


def choose_worker(candidates: Iterable[Candidate], wanted: str | None) -> str | None:
    """The least busy worker of the wanted class, or of any class where that has none living.

    Among equals the first; None when nobody lives.
    """
    living = list(candidates)
    fitting = [one for one in living if wanted is None or one.hardware == wanted] or living
    return min(fitting, key=lambda one: one.calls).worker if fitting else None
