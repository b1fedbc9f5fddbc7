"""A function on Lambda: what it answers, and what each of its errors means."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.aws_lambda import BODY_BYTES
from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Request, decode_answer, encode_answer, encode_request
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.cloud import Cloud
from rollart.testing.loopback.instances import Scaling
from rollart.testing.loopback.lambda_platform import LambdaFunction, lambda_cloud
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer
from rollart.testing.platform import told_document


def url_of(endpoint: str) -> str:
    return f"lambda://judge:prod?region=eu-west-1&endpoint={endpoint}"


def told(key: str = "k", **what: Any) -> bytes:
    return encode_request(Request(key=key, seconds=30, trajectory=told_document(key, **what)))


def answered(reply: HttpReply, seconds: float = 10.0) -> bytes | Exception:
    """What one call against an endpoint that always answers so ends with."""

    async def main() -> bytes | Exception:
        async def answer(request: HttpRequest) -> HttpReply:
            assert request.path == "/2015-03-31/functions/judge/invocations"
            assert request.query == "Qualifier=prod"
            assert request.headers["x-amz-invocation-type"] == "RequestResponse"
            assert "eu-west-1/lambda/aws4_request" in request.headers["authorization"]
            return reply

        async with LoopbackServer(answer) as server:
            platform = open_platform(url_of(server.url), allow_hosts=None)
            try:
                return await platform.call(b"{}", key="k", seconds=seconds)
            except (PlatformFault, ConfigError) as error:
                return error
            finally:
                await platform.close()

    return asyncio.run(main())


def error(status: int, kind: str, **headers: str) -> HttpReply:
    body = json.dumps({"Type": "User", "message": "because of this"}).encode()
    return HttpReply(status=status, headers={"x-amzn-ErrorType": kind, **headers}, body=body)


@pytest.mark.parametrize(
    ("status", "kind", "fault"),
    [
        (400, "InvalidRequestContentException", Fault.REFUSED),
        (400, "InvalidParameterValueException", Fault.REFUSED),
        (400, "ThrottlingException", Fault.THROTTLED),
        (409, "ResourceConflictException", Fault.UNAVAILABLE),
        (413, "RequestTooLargeException", Fault.TOO_LARGE),
        (429, "TooManyRequestsException", Fault.THROTTLED),
        (500, "ServiceException", Fault.UNAVAILABLE),
        (502, "EC2UnexpectedException", Fault.UNAVAILABLE),
        (502, "EC2ThrottledException", Fault.THROTTLED),
        (503, "ServiceUnavailable", Fault.UNAVAILABLE),
        (504, "GatewayTimeout", Fault.TIMEOUT),
    ],
)
def test_an_error_of_the_service_is_a_fault_by_kind(status: int, kind: str, fault: Fault) -> None:
    raised = answered(error(status, kind))
    assert isinstance(raised, PlatformFault)
    assert raised.fault is fault
    assert raised.retry_after_s is None
    assert "because of this" in str(raised)


def test_retry_after_is_honoured() -> None:
    reply = error(429, "TooManyRequestsException", **{"Retry-After": "9"})
    raised = answered(reply)
    assert isinstance(raised, PlatformFault)
    assert raised.retry_after_s == 9.0


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (403, "AccessDeniedException", "AWS_ACCESS_KEY_ID"),
        (403, "ExpiredTokenException", "AWS_SESSION_TOKEN"),
        (403, "InvalidSignatureException", "AWS_SECRET_ACCESS_KEY"),
        (400, "UnrecognizedClientException", "AWS_ACCESS_KEY_ID"),
        (404, "ResourceNotFoundException", "rollart rewards package"),
    ],
)
def test_what_the_user_must_mend_is_a_configuration_error_with_its_remedy(
    status: int, kind: str, says: str
) -> None:
    raised = answered(error(status, kind))
    assert isinstance(raised, ConfigError)
    assert says in str(raised)
    assert "of-no-account" not in str(raised)


def test_a_functions_error_beside_a_200_is_no_answer() -> None:
    for body, fault in (
        (b'{"errorMessage":"no module","errorType":"Runtime.ImportModuleError"}', Fault.CRASHED),
        (b'{"errorMessage":"2026-01-01 id Task timed out after 3.00 seconds"}', Fault.TIMEOUT),
        (b"nonsense", Fault.CRASHED),
        (b"[1]", Fault.CRASHED),
        (encode_answer(answer_of(verdict=Verdict(score=1.0))), Fault.CRASHED),
    ):
        raised = answered(HttpReply(headers={"X-Amz-Function-Error": "Unhandled"}, body=body))
        assert isinstance(raised, PlatformFault)
        assert raised.fault is fault


def test_an_error_of_our_own_handler_is_an_answer_whatever_lambda_says() -> None:
    body = encode_answer(answer_of(error="ValueError: no"))
    reply = HttpReply(headers={"X-Amz-Function-Error": "Unhandled"}, body=body)
    assert answered(reply) == body


def answer_of(*, verdict: Verdict | None = None, error: str = "") -> Answer:
    return Answer(
        key="k", function="judge:score", version="v1", instance="i", verdict=verdict, error=error
    )


def test_missing_credentials_name_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    raised = answered(HttpReply(body=b"{}"))
    assert isinstance(raised, ConfigError)
    assert "AWS_ACCESS_KEY_ID" in str(raised)


def test_a_connection_that_is_lost_or_trickles_is_told_apart() -> None:
    lost = answered(HttpReply(cut=True))
    assert isinstance(lost, PlatformFault)
    assert lost.fault is Fault.LOST
    begin = time.monotonic()
    slow = answered(HttpReply(body=b"{}" * 500, drip_s=0.02), seconds=0.5)
    assert isinstance(slow, PlatformFault)
    assert slow.fault is Fault.TIMEOUT
    assert time.monotonic() - begin < 5


def test_closing_and_cancelling_end_the_threads_that_wait() -> None:
    async def hang(_: HttpRequest) -> HttpReply:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        before = {one.name for one in threading.enumerate()}
        async with LoopbackServer(hang) as server:
            platform = open_platform(url_of(server.url), allow_hosts=None, connections=4)
            calls = [
                asyncio.ensure_future(platform.call(b"{}", key="k", seconds=60)) for _ in range(6)
            ]
            await asyncio.sleep(0.3)
            calls[0].cancel()
            await asyncio.wait((calls[0],))
            await platform.close()
            for call in calls[1:]:
                raised = call.exception()
                assert isinstance(raised, PlatformFault)
                assert raised.fault is Fault.UNAVAILABLE
            async with asyncio.timeout(5):
                await server.unconnected()
            left = {one.name for one in threading.enumerate()} - before
            assert not {name for name in left if name.startswith("lambda")}

    asyncio.run(main())


# What follows runs the real runtime.

Scene = Callable[[Cloud, Platform], Coroutine[Any, Any, None]]


def play(deployed: Path, scaling: Scaling, scene: Scene) -> None:
    async def main() -> None:
        async with lambda_cloud(LambdaFunction(folder=deployed), scaling) as lambdas:
            url = f"lambda://judge?region=eu-west-1&endpoint={lambdas.url}"
            platform = open_platform(url, allow_hosts=None)
            try:
                await scene(lambdas, platform)
            finally:
                await platform.close()
        assert lambdas.instances == 0

    asyncio.run(main())


async def fault_of(platform: Platform, body: bytes, seconds: float = 30.0) -> PlatformFault:
    with pytest.raises(PlatformFault) as raised:
        await platform.call(body, key="k", seconds=seconds)
    return raised.value


@pytest.mark.real
def test_lambda_conforms_around_its_real_runtime(deployed: Path) -> None:
    with Apart("lambda", deployed, Scaling(limit=10, idle_s=60.0)) as lambdas:
        url = f"lambda://judge?region=eu-west-1&endpoint={lambdas.url}"

        async def make() -> Platform:
            return open_platform(url, allow_hosts=None)

        @asynccontextmanager
        async def gone() -> AsyncIterator[None]:
            lambdas.down()
            yield
            lambdas.up()

        trial = PlatformTrial(
            function="judge:score", version="v1", crashes=True, faults={"unavailable": gone}
        )
        asyncio.run(check_platform(make, trial))
        assert lambdas.figures().exited == 2


@pytest.mark.real
def test_instances_come_from_zero_are_limited_and_go_again(deployed: Path) -> None:
    async def scene(lambdas: Cloud, platform: Platform) -> None:
        assert lambdas.instances == 0
        calls = [platform.call(told(sleep=0.5), key="k", seconds=30) for _ in range(4)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        throttled = [end for end in ends if isinstance(end, PlatformFault)]
        assert [end.fault for end in throttled] == [Fault.THROTTLED] * 2
        assert [end.retry_after_s for end in throttled] == [1.0] * 2
        figures = lambdas.figures()
        assert (figures.calls, figures.throttled, figures.cold_starts) == (2, 2, 2)
        assert figures.most == 2
        assert figures.instance_s >= figures.busy_s >= 1.0
        decoded = decode_answer(await platform.call(told(), key="k", seconds=30))
        assert not decoded.cold
        await asyncio.sleep(1.2)
        assert lambdas.instances == 0
        assert lambdas.figures().instance_s < figures.instance_s + 5

    play(deployed, Scaling(limit=2, idle_s=0.5), scene)


@pytest.mark.real
def test_a_functions_own_time_out_and_end_are_told(deployed: Path) -> None:
    async def scene(lambdas: Cloud, platform: Platform) -> None:
        slow = await fault_of(platform, told(sleep=30))
        assert slow.fault is Fault.TIMEOUT
        assert "Task timed out after 3.00 seconds" in str(slow)
        died = await fault_of(platform, told(exit=7))
        assert died.fault is Fault.CRASHED
        assert "exit status 7" in str(died)
        assert lambdas.instances == 0
        assert (lambdas.figures().timed_out, lambdas.figures().exited) == (1, 1)

    play(deployed, Scaling(timeout_s=3.0), scene)


@pytest.mark.real
def test_a_package_that_cannot_be_loaded_says_so(deployed: Path) -> None:
    (deployed / "judge.py").write_text("import no_such_package\n")

    async def scene(_: Cloud, platform: Platform) -> None:
        raised = await fault_of(platform, told())
        assert raised.fault is Fault.CRASHED
        assert "no_such_package" in str(raised)

    play(deployed, Scaling(), scene)


@pytest.mark.real
def test_six_megabytes_go_and_a_byte_more_does_not(deployed: Path) -> None:
    def sized(size: int) -> bytes:
        return told(filling="x" * (size - len(told(filling=""))))

    async def scene(_: Cloud, platform: Platform) -> None:
        assert platform.limits.body_bytes == BODY_BYTES
        answer = decode_answer(await platform.call(sized(BODY_BYTES), key="k", seconds=30))
        assert answer.verdict == Verdict(score=1.0)
        raised = await fault_of(platform, sized(BODY_BYTES + 1))
        assert raised.fault is Fault.TOO_LARGE

    play(deployed, Scaling(), scene)


@pytest.mark.real
def test_another_key_is_refused_by_name(deployed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")

    async def scene(_: Cloud, platform: Platform) -> None:
        with pytest.raises(ConfigError, match="UnrecognizedClientException"):
            await platform.call(told(), key="k", seconds=30)

    play(deployed, Scaling(), scene)
