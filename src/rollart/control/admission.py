"""Credits: how many groups may be outstanding at once.

Invariant: a group holds one credit from its admission until it is dropped, or until the resume
that follows the batch it was trained in; outstanding never exceeds capacity. Freeing at get_batch
would let groups start under a version about to be replaced.
Who waits: the scheduler's admission loop, for `available`; unblocked by `give_back`.
"""

import asyncio
from collections.abc import Mapping


class Credits:
    """Counts groups. The capacity is (alpha + 1) batches plus declared redundancy."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; at least one group must be admissible")
        self.capacity = capacity
        self.outstanding = 0
        self._free = asyncio.Event()
        self._free.set()

    @property
    def free(self) -> int:
        return self.capacity - self.outstanding

    async def available(self) -> None:
        """Returns when at least one credit is free."""
        await self._free.wait()

    def take(self) -> None:
        if self.outstanding >= self.capacity:
            raise RuntimeError(f"all {self.capacity} credits are taken; await available() first")
        self.outstanding += 1
        if self.outstanding == self.capacity:
            self._free.clear()

    def give_back(self, groups: int) -> None:
        if not 0 <= groups <= self.outstanding:
            raise RuntimeError(f"{groups} credits given back, {self.outstanding} outstanding")
        self.outstanding -= groups
        if self.outstanding < self.capacity:
            self._free.set()


def domain_limits(
    weights: Mapping[str, float], *, batch_groups: int, capacity: int
) -> dict[str, int]:
    """Groups that each domain may have under way: all but the others' shares of one batch.

    A domain that is slow or hangs then never holds every credit, whatever its weight.
    """
    total = sum(weights.values())
    kept = {tag: max(1, int(batch_groups * weight / total)) for tag, weight in weights.items()}
    return {tag: max(1, capacity - sum(kept.values()) + kept[tag]) for tag in weights}
