"""A scripted platform for functions, and a function that does what its task says.

Invariant: a `ScriptedPlatform` needs the event loop and nothing else, so it runs under virtual
time; it does what its script says for the n-th request and counts what it is asked. It raises the
faults that it is given the maker of, and so knows no backend.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollart.core.scoring.document import TaskDocument, TrajectoryDocument, TurnDocument
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Request, decode_request, encode_answer

FUNCTION = "rollart.testing.platform:score_as_told"
VERSION = "0123456789abcdef"

Limits = TypeVar("Limits")


def score_as_told(trajectory: TrajectoryDocument) -> float | Verdict:
    """A reward that the task's payload describes.

    `sleep` seconds pass; then `raise` is raised as text, `exit` ends the process with that code,
    `refuse` is the reason of no verdict, `give` is returned as it is, and `value` is the score.
    """
    told = trajectory.task.payload
    time.sleep(told.get("sleep", 0.0))
    if "exit" in told:
        os._exit(told["exit"])
    if "raise" in told:
        raise ValueError(told["raise"])
    if "refuse" in told:
        return Verdict(score=None, reason=told["refuse"])
    return told["give"] if "give" in told else float(told.get("value", 1.0))


def told_document(identity: str = "lake/t/g0.0.0", **told: Any) -> Mapping[str, Any]:
    """A trajectory that `score_as_told` understands, as JSON."""
    return TrajectoryDocument(
        id=identity,
        run="run",
        policy="policy",
        task=TaskDocument(domain="lake", key="t", payload=told),
        turns=(TurnDocument(observation="a frozen lake", action="left", reward=0.0),),
    ).to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What the platform does with one request.

    Attributes:
        seconds: until it answers or fails.
        fault: the kind of fault, instead of an answer; retry_after_s: that comes with it.
        error: of the function, instead of a verdict.
        score: of the answer; None has `value` in the task's payload.
        key: of the answer, instead of the request's own.
        version: that answers, instead of the platform's.
        data: bytes, instead of an answer.
        stubborn: goes on when it is cancelled, and answers late.
    """

    seconds: float = 0.0
    fault: str = ""
    retry_after_s: float | None = None
    error: str = ""
    score: float | None = None
    key: str | None = None
    version: str | None = None
    data: bytes | None = None
    stubborn: bool = False


ANSWERS = Act()
Play = Callable[[int, float, Request], Act]
"""What is done with the n-th request (from 0), at a loop time, by what it says."""
MakeFault = Callable[[str, str, float | None], Exception]
"""A fault by kind, with its reason and the seconds that the platform asks to wait."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a platform was asked, with loop times, and the most that was under way at once."""

    requests: list[Request] = field(default_factory=list[Request])
    times: list[float] = field(default_factory=list[float])
    under_way: int = 0
    most: int = 0
    cancelled: int = 0


class ScriptedPlatform(Generic[Limits]):
    """A platform that does what `play` says; health requests are answered at once by default."""

    def __init__(
        self,
        limits: Limits,
        fault: MakeFault,
        play: Play = lambda n, now, request: ANSWERS,
        *,
        health: Callable[[float], Act] = lambda now: ANSWERS,
        version: str = VERSION,
    ) -> None:
        self._limits = limits
        self._fault = fault
        self._play = play
        self._health = health
        self._version = version
        self._calls: set[asyncio.Future[None]] = set()
        self.closed = False
        self.seen = Seen()
        self.health_times: list[float] = []

    @property
    def limits(self) -> Limits:
        """As given."""
        return self._limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`."""
        now = asyncio.get_running_loop().time()
        request = decode_request(body)
        if request.is_health:
            self.health_times.append(now)
            act = self._health(now)
        else:
            act = self._play(len(self.seen.requests), now, request)
            self.seen.requests.append(request)
            self.seen.times.append(now)
        self.seen.under_way += 1
        self.seen.most = max(self.seen.most, self.seen.under_way)
        try:
            await self._pass(act, seconds)
        except asyncio.CancelledError:
            self.seen.cancelled += 1
            raise
        finally:
            self.seen.under_way -= 1
        if act.fault:
            raise self._fault(act.fault, "as scripted", act.retry_after_s)
        return self._answer(act, request) if act.data is None else act.data

    async def _pass(self, act: Act, seconds: float) -> None:
        if self.closed:
            raise self._fault("unavailable", "it was closed", None)
        loop = asyncio.get_running_loop()
        ends = loop.time() + act.seconds
        closing: asyncio.Future[None] = loop.create_future()
        self._calls.add(closing)
        try:
            while (left := ends - loop.time()) > 0:
                try:
                    limit = left if act.stubborn else min(left, seconds)
                    await asyncio.wait((closing,), timeout=limit)
                    break
                except asyncio.CancelledError:
                    if not act.stubborn:
                        raise
        finally:
            self._calls.discard(closing)
        if closing.done():
            raise self._fault("unavailable", "it was closed", None)
        if act.seconds > seconds and not act.stubborn:
            raise self._fault("timeout", f"no answer within {seconds:g} s", None)

    def _answer(self, act: Act, request: Request) -> bytes:
        given = Answer(
            key=request.key if act.key is None else act.key,
            function=FUNCTION,
            version=self._version if act.version is None else act.version,
            instance="scripted",
            seconds=act.seconds,
            verdict=None if request.is_health or act.error else self._verdict(act, request),
            error=act.error,
        )
        return encode_answer(given)

    def _verdict(self, act: Act, request: Request) -> Verdict:
        if act.score is not None or request.trajectory is None:
            return Verdict(score=act.score or 0.0)
        told: Mapping[str, Any] = request.trajectory["task"]["payload"]
        return Verdict(score=float(told.get("value", 1.0)))

    async def close(self) -> None:
        """End what is under way."""
        self.closed = True
        for closing in self._calls:
            if not closing.done():
                closing.set_result(None)
