"""A function behind an HTTP URL: what each answer, or none, means."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rollart.backends.rewards.exchange import LARGEST_ANSWER
from rollart.backends.rewards.http import HttpPlatform
from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.backends.rewards.urls import parse_url
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer

Scene = Callable[[LoopbackServer, HttpPlatform], Coroutine[Any, Any, None]]


def always(reply: HttpReply) -> Callable[[HttpRequest], Awaitable[HttpReply]]:
    async def answer(_: HttpRequest) -> HttpReply:
        return reply

    return answer


async def hang(_: HttpRequest) -> HttpReply:
    await asyncio.Event().wait()
    raise AssertionError


def play(answer: Callable[[HttpRequest], Awaitable[HttpReply]], scene: Scene) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        async with LoopbackServer(answer) as server:
            platform = HttpPlatform(parse_url(f"{server.url}/score"))
            try:
                await scene(server, platform)
            finally:
                await platform.close()
            async with asyncio.timeout(5):
                await server.unconnected()
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def fault_of(
    answer: Callable[[HttpRequest], Awaitable[HttpReply]], seconds: float = 5.0
) -> PlatformFault:
    found: list[PlatformFault] = []

    async def scene(_: LoopbackServer, platform: HttpPlatform) -> None:
        with pytest.raises(PlatformFault) as raised:
            await platform.call(b"{}", key="k", seconds=seconds)
        found.append(raised.value)

    play(answer, scene)
    return found[0]


def test_the_body_goes_there_with_its_key_and_the_answer_comes_back() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        assert (request.method, request.path) == ("POST", "/score")
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-rollart-key"] == "run/t?/0"
        assert "authorization" not in request.headers
        return HttpReply(body=b"<" + request.body + b">")

    async def scene(server: LoopbackServer, platform: HttpPlatform) -> None:
        calls = [platform.call(b"%d" % n, key="run/tü/0", seconds=5) for n in range(20)]
        assert await asyncio.gather(*calls) == [b"<%d>" % n for n in range(20)]
        assert 1 <= server.connections <= 20

    play(answer, scene)


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, Fault.REFUSED),
        (404, Fault.REFUSED),
        (408, Fault.TIMEOUT),
        (413, Fault.TOO_LARGE),
        (429, Fault.THROTTLED),
        (500, Fault.UNAVAILABLE),
        (503, Fault.UNAVAILABLE),
        (504, Fault.TIMEOUT),
    ],
)
def test_a_status_is_a_fault_by_kind(status: int, fault: Fault) -> None:
    raised = fault_of(always(HttpReply(status=status, body=b"because of this")))
    assert raised.fault is fault
    assert f"{status}: because of this" in str(raised)
    assert raised.retry_after_s is None


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int) -> None:
    raised = fault_of(always(HttpReply(status=status, headers={"Retry-After": "7"})))
    assert raised.retry_after_s == 7.0


def test_no_answer_in_time_is_a_time_out() -> None:
    began = time.monotonic()
    assert fault_of(hang, seconds=0.2).fault is Fault.TIMEOUT
    assert time.monotonic() - began < 2


def test_trickling_bytes_do_not_extend_the_deadline() -> None:
    began = time.monotonic()
    raised = fault_of(always(HttpReply(body=b"x" * 1000, drip_s=0.02)), seconds=0.3)
    assert raised.fault is Fault.TIMEOUT
    assert time.monotonic() - began < 2


def test_a_connection_closed_before_a_byte_of_an_answer_is_lost() -> None:
    assert fault_of(always(HttpReply(cut=True))).fault is Fault.LOST


def test_an_instance_that_dies_in_mid_answer_has_crashed() -> None:
    async def main() -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(half, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            platform = HttpPlatform(parse_url(f"http://127.0.0.1:{port}/"))
            with pytest.raises(PlatformFault) as raised:
                await platform.call(b"{}", key="k", seconds=5)
            await platform.close()
        assert raised.value.fault is Fault.CRASHED

    asyncio.run(main())


def test_an_endpoint_that_is_gone_is_unavailable_and_serves_again_when_it_is_back() -> None:
    async def scene(server: LoopbackServer, platform: HttpPlatform) -> None:
        assert await platform.call(b"{}", key="k", seconds=5) == b"yes"
        await server.stop()
        for _ in range(2):
            with pytest.raises(PlatformFault) as raised:
                await platform.call(b"{}", key="k", seconds=5)
            assert raised.value.fault is Fault.UNAVAILABLE
        await server.start()
        assert await platform.call(b"{}", key="k", seconds=5) == b"yes"

    play(always(HttpReply(body=b"yes")), scene)


def test_a_body_above_the_limit_is_not_sent() -> None:
    async def main() -> None:
        async with LoopbackServer(always(HttpReply(body=b"ok"))) as server:
            platform = open_platform(f"{server.url}?limit=10", allow_hosts=None)
            assert platform.limits.body_bytes == 10
            assert await platform.call(b"x" * 10, key="k", seconds=5) == b"ok"
            with pytest.raises(PlatformFault) as raised:
                await platform.call(b"x" * 11, key="k", seconds=5)
            assert raised.value.fault is Fault.TOO_LARGE
            await platform.close()

    asyncio.run(main())


def test_an_endless_answer_is_given_up() -> None:
    raised = fault_of(always(HttpReply(body=b"x" * (LARGEST_ANSWER + 1))))
    assert raised.fault is Fault.GARBLED


def test_closing_ends_the_calls_under_way() -> None:
    async def scene(_: LoopbackServer, platform: HttpPlatform) -> None:
        calls = [asyncio.ensure_future(platform.call(b"", key="k", seconds=60)) for _ in range(5)]
        await asyncio.sleep(0.1)
        await platform.close()
        for call in calls:
            assert call.done()
            error = call.exception()
            assert isinstance(error, PlatformFault)
            assert error.fault is Fault.UNAVAILABLE
        with pytest.raises(PlatformFault):
            await platform.call(b"", key="k", seconds=60)

    play(hang, scene)


def test_a_cancelled_call_lets_its_connection_go() -> None:
    async def scene(server: LoopbackServer, platform: HttpPlatform) -> None:
        call = asyncio.ensure_future(platform.call(b"", key="k", seconds=60))
        await asyncio.sleep(0.1)
        assert server.connections == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(5):
            await server.unconnected()

    play(hang, scene)


def test_a_name_that_leads_to_a_private_address_is_refused_unless_it_is_named() -> None:
    async def main() -> None:
        reached: list[str] = []

        async def private(request: HttpRequest) -> HttpReply:
            reached.append(request.path)
            return HttpReply(body=b"in")

        async with LoopbackServer(private) as server:
            url = f"http://localhost:{server.port}/"
            rebound = open_platform(url, allow_hosts=("localhost",))
            assert await rebound.call(b"", key="k", seconds=5) == b"in"
            await rebound.close()
            platform = HttpPlatform(parse_url(url), connections=1, allow_hosts=("*.localhost",))
            for _ in range(3):  # with one connection, one that is kept would be the last
                with pytest.raises(PlatformFault, match=r"ROLLART_REWARD_HOSTS") as raised:
                    await platform.call(b"", key="k", seconds=5)
                assert raised.value.fault is Fault.REFUSED
            await platform.close()
        assert reached == ["/"]

    asyncio.run(main())


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(LoopbackServer(always(HttpReply(body=b"p"))))
            server = await stack.enter_async_context(LoopbackServer(always(HttpReply(body=b"s"))))
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            near = open_platform(server.url, allow_hosts=None)
            assert await near.call(b"", key="k", seconds=5) == b"s"
            far = open_platform("http://judge.invalid/", allow_hosts=None)
            assert await far.call(b"", key="k", seconds=5) == b"p"
            for platform in (near, far):
                await platform.close()

    asyncio.run(main())
