"""In the rewards' child: asking the owner for serverless functions while judging.

Owns the questions without an answer and the jobs that came meanwhile. One thread: either user code
blocks here, or its event loop watches the channel while a question is open.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rollart.process.serve import ChildPort, Request
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.lane import ASK
from rollart.runtimes.local.values import pack_value, unpack_value

ANSWER = "answer"
"""Name under which the owner answers: (number, ok, value or reason, overran)."""


class CallFailed(Exception):
    """A serverless function gave no value; the message says why.

    Attributes:
        overran: it took too long and was killed.
    """

    def __init__(self, reason: str, *, overran: bool) -> None:
        super().__init__(reason)
        self.overran = overran


class Asks:
    """Questions to the owner, and the jobs between their answers."""

    def __init__(self, port: ChildPort) -> None:
        self._port = port
        self._numbers = itertools.count(1)
        self._backlog: deque[Request] = deque()
        self._open: set[int] = set()
        self._answers: dict[int, Packed] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def jobs(self) -> Iterator[Request]:
        """Jobs in the order they were given, until the owner stops this child."""
        while not self._port.stopping:
            if self._backlog:
                yield self._backlog.popleft()
            else:
                self._take(None)

    def blocking(self, url: str) -> Callable[..., Any]:
        """The function at `url` as a plain callable."""

        def call(*args: Any, **kwargs: Any) -> Any:
            number = self._ask(url, args, kwargs)
            while number not in self._answers:
                self._take(None)
                self._refuse_when_stopping()
            return self._value(number)

        return call

    def awaited(self, url: str) -> Callable[..., Any]:
        """The function at `url` as a coroutine function; calls may overlap."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            loop = asyncio.get_running_loop()
            number = self._ask(url, args, kwargs)
            self._waiting[number] = loop.create_future()
            if len(self._waiting) == 1:
                loop.add_reader(self._port.fileno(), self._take, 0.0)
            try:
                self._take(0.0)  # it may have come while the last question's answer was read
                await self._waiting[number]
            finally:
                del self._waiting[number]
                self._open.discard(number)
                if not self._waiting:
                    loop.remove_reader(self._port.fileno())
            self._refuse_when_stopping()
            return self._value(number)

        return call

    def _ask(self, url: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        self._open.add(number)
        self._port.event((ASK, number, url, pack_value(args), pack_value(kwargs)))
        return number

    def _take(self, timeout: float | None) -> None:
        """Read what the owner sent: answers to their questions, jobs to the backlog."""
        for request in self._port.requests(timeout):
            if request.method != ANSWER:
                self._backlog.append(request)
                continue
            number, *outcome = request.args
            if number in self._open:  # else whoever asked has been cancelled
                self._open.remove(number)
                self._answers[number] = outcome
        for number, future in self._waiting.items():
            if (number in self._answers or self._port.stopping) and not future.done():
                future.set_result(None)

    def _value(self, number: int) -> Any:
        ok, value, overran = self._answers.pop(number)
        if not ok:
            raise CallFailed(value, overran=overran)
        return unpack_value(value)

    def _refuse_when_stopping(self) -> None:
        if self._port.stopping:
            raise CallFailed("the run is ending", overran=False)
