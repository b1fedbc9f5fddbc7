"""Which task comes next: re-queued tasks first, then domains by their weights.

Invariant: a task handed out is either requeued or gone; shares follow the weights over any stretch
(the domain furthest below its share is next), so the order is the same in every run. A source that
is slow or fails holds back its own domain only.
Who waits: the admission loop, for a task of a domain that may admit one (unblocked by a source, a
requeue, or `wake`); a feeder, for its source.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rollart.core.events import DomainClosed, Warned
from rollart.core.ports import EventSink, TaskSource
from rollart.core.types import Task

PATIENCE_S = 1.0
"""Seconds that a domain whose turn it is may take to give its task; then the others go first."""

STARVED_S = 30.0
"""Seconds without a task after which a domain is said to starve."""


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
    """Positions of the sources, draws per domain, and the tasks that wait.

    `front` are those that were requeued, `ahead` those drawn from their source ahead of need.
    """

    positions: tuple[tuple[str, int], ...]
    drawn: tuple[tuple[str, int], ...]
    front: tuple[QueuedTask, ...]
    ahead: tuple[Task, ...] = ()


class TaskQueue:
    """Draws from one source a domain, one task ahead of need.

    `on_end` is called when a source has ended or a domain was closed.
    """

    def __init__(
        self, sources: Mapping[str, TaskSource], weights: Mapping[str, float], events: EventSink
    ) -> None:
        self._sources = dict(sources)
        self._weights = dict(weights)
        self._events = events
        self._drawn = dict.fromkeys(sources, 0)
        self._stock: dict[str, Task] = {}
        self._taken = {domain: asyncio.Event() for domain in sources}
        self._ended: set[str] = set()
        self._late: set[str] = set()
        self._feeders: dict[str, asyncio.Task[None]] = {}
        self._front: deque[QueuedTask] = deque()
        self._changed = asyncio.Event()
        self.closed: dict[str, str] = {}
        self.on_end: Callable[[], None] = lambda: None

    @property
    def exhausted(self) -> bool:
        """No task now and none to come, unless one is requeued."""
        return not self._front and not self._stock and len(self._ended) == len(self._sources)

    @property
    def open_domains(self) -> tuple[str, ...]:
        """Those that still have tasks to come."""
        return tuple(domain for domain in self._sources if domain not in self._ended)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to draw."""
        for domain in self._sources:
            if domain not in self._ended:
                self._feeders[domain] = group.create_task(self._feed(domain))

    def stop(self) -> None:
        """Draw no more."""
        for feeder in self._feeders.values():
            feeder.cancel()

    async def _feed(self, domain: str) -> None:
        loop = asyncio.get_running_loop()
        while domain not in self._ended:
            if domain in self._stock:
                self._taken[domain].clear()
                await self._taken[domain].wait()
                continue
            timers = (
                loop.call_later(PATIENCE_S, self._runs_late, domain),
                loop.call_later(STARVED_S, self._starves, domain),
            )
            try:
                task = await self._sources[domain].next()
            except Exception as error:
                self.close(domain, f"its tasks failed: {error}")
                return
            finally:
                for timer in timers:
                    timer.cancel()
                self._late.discard(domain)
            if task is None or domain in self._ended:
                self._end(domain)
                return
            self._stock[domain] = task
            self._changed.set()

    def _runs_late(self, domain: str) -> None:
        self._late.add(domain)
        self._changed.set()

    def _starves(self, domain: str) -> None:
        self._events.emit(
            Warned(
                message=f"domain {domain} starves: its source gave no task for {STARVED_S:g} s; "
                "the other domains go on"
            )
        )

    def close(self, domain: str, reason: str) -> None:
        """Admit no more tasks of `domain`; the others go on. The first reason counts."""
        if domain in self.closed:
            return
        self.closed[domain] = reason
        self._front = deque(entry for entry in self._front if entry.task.domain != domain)
        self._stock.pop(domain, None)
        self._events.emit(DomainClosed(domain=domain, reason=reason))
        self._end(domain)

    def _end(self, domain: str) -> None:
        self._ended.add(domain)
        self._taken[domain].set()
        self._changed.set()
        self.on_end()

    async def next(self, may_admit: Callable[[str], bool] = lambda domain: True) -> QueuedTask:
        """The next task of a domain that may admit one; waits until there is one."""
        while True:
            self._changed.clear()
            entry = self._pick(may_admit)
            if entry is not None:
                return entry
            await self._changed.wait()

    def _pick(self, may_admit: Callable[[str], bool]) -> QueuedTask | None:
        for at, entry in enumerate(self._front):
            if may_admit(entry.task.domain):
                del self._front[at]
                return entry
        out = self._ended | self._late
        candidates = [
            domain
            for domain in self._sources
            if (domain in self._stock or domain not in out) and may_admit(domain)
        ]
        domain = next_domain(self._drawn, self._weights, candidates)
        if domain is None or domain not in self._stock:
            return None
        self._drawn[domain] += 1
        self._taken[domain].set()
        return QueuedTask(task=self._stock.pop(domain))

    def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
        """Put a task back in front; those requeued earlier stay ahead of it."""
        if entry.task.domain not in self.closed:
            self._front.append(entry.again(failed=failed))
            self._changed.set()

    def wake(self) -> None:
        """Let `next` look again: a domain may admit what it might not before."""
        self._changed.set()

    def snapshot(self) -> TaskQueueSnapshot:
        return TaskQueueSnapshot(
            positions=tuple((tag, source.snapshot()) for tag, source in self._sources.items()),
            drawn=tuple(self._drawn.items()),
            front=tuple(self._front),
            ahead=tuple(self._stock.values()),
        )

    def restore(self, snapshot: TaskQueueSnapshot) -> None:
        """Before `start`."""
        for tag, position in snapshot.positions:
            self._sources[tag].restore(position)
        self._drawn = dict(snapshot.drawn)
        self._front = deque(snapshot.front)
        self._stock = {task.domain: task for task in snapshot.ahead}
        self._ended.clear()
        self._changed.set()


def next_domain(
    drawn: Mapping[str, int], weights: Mapping[str, float], candidates: list[str]
) -> str | None:
    """The candidate furthest below its share; the first among equals."""
    return min(candidates, key=lambda domain: (drawn[domain] + 1) / weights[domain], default=None)
