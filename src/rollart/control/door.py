"""The door: what the world answers comes in to control at the end of a pass of the event loop.

Invariant: between two of its own steps control learns something only here, in one order, which
`Answered` tells; so with the same answers in the same passes it decides the same. Who is cancelled
while it waits goes on when what it had asked has let go, and hears nothing else of it.
Who waits: whoever asks, for its answer (unblocked by the part that is asked, and the pass's end).
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from rollart.core.events import Answered
from rollart.core.ports import DeltaSink, EventSink
from rollart.core.types import TokenDelta

T = TypeVar("T")

STOP = "stop"
"""Who is answered when somebody outside asks the run to end."""


class PassLoop(Protocol):
    """An event loop that counts its passes; each runs what was ready when it began.

    `passes` is how many have ended.
    """

    passes: int

    def at_pass_end(self, callback: Callable[[], None]) -> None:
        """Call it once, when the present pass has ended and before the next begins."""
        ...


class Door(Protocol):
    """The way in. Names tell who is answered: a trajectory, a request, a worker's command."""

    async def ask(self, who: str, what: Coroutine[Any, Any, T]) -> T:
        """The outcome of `what`, at the end of the pass in which it ended."""
        ...

    def sink(self, who: str, sink: DeltaSink) -> DeltaSink:
        """A sink through which whatever ends the request comes in by the door.

        Tokens before that come straight in: nothing is decided by them.
        """
        ...


class Asked:
    """One ask: the future that its asker waits on, and whether its answer has come in."""

    __slots__ = ("future", "given_up", "told")

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self.future = future
        self.told = False
        self.given_up = False

    async def answer(self, let_go: Callable[[], object]) -> Any:
        """Waits for it; who is cancelled has `let_go` called and waits for that to be told."""
        try:
            return await self.future
        except asyncio.CancelledError:
            if not self.told:
                self.given_up = True
                let_go()
            while not self.told:
                self.future = asyncio.get_running_loop().create_future()
                with suppress(asyncio.CancelledError):
                    await self.future
            raise


class OpenDoor:
    """The door of a run on a real machine, which emits in what order it was used.

    Args:
        loop: the running loop.
    """

    def __init__(self, loop: PassLoop, events: EventSink) -> None:
        self._loop = loop
        self._events = events
        self._began = loop.passes
        self._tasks = asyncio.get_running_loop()
        self._came: list[tuple[str, Callable[[], object]]] = []

    async def ask(self, who: str, what: Coroutine[Any, Any, T]) -> T:
        asked = Asked(self._tasks.create_future())
        task = self._tasks.create_task(what)
        task.add_done_callback(lambda done: self.come(who, partial(_give, asked, done)))
        return await asked.answer(task.cancel)

    def sink(self, who: str, sink: DeltaSink) -> DeltaSink:
        def take(delta: TokenDelta) -> None:
            if ends(delta):
                self.come(who, partial(sink, delta))
            else:
                sink(delta)

        return take

    def come(self, who: str, give: Callable[[], object]) -> None:
        """Have `give` called at the end of this pass, after what came in it before."""
        if not self._came:
            self._loop.at_pass_end(self._let_in)
        self._came.append((who, give))

    def _let_in(self) -> None:
        came, self._came = self._came, []
        self._events.emit(
            Answered(loop_pass=self._loop.passes - self._began, who=tuple(who for who, _ in came))
        )
        for _, give in came:
            give()


def ends(delta: TokenDelta) -> bool:
    """Whether the request is over with it, well or not."""
    malformed = len(delta.ids) != len(delta.logprobs)
    return delta.finish is not None or delta.refused is not None or malformed


def _give(asked: Asked, done: "asyncio.Task[Any]") -> None:
    """Hand an outcome over. One that nobody waits for any more is looked at all the same."""
    asked.told = True
    error = None if done.cancelled() else done.exception()
    if asked.future.done():
        return
    if asked.given_up:
        asked.future.set_result(None)
    elif done.cancelled():
        asked.future.cancel()
    elif error is not None:
        asked.future.set_exception(error)
    else:
        asked.future.set_result(done.result())
