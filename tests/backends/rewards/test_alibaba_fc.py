"""A function on Function Compute: what it answers, and what each of its errors means."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Answer, Request, encode_answer, encode_request
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.cloud import Cloud
from rollart.testing.loopback.fc_platform import (
    REQUEST_BYTES,
    CustomRuntime,
    fc_cloud,
)
from rollart.testing.loopback.instances import Scaling
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer
from rollart.testing.platform import told_document


def told(key: str = "k", **what: Any) -> bytes:
    return encode_request(Request(key=key, seconds=30, trajectory=told_document(key, **what)))


def answered(reply: HttpReply, seconds: float = 10.0) -> bytes | Exception:
    """What one call against an endpoint that always answers so ends with."""

    async def main() -> bytes | Exception:
        async def answer(request: HttpRequest) -> HttpReply:
            assert request.path == "/2023-03-30/functions/judge/invocations"
            assert request.query == "qualifier=prod"
            assert request.headers["x-fc-invocation-type"] == "Sync"
            assert request.headers["authorization"].startswith("ACS3-HMAC-SHA256 Credential=LTAI")
            assert request.body == b"{}"
            return reply

        async with LoopbackServer(answer) as server:
            url = f"fc://judge?qualifier=prod&endpoint={server.address}"
            platform = open_platform(url, allow_hosts=None)
            try:
                return await platform.call(b"{}", key="k", seconds=seconds)
            except (PlatformFault, ConfigError) as error:
                return error
            finally:
                await platform.close()

    return asyncio.run(main())


def error(status: int, code: str, **headers: str) -> HttpReply:
    body = json.dumps({"Code": code, "Message": "because of this", "RequestId": "1"}).encode()
    return HttpReply(
        status=status, headers={"X-Fc-Error-Type": "FcCommonError", **headers}, body=body
    )


@pytest.mark.parametrize(
    ("status", "code", "fault"),
    [
        (400, "InvalidArgument", Fault.REFUSED),
        (412, "FunctionNotStarted", Fault.CRASHED),
        (413, "PayloadTooLarge", Fault.TOO_LARGE),
        (429, "ResourceExhausted", Fault.THROTTLED),
        (500, "InternalServerError", Fault.UNAVAILABLE),
        (503, "ServiceUnavailable", Fault.UNAVAILABLE),
        (504, "GatewayTimeout", Fault.TIMEOUT),
    ],
)
def test_an_error_of_the_service_is_a_fault_by_kind(status: int, code: str, fault: Fault) -> None:
    raised = answered(error(status, code))
    assert isinstance(raised, PlatformFault)
    assert raised.fault is fault
    assert raised.retry_after_s is None
    assert f"{code}: because of this" in str(raised)


def test_retry_after_is_honoured() -> None:
    raised = answered(error(429, "ResourceExhausted", **{"Retry-After": "9"}))
    assert isinstance(raised, PlatformFault)
    assert raised.retry_after_s == 9.0


def test_a_gateways_page_is_no_crash_of_ours() -> None:
    raised = answered(HttpReply(status=502, body=b"<html>Bad Gateway</html>"))
    assert isinstance(raised, PlatformFault)
    assert raised.fault is Fault.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "fc:InvokeFunction"),
        (403, "SignatureNotMatch", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
        (400, "InvalidAccessKeyID", "ALIBABA_CLOUD_ACCESS_KEY_ID"),
        (404, "FunctionNotFound", "rollart rewards package"),
    ],
)
def test_what_the_user_must_mend_is_a_configuration_error_with_its_remedy(
    status: int, code: str, says: str
) -> None:
    raised = answered(error(status, code))
    assert isinstance(raised, ConfigError)
    assert says in str(raised)
    assert "of-no-account" not in str(raised)


def test_a_functions_error_beside_a_200_is_no_answer() -> None:
    for body, fault in (
        (b'{"errorMessage":"Process exited unexpectedly"}', Fault.CRASHED),
        (b'{"errorMessage":"Function timed out after 3 seconds"}', Fault.TIMEOUT),
        (b"nonsense", Fault.CRASHED),
    ):
        for status in (200, 502):
            headers = {"X-Fc-Error-Type": "UnhandledInvocationError"}
            raised = answered(HttpReply(status=status, headers=headers, body=body))
            assert isinstance(raised, PlatformFault)
            assert raised.fault is fault


def test_an_error_of_our_own_handler_is_an_answer_whatever_the_service_says() -> None:
    body = encode_answer(
        Answer(key="k", function="judge:score", version="v1", instance="i", error="ValueError: no")
    )
    reply = HttpReply(headers={"X-Fc-Error-Type": "HandledInvocationError"}, body=body)
    assert answered(reply) == body


def test_missing_credentials_name_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET")
    with pytest.raises(ConfigError, match="set ALIBABA_CLOUD_ACCESS_KEY_SECRET"):
        open_platform("fc://judge?region=cn-hangzhou&account=1", allow_hosts=None)


def test_temporary_credentials_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIBABA_CLOUD_SECURITY_TOKEN", "for-a-while")

    async def main() -> None:
        async def answer(request: HttpRequest) -> HttpReply:
            assert "x-acs-security-token" in request.headers["authorization"]
            return HttpReply(body=request.headers["x-acs-security-token"].encode())

        async with LoopbackServer(answer) as server:
            platform = open_platform(f"fc://judge?endpoint={server.url}", allow_hosts=None)
            assert await platform.call(b"{}", key="k", seconds=10) == b"for-a-while"
            await platform.close()

    asyncio.run(main())


def test_a_connection_that_is_lost_or_trickles_is_told_apart() -> None:
    lost = answered(HttpReply(cut=True))
    assert isinstance(lost, PlatformFault)
    assert lost.fault is Fault.LOST
    begin = time.monotonic()
    slow = answered(HttpReply(body=b"{}" * 500, drip_s=0.02), seconds=0.5)
    assert isinstance(slow, PlatformFault)
    assert slow.fault is Fault.TIMEOUT
    assert time.monotonic() - begin < 5


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert answered(HttpReply(body=b"here")) == b"here"


# What follows runs a custom runtime.

Scene = Callable[[Cloud, Platform], Coroutine[Any, Any, None]]


def play(deployed: Path, scaling: Scaling, scene: Scene) -> None:
    async def main() -> None:
        async with fc_cloud(CustomRuntime(folder=deployed), scaling) as service:
            platform = open_platform(f"fc://judge?endpoint={service.url}", allow_hosts=None)
            try:
                await scene(service, platform)
            finally:
                await platform.close()
        assert service.instances == 0

    asyncio.run(main())


async def fault_of(platform: Platform, body: bytes) -> PlatformFault:
    with pytest.raises(PlatformFault) as raised:
        await platform.call(body, key="k", seconds=30)
    return raised.value


@pytest.mark.real
def test_function_compute_conforms_around_a_custom_runtime(deployed: Path) -> None:
    with Apart("fc", deployed, Scaling(limit=10, idle_s=60.0)) as service:

        async def make() -> Platform:
            return open_platform(f"fc://judge?endpoint={service.url}", allow_hosts=None)

        @asynccontextmanager
        async def gone() -> AsyncIterator[None]:
            service.down()
            yield
            service.up()

        trial = PlatformTrial(
            function="judge:score", version="v1", crashes=True, faults={"unavailable": gone}
        )
        asyncio.run(check_platform(make, trial))
        assert service.figures().exited == 2


@pytest.mark.real
def test_a_functions_own_time_out_end_and_bad_start_are_told(deployed: Path) -> None:
    async def scene(service: Cloud, platform: Platform) -> None:
        slow = await fault_of(platform, told(sleep=30))
        assert slow.fault is Fault.TIMEOUT
        assert "timed out after 1 seconds" in str(slow)
        died = await fault_of(platform, told(exit=7))
        assert died.fault is Fault.CRASHED
        (deployed / "judge.py").write_text("import no_such_package\n")
        unready = await fault_of(platform, told())
        assert unready.fault is Fault.CRASHED
        assert "no_such_package" in str(unready)
        assert service.instances == 0
        assert (service.figures().timed_out, service.figures().exited) == (1, 2)

    play(deployed, Scaling(timeout_s=1.0), scene)


@pytest.mark.real
def test_instances_are_limited(deployed: Path) -> None:
    async def scene(service: Cloud, platform: Platform) -> None:
        calls = [platform.call(told(sleep=0.5), key="k", seconds=30) for _ in range(3)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        throttled = [end for end in ends if isinstance(end, PlatformFault)]
        assert [end.fault for end in throttled] == [Fault.THROTTLED]
        assert service.figures().most == 2

    play(deployed, Scaling(limit=2), scene)


@pytest.mark.real
def test_a_body_above_the_limit_is_not_sent_and_another_key_is_refused_by_name(
    deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(_: Cloud, platform: Platform) -> None:
        raised = await fault_of(platform, b"x" * (REQUEST_BYTES + 1))
        assert raised.fault is Fault.TOO_LARGE
        with pytest.raises(ConfigError, match="InvalidAccessKeyID"):
            await platform.call(told(), key="k", seconds=30)

    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAIWRONG")
    play(deployed, Scaling(), scene)
