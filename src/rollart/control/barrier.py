"""The turn barrier: lockstep rollout, as batched environment interaction has it.

Invariant: no one generates, steps or is judged before everyone is ready to; rewards are asked when
nobody plays any more. Who leaves, for whatever reason, holds nobody back.
Who waits: a trajectory, for all the others (unblocked by the last of them to arrive or to leave;
bounded by the episode's deadline).
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Pace(Protocol):
    """When one trajectory may go on."""

    async def turn(self) -> None:
        """Before each generation, and before each step of the environment."""
        ...

    async def verdict(self) -> None:
        """Before the reward is asked."""
        ...


class FreePace:
    """Each trajectory moves on its own."""

    async def turn(self) -> None:
        return

    async def verdict(self) -> None:
        return


FREE = FreePace()


class _At(Enum):
    WORK = "work"
    TURN = "turn"
    VERDICT = "verdict"


class TurnBarrier:
    """Holds places, one a member of a group, whatever attempt it is at.

    Args:
        complete: whether everyone who will take part in this round has a place. Call `check` when
            its answer may have become true.
    """

    def __init__(self, complete: Callable[[], bool]) -> None:
        self._complete = complete
        self._places: dict[Hashable, _At] = {}
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}

    def join(self, place: Hashable) -> Pace:
        """Take part from now on."""
        self._places[place] = _At.WORK
        return _Place(barrier=self, place=place)

    def leave(self, place: Hashable) -> None:
        """Take part no more. Leaving twice is fine."""
        if self._places.pop(place, None) is not None:
            self.check()

    async def wait(self, place: Hashable, at: _At) -> None:
        if place not in self._places:
            return
        self._places[place] = at
        ready = asyncio.get_running_loop().create_future()
        self._waiting[place] = ready
        self.check()
        try:
            await ready
        finally:
            self._waiting.pop(place, None)
            if place in self._places:
                self._places[place] = _At.WORK

    def check(self) -> None:
        """Let those go on for whom all others wait: turns first, verdicts when nobody plays."""
        if not self._complete() or _At.WORK in self._places.values():
            return
        playing = [place for place, at in self._places.items() if at is _At.TURN]
        for place in playing or list(self._places):
            self._places[place] = _At.WORK
            ready = self._waiting[place]
            if not ready.done():
                ready.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    barrier: TurnBarrier
    place: Hashable

    async def turn(self) -> None:
        await self.barrier.wait(self.place, _At.TURN)

    async def verdict(self) -> None:
        await self.barrier.wait(self.place, _At.VERDICT)
