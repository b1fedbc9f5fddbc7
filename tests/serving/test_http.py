"""The server over real sockets: whole requests, broken ones, and clients that go."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rollart.serving.http import (
    BODY_BYTES,
    HEAD_BYTES,
    BadRequest,
    HttpServer,
    Request,
    Response,
    read_head,
)


async def echo(request: Request) -> Response:
    return Response(status=200, body=f"{request.method} {request.path} ".encode() + request.body)


def anybody(request: Request) -> None:
    pass


def refuse(bad: BadRequest) -> Response:
    return Response(status=bad.status, body=bad.reason.encode())


@asynccontextmanager
async def served(
    handle: Callable[[Request], Awaitable[Response]] = echo,
    *,
    admit: Callable[[Request], None] = anybody,
) -> AsyncIterator[int]:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        server = HttpServer(group, handle, refuse, admit=admit)
        port = await server.open("127.0.0.1", 0)
        try:
            yield port
        finally:
            server.close()


async def said(port: int, raw: bytes) -> bytes:
    """All that comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_one_connection_serves_one_request_after_another() -> None:
    async def main() -> None:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(3):
                writer.write(b"POST /a?x=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n%02d" % number)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"Connection: keep-alive" in head
                assert await reader.readexactly(10) == b"POST /a %02d" % number
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_a_client_that_wants_no_more_is_let_go() -> None:
    async def main() -> None:
        async with served() as port:
            for raw in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"):
                answer = await said(port, raw)
                assert answer.endswith(b"\r\n\r\nGET / ")
                assert b"Connection: close" in answer

    asyncio.run(main())


def test_a_client_that_asks_whether_to_go_on_is_told_to() -> None:
    async def main() -> None:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
                b"Connection: close\r\n\r\n"
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert (await reader.read()).endswith(b"POST / hi")
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\x80\x04\x95cos\nsystem\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nBad Name: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES + 1), 413),
        (b"GET / HTTP/1.1\r\nA: %s\r\n\r\n" % (b"x" * HEAD_BYTES), 431),
    ],
)
def test_what_cannot_be_read_costs_its_connection_only(raw: bytes, status: int) -> None:
    async def main() -> None:
        async with served() as port:
            assert (await said(port, raw)).startswith(b"HTTP/1.1 %d " % status)
            assert b"200 OK" in await said(port, b"GET / HTTP/1.0\r\n\r\n")

    asyncio.run(main())


def test_a_client_that_goes_ends_what_was_done_for_it() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            begun.set()
            try:
                await asyncio.sleep(1000)
            finally:
                ended.set()
            return await echo(request)

        async with served(slow) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await begun.wait()
            writer.close()
            await ended.wait()
            await writer.wait_closed()

    asyncio.run(main())


def test_a_client_that_does_not_wait_for_its_answer_gets_it_and_is_let_go() -> None:
    async def main() -> None:
        async def slow(request: Request) -> Response:
            await asyncio.sleep(0.05)
            return await echo(request)

        async with served(slow) as port:
            answer = await said(port, b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
            assert answer.endswith(b"GET /1 ")
            assert b"Connection: close" in answer

    asyncio.run(main())


def test_closing_ends_what_is_under_way() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def endless(request: Request) -> Response:
            begun.set()
            await asyncio.sleep(1000)
            return await echo(request)

        async with served(endless) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await begun.wait()
        writer.close()

    asyncio.run(main())


def test_a_connection_is_kept_unless_either_side_says_otherwise() -> None:
    assert read_head(b"GET / HTTP/1.1").keeps
    assert not read_head(b"GET / HTTP/1.1\r\nConnection: Close").keeps
    assert not read_head(b"GET / HTTP/1.0").keeps
    assert read_head(b"GET / HTTP/1.0\r\nConnection: keep-alive").keeps


def nobody(request: Request) -> None:
    assert not request.body
    raise BadRequest(401, "a token")


def test_who_is_not_admitted_is_told_so_before_any_of_its_body_is_sent() -> None:
    handled: list[Request] = []

    async def handle(request: Request) -> Response:
        handled.append(request)
        return await echo(request)

    async def main() -> None:
        async with served(handle, admit=nobody) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"Connection: close" in answer
            assert answer.endswith(b"a token")
            writer.close()
            await writer.wait_closed()
        assert not handled

    asyncio.run(main())


def test_who_is_not_admitted_and_sends_its_body_first_still_reads_why() -> None:
    async def main() -> None:
        async with served(admit=nobody) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES)
            for _ in range(BODY_BYTES >> 16):
                writer.write(bytes(1 << 16))
                await writer.drain()
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_who_was_refused_and_never_ends_is_let_go() -> None:
    async def main() -> None:
        async with served(admit=nobody) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            with pytest.raises(ConnectionError):
                await babbled(writer)

    asyncio.run(main())


async def babbled(writer: asyncio.StreamWriter) -> None:
    """Send a little for ever, which ends when nobody is there any more."""
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)
