"""The task sources of a replay: what was admitted, in that order.

Invariant: a task is given no later than control needs it, and no earlier than would change what it
admits, as far as the record tells.
"""

from collections.abc import Mapping
from typing import NoReturn

from rollart.control.task_queue import PATIENCE_S, STARVED_S, next_domain
from rollart.core.errors import RollartError
from rollart.core.events import (
    Admitted,
    CreditsReturned,
    DomainClosed,
    Event,
    PhaseEnded,
)
from rollart.core.types import (
    Task,
)
from rollart.runtimes.sim.replay.causes import when
from rollart.runtimes.sim.replay.conductor import Ask, Cause, Conductor

SOURCE_FAILED = "its tasks failed: "


class ReplayTasks:
    """Gives a domain's tasks as they were admitted.

    A task was drawn some time before it was admitted. If nothing held it back, the source was as
    slow as the admission; otherwise it is drawn soon, before control would take notice.
    """

    def __init__(self, conductor: Conductor, domain: str, weights: Mapping[str, float]) -> None:
        self._conductor = conductor
        self._domain = domain
        self._weights = weights
        admissions = conductor.record.admissions(domain)
        self._places = [place for place, _ in admissions]
        self._keys = [event.task for _, event in admissions]
        self._times = [conductor.record.events[place].time for place in self._places]
        self._at = 0

    async def next(self) -> Task | None:
        at, self._at = self._at, self._at + 1
        ask = Ask(what=f"a task of {self._domain}")
        if at >= len(self._keys):
            return await self._ended(ask)
        if self._conductor.at_once(self._times[at]):
            return Task(domain=self._domain, key=self._keys[at])
        ask.causes = self._admits
        ask.due = self._conductor.now + (STARVED_S if self._was_slow(at) else PATIENCE_S) / 2
        await self._conductor.ask(ask)
        return Task(domain=self._domain, key=self._keys[at])

    def _admits(self, event: Event) -> Cause:
        if not isinstance(event, Admitted) or event.requeued:
            return Cause.NO
        return when(event.domain == self._domain)

    def _was_slow(self, at: int) -> bool:
        """Whether a group could have been admitted for longer than control waits for a domain."""
        place = self._places[at]
        for stamped in reversed(self._conductor.record.events[:place]):
            event = stamped.event
            if isinstance(event, Admitted | CreditsReturned):
                waited = self._times[at] - stamped.time > PATIENCE_S / 2
                return waited and event.outstanding < event.capacity
        return True

    def _has_credits(self) -> bool:
        """Whether a group may be admitted, by what was last said of credits."""
        for stamped in reversed(self._conductor.outcome.events):
            if isinstance(stamped.event, Admitted | CreditsReturned):
                return stamped.event.outstanding < stamped.event.capacity
        return True

    async def _ended(self, ask: Ask) -> Task | None:
        """No more are recorded: the source failed, has ended, or was not asked in time."""
        record = self._conductor.record
        closed = record.next_of(
            DomainClosed,
            self._conductor.place - 1,
            lambda event: event.domain == self._domain and event.reason.startswith(SOURCE_FAILED),
        )
        if closed is not None:
            ask.causes = lambda event: Cause.ERROR if event is closed[1] else Cause.NO

            def fail() -> NoReturn:
                raise RollartError(closed[1].reason.removeprefix(SOURCE_FAILED))

            return await self._conductor.ask(ask, fail)
        if self._has_ended():
            return None
        ask.last = 2
        ask.may_last = lambda event: isinstance(event, Admitted | PhaseEnded)
        ask.due = self._conductor.now + STARVED_S / 2
        await self._conductor.ask(ask)
        if self._has_credits():
            return None
        return Task(domain=self._domain, key="a task that was never admitted")

    def _has_ended(self) -> bool:
        """Whether the source had no more, or it does not matter.

        Nothing new was admitted any more, or another domain's when it was this one's turn.
        """
        record, place = self._conductor.record, self._conductor.place
        if record.next_of(Admitted, place - 1, lambda event: not event.requeued) is None:
            return True
        drawn = dict.fromkeys(self._weights, 0)
        for at, event in record.of(Admitted):
            if event.requeued:
                continue
            both = [domain for domain in drawn if domain in (event.domain, self._domain)]
            turn = next_domain(drawn, self._weights, both)
            if at >= place and turn != event.domain:
                return True
            drawn[event.domain] += 1
        return False

    def snapshot(self) -> int:
        return self._at

    def restore(self, position: int) -> None:
        self._at = position
