"""SampleBuffer: groups that are ready to train.

Invariant: `put` never blocks (admission bounds what can arrive); a batch takes the groups with the
oldest start first and leaves the rest in place; all members of a group leave together.
Who waits: the scheduler's get_batch, for `changed`; unblocked by `put`, `wake` and `evict`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection

from rollart.core.types import Group


class SampleBuffer:
    """Holds groups in order of arrival."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._starts: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def trajectories(self) -> int:
        return sum(len(group.members) for group in self._groups.values())

    @property
    def oldest_start(self) -> int | None:
        """Of all its groups, None without any; as quick for many groups as for few."""
        return min(self._starts, default=None)

    def put(self, group: Group) -> None:
        if group.id in self._groups:
            raise ValueError(f"group {group.id} is in the buffer already")
        self._groups[group.id] = group
        self._starts[group.start_version] += 1
        self.wake()

    def wake(self) -> None:
        """Let waiters look again: something outside the buffer changed."""
        self._changed.set()

    async def changed(self) -> None:
        """Returns at the next change after the last return."""
        await self._changed.wait()
        self._changed.clear()

    def ids(self) -> Collection[int]:
        """Of the groups in it, in order of arrival; a view, not a copy."""
        return self._groups.keys()

    def take(self, count: int, *, in_order: bool = False) -> tuple[Group, ...]:
        """At most `count` groups: oldest start first, earlier arrival among equals.

        With `in_order`, those admitted first, so that speed has no say.
        """
        ordered = sorted(
            self._groups.values(), key=lambda group: group.id if in_order else group.start_version
        )
        taken = tuple(ordered[:count])
        for group in taken:
            self._remove(group)
        return taken

    def evict(self, condemned: Callable[[Group], bool]) -> tuple[Group, ...]:
        """Remove and return the groups for which `condemned` holds."""
        gone = tuple(group for group in self._groups.values() if condemned(group))
        for group in gone:
            self._remove(group)
        return gone

    def _remove(self, group: Group) -> None:
        del self._groups[group.id]
        self._starts[group.start_version] -= 1
        if not self._starts[group.start_version]:
            del self._starts[group.start_version]

    def snapshot(self) -> tuple[Group, ...]:
        return tuple(self._groups.values())

    def restore(self, groups: tuple[Group, ...]) -> None:
        self._groups = {group.id: group for group in groups}
        self._starts = Counter(group.start_version for group in groups)
        self.wake()
