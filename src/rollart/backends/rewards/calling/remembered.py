"""One answer a key: calls of one key share the one under way, and what it gave is kept.

Invariant: of all answers to one key exactly one is accepted, while it is among the latest
`KEPT` keys; a call that ends without one leaves its place to another that waits.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from rollart.backends.rewards.calling.records import Outcome

KEPT = 4096  # verdicts of the latest keys


class Leading:
    """The one call of its key that asks the platform; `outcome` is how it ended."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Remembered:
    """Calls under way and finished verdicts of one function, by key."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._finished: OrderedDict[str, Outcome] = OrderedDict()
        self._under_way: dict[str, Leading] = {}

    def finished(self, key: str) -> Outcome | None:
        """The outcome with this key's verdict, if it is kept."""
        found = self._finished.get(key)
        if found is not None:
            self._finished.move_to_end(key)
        return found

    def under_way(self, key: str) -> Leading | None:
        """The call of this key that is under way."""
        return self._under_way.get(key)

    @contextmanager
    def lead(self, key: str) -> Iterator[Leading]:
        """Be the call of this key that is under way; set its outcome before leaving."""
        leading = self._under_way[key] = Leading()
        try:
            yield leading
        finally:
            del self._under_way[key]
            leading.ended.set_result(None)

    def keep(self, key: str, outcome: Outcome) -> None:
        """This is the key's verdict."""
        self._finished[key] = outcome
        if len(self._finished) > self._kept:
            self._finished.popitem(last=False)
