"""Which task comes next: re-queued tasks first, then domains by their weights.

Invariant: a task handed out is either requeued or gone; shares follow the weights (the domain
furthest below its share is next), so the order is the same in every run. A domain whose source
takes over `PATIENCE_S` for a task is passed over until it gives one, and one that fails is closed.
A task that failed comes again in its own domain's turn: failures take nothing from other domains.
Who waits: the admission loop, for a task of a domain that may admit one (unblocked by a source, a
requeue, or `wake`); a feeder, for its source.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rollart.core.events import DomainClosed, SourceEnded, TaskDrawn, Warned
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

    `front` are those that were requeued, `ahead` those drawn from their source ahead of need,
    `closed` the domains that admit no more, with why.
    """

    positions: tuple[tuple[str, int], ...]
    drawn: tuple[tuple[str, int], ...]
    front: tuple[QueuedTask, ...]
    ahead: tuple[Task, ...] = ()
    closed: tuple[tuple[str, str], ...] = ()


class TaskQueue:
    """Draws from one source a domain, one task ahead of need.

    `on_change` is called when a source has ended or runs late, or a domain was closed.
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
        self._again: dict[str, deque[QueuedTask]] = {domain: deque() for domain in sources}
        self._told_late: set[str] = set()
        self._changed = asyncio.Event()
        self.closed: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None

    @property
    def exhausted(self) -> bool:
        """No task now and none to come, unless one is requeued."""
        waiting = self._front or self._stock or any(self._again.values())
        return not waiting and len(self._ended) == len(self._sources)

    @property
    def open_domains(self) -> tuple[str, ...]:
        """Those that still have tasks to come."""
        return tuple(domain for domain in self._sources if domain not in self._ended)

    @property
    def late_domains(self) -> tuple[str, ...]:
        """Those whose source keeps them waiting."""
        return tuple(domain for domain in self._sources if domain in self._late)

    def may_come(self, may_admit: Callable[[str], bool]) -> bool:
        """Whether a task may be handed out without waiting for a late source or a requeue."""
        return any(
            may_admit(domain)
            for domain in self._sources
            if domain not in self._ended | self._late or self._has_task(domain)
        )

    def _has_task(self, domain: str) -> bool:
        front = any(entry.task.domain == domain for entry in self._front)
        return front or domain in self._stock or bool(self._again[domain])

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
                self._in_time(domain)
            if domain in self._ended:
                return
            if task is None:
                self._events.emit(SourceEnded(domain=domain))
                self._end(domain)
                return
            self._events.emit(TaskDrawn(domain=domain, task=task.key))
            self._stock[domain] = task
            self._changed.set()

    def _runs_late(self, domain: str) -> None:
        self._late.add(domain)
        if domain not in self._told_late:
            self._told_late.add(domain)
            self._events.emit(
                Warned(
                    message=f"domain {domain} took over {PATIENCE_S:g} s to give a task: the "
                    "others go first meanwhile, and its share may fall below its weight"
                )
            )
        self._changed.set()
        self.on_change()

    def _in_time(self, domain: str) -> None:
        if domain in self._late:
            self._late.discard(domain)
            self.on_change()

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
        self._again[domain].clear()
        self._events.emit(DomainClosed(domain=domain, reason=reason))
        self._end(domain)

    def _end(self, domain: str) -> None:
        self._ended.add(domain)
        self._taken[domain].set()
        self._changed.set()
        self.on_change()

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
            if (self._has_task(domain) or domain not in out) and may_admit(domain)
        ]
        domain = next_domain(self._drawn, self._weights, candidates)
        if domain is None or not self._has_task(domain):
            return None
        self._drawn[domain] += 1
        if self._again[domain]:
            return self._again[domain].popleft()
        self._taken[domain].set()
        return QueuedTask(task=self._stock.pop(domain))

    def requeue(self, entry: QueuedTask, *, failed: bool = False) -> None:
        """Put a task back in front; those requeued earlier stay ahead of it.

        One that failed goes to the front of its own domain only.
        """
        domain = entry.task.domain
        if domain not in self.closed:
            queue = self._again[domain] if failed else self._front
            queue.append(entry.again(failed=failed))
            self._changed.set()

    def wake(self) -> None:
        """Let `next` look again: a domain may admit what it might not before."""
        self._changed.set()

    def snapshot(self) -> TaskQueueSnapshot:
        return TaskQueueSnapshot(
            positions=tuple((tag, source.snapshot()) for tag, source in self._sources.items()),
            drawn=tuple(self._drawn.items()),
            front=(*self._front, *(entry for queue in self._again.values() for entry in queue)),
            closed=tuple(self.closed.items()),
            ahead=tuple(self._stock.values()),
        )

    def restore(self, snapshot: TaskQueueSnapshot) -> None:
        """Before `start`."""
        for tag, position in snapshot.positions:
            self._sources[tag].restore(position)
        self._drawn = dict(snapshot.drawn)
        self._front = deque(snapshot.front)
        self._stock = {task.domain: task for task in snapshot.ahead}
        self.closed = dict(snapshot.closed)
        self._ended = set(self.closed)
        self._changed.set()


def next_domain(
    drawn: Mapping[str, int], weights: Mapping[str, float], candidates: list[str]
) -> str | None:
    """The candidate furthest below its share; the first among equals."""
    return min(candidates, key=lambda domain: (drawn[domain] + 1) / weights[domain], default=None)
