"""The admission loop: one credit and one task make a group begin.

Invariant: a group begins only with a credit in hand. Between `withhold` and `resumed` no credit
comes back, so that nothing starts under weights about to be replaced. No domain has more groups
under way than leaves the others their shares of one batch.
Who waits: the loop, for a credit (unblocked by `give_back` and `resumed`), then for a task.
"""

import asyncio
from collections.abc import Callable, Mapping

from rollart.control.admission import Credits, domain_limits
from rollart.control.task_queue import QueuedTask, TaskQueue
from rollart.core.events import CreditsReturned
from rollart.core.ports import EventSink


class Admitter:
    """Admits groups for the scheduler.

    Args:
        weights: shares of the groups, by domain.
        under_way: how many groups of a domain are being rolled out.
        is_failing: whether a domain's last groups failed, so that its next one is a probe.
        begin: takes a credit's task and rolls its group out.
        failed: told of an error that ends admission.
    """

    def __init__(
        self,
        *,
        tasks: TaskQueue,
        credits: Credits,  # noqa: A002
        weights: Mapping[str, float],
        batch_groups: int,
        under_way: Callable[[str], int],
        is_failing: Callable[[str], bool],
        begin: Callable[[QueuedTask, asyncio.TaskGroup], None],
        failed: Callable[[Exception], None],
        events: EventSink,
    ) -> None:
        self._tasks = tasks
        self._credits = credits
        self._weights = weights
        self._batch_groups = batch_groups
        self._under_way = under_way
        self._is_failing = is_failing
        self._begin = begin
        self._failed = failed
        self._events = events
        self._loop: asyncio.Task[None] | None = None
        self._withheld: int | None = None
        self._limits: Mapping[str, int] = {}
        self.domains_changed()

    @property
    def outstanding(self) -> int:
        """Groups that hold a credit."""
        return self._credits.outstanding

    @property
    def capacity(self) -> int:
        return self._credits.capacity

    @property
    def complete(self) -> bool:
        """Nobody else will begin before a credit, a group's end or a late source's task."""
        return not self._credits.free or not self._tasks.may_come(self._may_admit)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to admit."""
        self._tasks.start(group)
        self._loop = group.create_task(self._admit(group))

    def stop(self) -> None:
        self._tasks.stop()
        if self._loop is not None:
            self._loop.cancel()

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        try:
            while True:
                await self._credits.available()
                entry = await self._tasks.next(self._may_admit)
                self._credits.take()
                self._begin(entry, group)
        except Exception as error:
            self._failed(error)

    def _may_admit(self, domain: str) -> bool:
        limit = self._limits.get(domain, self._credits.capacity)
        return self._under_way(domain) < (1 if self._is_failing(domain) else limit)

    def domains_changed(self) -> None:
        """A domain ended or runs late: the others share what it had."""
        late = self._tasks.late_domains
        sound = [domain for domain in self._tasks.open_domains if domain not in late]
        self._limits = domain_limits(
            {domain: self._weights[domain] for domain in sound},
            batch_groups=self._batch_groups,
            capacity=self._credits.capacity,
        )

    def hold(self, groups: int) -> None:
        """Before `start`: groups restored from a snapshot keep their credits."""
        for _ in range(groups):
            self._credits.take()

    def withhold(self, groups: int) -> None:
        """A batch of so many groups is in hand: their credits, and all that follow, wait."""
        self._withheld = groups

    def give_back(self, groups: int) -> None:
        """Credits of groups that are gone: at once, or at resume if a batch is in hand."""
        if self._withheld is not None:
            self._withheld += groups
            return
        self._credits.give_back(groups)
        self._tasks.wake()
        self._events.emit(
            CreditsReturned(
                groups=groups,
                outstanding=self._credits.outstanding,
                capacity=self._credits.capacity,
            )
        )

    def resumed(self) -> None:
        """Rollout goes on: what was withheld is free."""
        if self._withheld is not None:
            groups, self._withheld = self._withheld, None
            self.give_back(groups)
