"""The task sources of a replay: what was drawn, in that order and when it was.

Invariant: a source gives, ends or fails only when the record says next that it did.
"""

from rollart.core.errors import RollartError
from rollart.core.events import DomainClosed, Event, SourceEnded, TaskDrawn
from rollart.core.types import Task
from rollart.runtimes.sim.replay.causes import when
from rollart.runtimes.sim.replay.comparing import Ask, Cause, Comparing

SOURCE_FAILED = "its tasks failed: "


class ReplayTasks:
    """Gives a domain's tasks as they were drawn."""

    def __init__(self, conductor: Comparing, domain: str) -> None:
        self._conductor = conductor
        self._domain = domain
        self._drawn = 0

    async def next(self) -> Task | None:
        self._drawn += 1
        return await self._conductor.ask(
            Ask(what=f"a task of {self._domain}", causes=self._causes), self._answer
        )

    def _causes(self, event: Event) -> Cause:
        if isinstance(event, DomainClosed) and event.reason.startswith(SOURCE_FAILED):
            return Cause.ERROR if event.domain == self._domain else Cause.NO
        return when(isinstance(event, TaskDrawn | SourceEnded) and event.domain == self._domain)

    def _answer(self) -> Task | None:
        record, after = self._conductor.record, self._conductor.place - 1
        drawn = record.next_of(TaskDrawn, after, lambda event: event.domain == self._domain)
        failed = record.next_of(
            DomainClosed, after, lambda event: self._causes(event) is Cause.ERROR
        )
        if failed is not None and (drawn is None or failed[0].seq < drawn[0].seq):
            raise RollartError(failed[1].reason.removeprefix(SOURCE_FAILED))
        return Task(domain=self._domain, key=drawn[1].task) if drawn is not None else None

    def snapshot(self) -> int:
        return self._drawn

    def restore(self, position: int) -> None:
        self._drawn = position
