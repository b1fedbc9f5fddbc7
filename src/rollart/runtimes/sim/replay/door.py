"""The door of a replay: answers come in when the record says, and not before.

Invariant: what is asked runs when its answer comes in, in one go, and only then; so a part answers
from what the record has next.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rollart.control.door import Asked
from rollart.core.ports import DeltaSink
from rollart.runtimes.sim.loop import VirtualLoop

T = TypeVar("T")


class ReplayDoor:
    """The `Door` port over a record. `shut` when nothing more will come in."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._asked: defaultdict[str, deque[tuple[Asked, Coroutine[Any, Any, Any]]]] = defaultdict(
            deque
        )
        self._requests: dict[str, Callable[[], None]] = {}
        self._shut = False

    async def ask(self, who: str, what: Coroutine[Any, Any, T]) -> T:
        try:
            if self._shut:
                raise asyncio.CancelledError("the replay is over")
            asked = Asked(self._loop.create_future())
            self._asked[who].append((asked, what))
            return await asked.answer(lambda: None)
        finally:
            what.close()

    def sink(self, who: str, sink: DeltaSink) -> DeltaSink:
        return sink

    def expect(self, who: str, tell: Callable[[], None]) -> None:
        """A request was sent; `tell` gives whatever ends it."""
        self._requests[who] = tell

    def waiting(self) -> list[str]:
        """Who waits, commands and trajectories first."""
        return [*(who for who, asked in self._asked.items() if asked), *self._requests]

    def let_in(self, who: str) -> bool:
        """Answer them; False if they had not asked."""
        if self._asked[who]:
            asked, what = self._asked[who].popleft()
            asked.told = True
            if not asked.future.done():
                _give(asked, what)
            return True
        tell = self._requests.pop(who, None)
        if tell is not None:
            tell()
        return tell is not None

    def shut(self) -> None:
        """Whoever is cancelled from now on waits no longer."""
        self._shut = True
        for waiting in self._asked.values():
            for asked, _ in waiting:
                asked.told = True


def _give(asked: Asked, what: Coroutine[Any, Any, Any]) -> None:
    if asked.given_up:
        asked.future.set_result(None)
        return
    try:
        what.send(None)
    except StopIteration as answer:
        asked.future.set_result(answer.value)
    except Exception as error:
        asked.future.set_exception(error)
    else:
        raise AssertionError(f"{what!r} waits, where the record has its answer")
