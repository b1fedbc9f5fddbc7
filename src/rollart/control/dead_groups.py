"""Groups lost in a row, by domain: when a domain has had its chances.

Invariant: one group that can be trained clears its domain's count.
"""

from collections import Counter, defaultdict

from rollart.control.flight import Fate

PROBED_AFTER = 3
"""Failed groups in a row after which a domain has one group at a time under way."""


class DeadGroups:
    """Counts; `most` in a row are borne."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: defaultdict[str, Counter[Fate]] = defaultdict(Counter)

    def is_failing(self, domain: str) -> bool:
        """Whether the last groups all failed, so that the next one is a probe."""
        return self._counts[domain][Fate.INCOMPLETE] >= PROBED_AFTER

    def count(self, domain: str, fate: Fate) -> str | None:
        """Note a group's fate; returns why its domain is to be closed, if it is."""
        lost = self._counts[domain]
        if fate is Fate.READY:
            lost.clear()
            return None
        lost[fate] += 1
        if lost.total() < self._most:
            return None
        counts = ", ".join(f"{count} {fate.value}" for fate, count in lost.items())
        return (
            f"{lost.total()} groups in a row could not be trained ({counts}); look at the reward's "
            "variance and the failures, or raise faults.max_dead_groups"
        )
