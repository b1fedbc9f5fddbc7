"""A bounded number of places, first come first served.

Invariant: a pass is in the queue, or holds a place, or was given back; a place that comes free goes
to the pass that waits longest, at once.
"""

import asyncio
from collections import deque
from contextlib import suppress

Pass = asyncio.Future[None]
"""Done once it holds a place."""


class Turnstile:
    """`places` at once. Who came early waits least."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[Pass] = deque()

    @property
    def waiting(self) -> int:
        """Passes that hold no place yet."""
        return sum(not one.done() for one in self._queue)

    def enter(self) -> Pass:
        """A pass to await; it must be given back, however its wait ends."""
        one: Pass = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            one.set_result(None)
        else:
            self._queue.append(one)
        return one

    def give_back(self, one: Pass) -> None:
        """The pass is used no more: its place, if it had one, goes to the next."""
        held = one.done() and not one.cancelled() and one.exception() is None
        if not held:
            # It may have been passed over already, once its wait had ended.
            with suppress(ValueError):
                self._queue.remove(one)
            one.cancel()
            return
        while self._queue:
            following = self._queue.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
