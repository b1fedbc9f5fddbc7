"""Which task comes next: re-queued tasks first, then domains by their weights.

Invariant: a task handed out is either requeued or gone; shares follow the weights over any stretch
(the domain furthest below its share is next), so the order is the same in every run.
Who waits: the admission loop, for a source's next task or, when all have ended, for a requeue.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rollart.core.ports import TaskSource
from rollart.core.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task with its history: how often it was requeued, and how often for failures."""

    task: Task
    requeues: int = 0
    failures: int = 0

    def again(self, *, failed: bool = False) -> "QueuedTask":
        return replace(self, requeues=self.requeues + 1, failures=self.failures + failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueSnapshot:
    """Positions of the sources, draws per domain, and the tasks waiting at the front."""

    positions: tuple[tuple[str, int], ...]
    drawn: tuple[tuple[str, int], ...]
    front: tuple[QueuedTask, ...]


class TaskQueue:
    """Draws from one source a domain.

    `on_end` is called when a source turns out to have ended.
    """

    def __init__(self, sources: Mapping[str, TaskSource], weights: Mapping[str, float]) -> None:
        self._sources = dict(sources)
        self._weights = dict(weights)
        self._drawn = dict.fromkeys(sources, 0)
        self._ended: set[str] = set()
        self._front: deque[QueuedTask] = deque()
        self._requeued = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None

    @property
    def exhausted(self) -> bool:
        """No task now and none to come, unless one is requeued."""
        return not self._front and len(self._ended) == len(self._sources)

    async def next(self) -> QueuedTask:
        """The next task; waits for a requeue when every source has ended."""
        while True:
            if self._front:
                return self._front.popleft()
            domain = next_domain(self._drawn, self._weights, self._ended)
            if domain is None:
                self._requeued.clear()
                await self._requeued.wait()
                continue
            task = await self._sources[domain].next()
            if task is None:
                self._ended.add(domain)
                self.on_end()
                continue
            self._drawn[domain] += 1
            return QueuedTask(task=task)

    def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
        """Put a task back in front; those requeued earlier stay ahead of it."""
        self._front.append(entry.again(failed=failed))
        self._requeued.set()

    def snapshot(self) -> TaskQueueSnapshot:
        return TaskQueueSnapshot(
            positions=tuple((tag, source.snapshot()) for tag, source in self._sources.items()),
            drawn=tuple(self._drawn.items()),
            front=tuple(self._front),
        )

    def restore(self, snapshot: TaskQueueSnapshot) -> None:
        for tag, position in snapshot.positions:
            self._sources[tag].restore(position)
        self._drawn = dict(snapshot.drawn)
        self._front = deque(snapshot.front)
        self._ended.clear()
        self._requeued.set()


def next_domain(
    drawn: Mapping[str, int], weights: Mapping[str, float], ended: set[str]
) -> str | None:
    """The domain furthest below its share; the first listed among equals."""
    live = [domain for domain in drawn if domain not in ended]
    return min(live, key=lambda domain: (drawn[domain] + 1) / weights[domain], default=None)
