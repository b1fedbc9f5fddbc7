"""Tasks by number.

Invariant: the position alone says what comes next; held-out tasks have names of their own.
"""

from rollart.core.types import Task


class NumberedTasks:
    """The `TaskSource` port of one domain; endless unless given a count."""

    def __init__(self, domain: str, count: int | None = None) -> None:
        self._domain = domain
        self._count = count
        self._at = 0

    async def next(self) -> Task | None:
        """The next one; None when all `count` were given."""
        if self._count is not None and self._at >= self._count:
            return None
        self._at += 1
        return Task(domain=self._domain, key=f"task-{self._at - 1}")

    def snapshot(self) -> int:
        return self._at

    def restore(self, position: int) -> None:
        self._at = position


def heldout_tasks(domain: str, count: int) -> tuple[Task, ...]:
    """So many that training never meets."""
    return tuple(Task(domain=domain, key=f"heldout-{number}") for number in range(count))
