"""A small HTTP/1.1 server for loopback platforms: whole requests in, whole replies out.

Invariant: one task a connection, all of them ended by `stop`; it listens on 127.0.0.1 only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

_BACKLOG = 4096  # connections that may begin at once; beyond it the system drops some for seconds
_REASONS = {200: "OK", 202: "Accepted", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request as it came. Names of headers are in lower case; `path` is without its query."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What is answered.

    Attributes:
        drip_s: pause after each byte of the body, for servers that trickle; 0 sends it at once.
        cut: close the connection without a word instead.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    drip_s: float = 0.0
    cut: bool = False


Answerer = Callable[[HttpRequest], Awaitable[HttpReply]]


class LoopbackServer:
    """Answers requests with `answer`, on a port of the system's choice.

    An error of `answer` is the server's own bug: it is raised by `stop`.
    """

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._errors: list[Exception] = []
        self._unconnected = asyncio.Event()
        self.port = 0

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self._connections)

    async def unconnected(self) -> None:
        """Returns when no connection is open: a client's close is heard of some passes later."""
        while self._connections:
            self._unconnected.clear()
            await self._unconnected.wait()

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections. The port is kept for another `start`."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        if self._errors:
            raise self._errors[0]

    async def __aenter__(self) -> "LoopbackServer":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader, writer)) is not None:
                reply = await self._answered(request, reader)
                if reply is None or reply.cut:
                    break
                await _write(writer, reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side left
        except asyncio.CancelledError:
            pass  # by `stop`; asyncio's own callback for this task would log it
        except Exception as error:
            self._errors.append(error)
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self._connections.discard(task)
            self._unconnected.set()

    async def _answered(
        self, request: HttpRequest, reader: asyncio.StreamReader
    ) -> HttpReply | None:
        """The reply, or None when the client left before it was there."""
        answering = asyncio.ensure_future(self._answer(request))
        gone = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the client has closed its side. Nobody here sends requests ahead."""
    await reader.read(1)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """The next request; None at the end of the connection."""
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    return HttpRequest(method=method, path=unquote(path), query=query, headers=headers, body=body)


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    while (await reader.readline()).strip():
        pass
    return b"".join(parts)


async def _write(writer: asyncio.StreamWriter, reply: HttpReply) -> None:
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines += [f"content-length: {len(reply.body)}", "", ""]
    head = "\r\n".join(lines).encode("latin-1")
    if not reply.drip_s:
        writer.write(head + reply.body)
        await writer.drain()
        return
    writer.write(head)
    for at in range(len(reply.body)):
        writer.write(reply.body[at : at + 1])
        await writer.drain()
        await asyncio.sleep(reply.drip_s)
