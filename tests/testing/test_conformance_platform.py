"""The platform suite passes a right platform, and names the clause that a wrong one breaks."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.wire import Request, decode_answer, encode_answer, encode_request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import ConformanceError
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.platform import (
    ANSWERS,
    FUNCTION,
    VERSION,
    Act,
    ScriptedPlatform,
    score_as_told,
    told_document,
)

LIMITS = PlatformLimits(name="scripted", body_bytes=4096)


def make_fault(kind: str, reason: str, retry_after_s: float | None) -> PlatformFault:
    return PlatformFault(Fault(kind), reason, retry_after_s=retry_after_s)


def as_told(n: int, time: float, request: Request) -> Act:
    """What `score_as_told` does, in virtual time."""
    assert request.trajectory is not None
    told = request.trajectory["task"]["payload"]
    if "exit" in told:
        return Act(fault="crashed")
    error = f"ValueError: {told['raise']}" if "raise" in told else ""
    return Act(seconds=told.get("sleep", 0.0), error=error)


class Right(ScriptedPlatform[PlatformLimits]):
    def __init__(self) -> None:
        super().__init__(LIMITS, make_fault, as_told)
        self.provoked = ""

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        if self.provoked:
            raise make_fault(self.provoked, "as provoked", 1.0)
        return await super().call(body, key=key, seconds=seconds)


def check(kind: type[Right], **trial: Any) -> None:
    made: list[Right] = []

    async def make() -> Right:
        made.append(kind())
        return made[-1]

    @asynccontextmanager
    async def throttled() -> AsyncIterator[None]:
        made[-1].provoked = "throttled"
        yield
        made[-1].provoked = ""

    wishes = PlatformTrial(
        function=FUNCTION, version=VERSION, crashes=True, faults={"throttled": throttled}, **trial
    )
    run_virtual(check_platform(make, wishes))


def test_the_scripted_platform_conforms() -> None:
    check(Right)


class Inventive(Right):
    """Answers a health request for another."""

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        return await super().call(body.replace(b'"health",', b'"",', 1), key=key, seconds=seconds)


class SharesAnswers(Right):
    """Gives the first answer to all."""

    first: bytes | None = None

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        data = await super().call(body, key=key, seconds=seconds)
        if b"verdict" not in data:
            return data
        self.first = self.first or data
        return self.first


class OneByOne(Right):
    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        async with self.lock:
            return await super().call(body, key=key, seconds=seconds)


class Patient(Right):
    """Waits as long as the function takes."""

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        return await super().call(body, key=key, seconds=1e9)


class BareTimeout(Right):
    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        try:
            return await super().call(body, key=key, seconds=seconds)
        except PlatformFault as fault:
            if fault.fault is Fault.TIMEOUT:
                raise TimeoutError from fault
            raise


class ErrorsAreFaults(Right):
    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        data = await super().call(body, key=key, seconds=seconds)
        if decode_answer(data).error:
            raise make_fault("crashed", "the function raised", None)
        return data


class ErrorsAreZero(Right):
    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        data = await super().call(body, key=key, seconds=seconds)
        return data.replace(b'"error":"ValueError: the judge is out"', b'"verdict":0.0')


class NamesNoCrash(Right):
    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        try:
            return await super().call(body, key=key, seconds=seconds)
        except PlatformFault as fault:
            if fault.fault is Fault.CRASHED:
                raise make_fault("refused", "400", None) from fault
            raise


class NamesNoThrottling(Right):
    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        try:
            return await super().call(body, key=key, seconds=seconds)
        except PlatformFault as fault:
            if fault.fault is Fault.THROTTLED:
                raise make_fault("unavailable", "429", None) from fault
            raise


class KeepsPart(Right):
    """Takes half of what its limit says."""

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        if len(body) > LIMITS.body_bytes / 2:
            raise make_fault("too_large", "413", None)
        return await super().call(body, key=key, seconds=seconds)


class ClosesNothing(Right):
    async def close(self) -> None:
        pass


class LeavesATask(Right):
    async def close(self) -> None:
        if not self.closed:
            self.left = asyncio.ensure_future(asyncio.sleep(1e6))
        await super().close()


class LeavesAThread(Right):
    release = threading.Event()

    async def close(self) -> None:
        if not self.closed:
            threading.Thread(target=self.release.wait, daemon=True).start()
        await super().close()


class LeavesAFile(Right):
    files: list[Any] = []  # noqa: RUF012 - kept on purpose

    async def close(self) -> None:
        if not self.closed:
            self.files.append(open("/dev/null"))  # noqa: SIM115, ASYNC230
        await super().close()


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (Inventive, "a health request is answered"),
        (SharesAnswers, "an answer bears the key of its request"),
        (OneByOne, "calls run at once"),
        (Patient, "ends with the fault timeout"),
        (BareTimeout, "ends with the fault timeout"),
        (ErrorsAreFaults, "an error of the function is an answer"),
        (ErrorsAreZero, "an error of the function is an answer"),
        (NamesNoCrash, "a function that ends its process"),
        (NamesNoThrottling, "the fault throttled is told by its kind"),
        (KeepsPart, "which is within the limit, is answered"),
        (ClosesNothing, "close ends calls under way"),
        (LeavesATask, "after close nothing is left"),
        (LeavesAThread, "after close nothing is left"),
        (LeavesAFile, "after close nothing is left"),
    ],
)
def test_each_broken_platform_fails_its_own_clause(kind: type[Right], clause: str) -> None:
    LeavesAThread.release.clear()
    try:
        with pytest.raises(ConformanceError) as caught:
            check(kind)
        assert clause in caught.value.clause
    finally:
        LeavesAThread.release.set()
        for file in LeavesAFile.files:
            file.close()
        LeavesAFile.files.clear()


def test_what_a_maker_cannot_promise_is_not_checked() -> None:
    check(OneByOne, together=False)


def test_the_function_does_what_its_task_says() -> None:
    handler = Handler(score_as_told, path=FUNCTION, version=VERSION)

    def answered(**told: Any) -> Any:
        request = Request(key="k", trajectory=told_document(**told))
        return decode_answer(handler.handle(encode_request(request)))

    assert answered(value=0.5).verdict.score == 0.5
    assert answered().verdict.score == 1.0
    assert answered(**{"raise": "out"}).error == "ValueError: out"
    refused = answered(refuse="undecided").verdict
    assert (refused.score, refused.reason) == (None, "undecided")
    assert "str" in answered(give="text").error
    assert answered(sleep=0.05).seconds >= 0.05


def test_a_scripted_platform_counts_what_it_is_asked() -> None:
    async def main() -> None:
        platform = ScriptedPlatform(LIMITS, make_fault, lambda n, now, request: ANSWERS)
        body = encode_request(Request(key="k", seconds=1.0, trajectory=told_document(value=2.0)))
        answer = decode_answer(await platform.call(body, key="k", seconds=1.0))
        assert answer == decode_answer(encode_answer(answer))
        assert answer.verdict is not None
        assert answer.verdict.score == 2.0
        assert [request.key for request in platform.seen.requests] == ["k"]
        assert platform.seen.most == 1

    run_virtual(main)
