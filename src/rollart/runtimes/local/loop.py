"""The event loop of a run on this machine: asyncio's own, which counts its passes.

Invariant: a pass runs what was ready when it began, what sockets brought and timers that were due;
callbacks for its end run when all that has run, and before anything else does.
"""

import asyncio
from collections.abc import Callable


class CountingLoop(asyncio.SelectorEventLoop):
    """`passes` is how many passes have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self._at_end: list[Callable[[], None]] = []

    def at_pass_end(self, callback: Callable[[], None]) -> None:
        """Call it once, when the present pass has ended and before the next begins."""
        self._at_end.append(callback)

    def _run_once(self) -> None:
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue]: not in the stubs
        self.passes += 1
        if self._at_end:
            calls, self._at_end = self._at_end, []
            for call in calls:
                asyncio.Handle(call, (), self)._run()  # which reports what it raises
