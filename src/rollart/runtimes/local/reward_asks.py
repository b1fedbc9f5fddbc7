"""In the rewards' child: asking the owner for serverless functions while judging.

Owns the questions without an answer and the jobs that came meanwhile. One thread: either user code
blocks here, or its event loop watches the channel while a question is open.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from rollart.core.errors import FailureKind
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.verdict import Verdict
from rollart.process.serve import ChildPort, Request
from rollart.runtimes.local.codec import Packed, unpack_verdict
from rollart.runtimes.local.lane import ASK

ANSWER = "answer"
"""Name under which the owner answers: (number, verdict)."""


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

    def blocking(self, url: str) -> Callable[[TrajectoryDocument], float | Verdict]:
        """The function at `url` as a plain callable."""

        def call(trajectory: TrajectoryDocument) -> float | Verdict:
            number = self._ask(url, trajectory)
            while number not in self._answers:
                self._take(None)
                self._refuse_when_stopping()
            return self._value(number)

        return call

    def awaited(self, url: str) -> Callable[[TrajectoryDocument], Awaitable[float | Verdict]]:
        """The function at `url` as a coroutine function; calls may overlap."""

        async def call(trajectory: TrajectoryDocument) -> float | Verdict:
            loop = asyncio.get_running_loop()
            number = self._ask(url, trajectory)
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

    def _ask(self, url: str, trajectory: object) -> int:
        if not isinstance(trajectory, TrajectoryDocument):
            raise TypeError(
                f"a serverless function was called with {type(trajectory).__name__}; give it the "
                "trajectory that compute_rewards was given, or a changed copy of it"
            )
        number = next(self._numbers)
        self._open.add(number)
        self._port.event((ASK, number, url, trajectory.to_json()))
        return number

    def _take(self, timeout: float | None) -> None:
        """Read what the owner sent: answers to their questions, jobs to the backlog."""
        for request in self._port.requests(timeout):
            if request.method != ANSWER:
                self._backlog.append(request)
                continue
            number, verdict = request.args
            if number in self._open:  # else whoever asked has been cancelled
                self._open.remove(number)
                self._answers[number] = verdict
        for number, future in self._waiting.items():
            if (number in self._answers or self._port.stopping) and not future.done():
                future.set_result(None)

    def _value(self, number: int) -> float | Verdict:
        verdict = unpack_verdict(self._answers.pop(number))
        if verdict.failure is not None:
            overran = verdict.failure is FailureKind.REWARD_TIMEOUT
            raise CallFailed(verdict.reason, overran=overran)
        if verdict == Verdict(score=verdict.score) and verdict.score is not None:
            return verdict.score
        return verdict

    def _refuse_when_stopping(self) -> None:
        if self._port.stopping:
            raise CallFailed("the run is ending", overran=False)
