"""A small HTTP/1.1 server over asyncio streams: whole requests in, whole answers out.

Invariant: whatever a client sends or leaves unsent costs bounded memory, and its connection only;
of who is not admitted no body is kept.
Who waits on whom: a connection for its client, under deadlines; an answer for its handler, which is
cancelled when the client goes.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

HEAD_BYTES, BODY_BYTES = 32 << 10, 8 << 20
IDLE_S, SEND_S = 75.0, 30.0
"""Seconds that a connection may be idle between requests, and that sending either way may take."""

OVERHEAR_S = 2.0  # that who was refused may go on sending, unheard

CONNECTIONS = 512

_LENGTH = re.compile(r"\d{1,12}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request; `path` without its query, names of headers in small letters."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer of JSON bytes."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class BadRequest(Exception):
    """A request that cannot be read or is not admitted; its connection ends with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


Handler = Callable[[Request], Awaitable[Response]]
Refuse = Callable[[BadRequest], Response]
Admit = Callable[[Request], None]
"""Looks at a request that has no body yet; raises `BadRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first part of a request: its body has `length` bytes."""

    request: Request
    length: int
    keeps: bool
    waits: bool


def read_head(raw: bytes, body_bytes: int = BODY_BYTES) -> Head:
    """The head of a request, without its last empty line. Raises `BadRequest`.

    Args:
        body_bytes: the longest body that is taken.
    """
    first, *rest = raw.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"}:
        raise BadRequest(400, "this is no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise BadRequest(400, "a header cannot be read")
        name = name.lower()
        if name in headers and name in {"content-length", "host", "authorization"}:
            raise BadRequest(400, f"two headers {name}")
        headers[name] = value.strip()
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send the body with a Content-Length")
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise BadRequest(400, "Content-Length is no number")
    if int(length) > body_bytes:
        raise BadRequest(413, f"a body of {length} bytes; at most {body_bytes}")
    wish = headers.get("connection", "").lower()
    return Head(
        request=Request(method=words[0], path=words[1].partition("?")[0], headers=headers),
        length=int(length),
        keeps="close" not in wish and (words[2] == "HTTP/1.1" or "keep-alive" in wish),
        waits=headers.get("expect", "").lower() == "100-continue",
    )


def written(response: Response, *, keeps: bool) -> bytes:
    """An answer as it goes over the wire."""
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(response.body)}",
        f"Connection: {'keep-alive' if keeps else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + _HEAD_END + response.body


class HttpServer:
    """Listens from `open` to `close`; connections are tasks of a group.

    Args:
        handle: answers a request; must not raise.
        refuse: the answer to one that cannot be read or is not admitted.
        admit: is asked before a body is read.
        body_bytes: of the longest request.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        handle: Handler,
        refuse: Refuse,
        *,
        admit: Admit,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        self._group = group
        self._handle = handle
        self._refuse = refuse
        self._admit = admit
        self._body_bytes = body_bytes
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Returns the port, of its own choice for 0. Raises `OSError` where it cannot listen."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES)
        return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = self._group.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            while await self._serve_one(reader, writer):
                pass
        except BadRequest as bad:
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, written(self._refuse(bad), keeps=False))
                await _overhear(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went, or is silent
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # a client that does not read would be waited for
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether another may follow."""
        try:
            async with asyncio.timeout(IDLE_S):
                raw = await reader.readuntil(_HEAD_END)
        except asyncio.LimitOverrunError as error:
            raise BadRequest(431, f"headers of over {HEAD_BYTES} bytes") from error
        head = read_head(raw.removesuffix(_HEAD_END), self._body_bytes)
        self._admit(head.request)
        body = b""
        if head.length:
            if head.waits:
                await _send(writer, b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(SEND_S):
                body = await reader.readexactly(head.length)
        asked = head.request
        request = Request(method=asked.method, path=asked.path, headers=asked.headers, body=body)
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(_result(self._handle, request))
            sequel = group.create_task(_sequel(reader))
            await asyncio.wait((answer, sequel), return_when=asyncio.FIRST_COMPLETED)
            gone = sequel.done() and not sequel.result()
            (answer if gone else sequel).cancel()
        if answer.cancelled():
            return False
        # A byte of a next request was read that nobody will answer: its client is told so.
        keeps = head.keeps and sequel.cancelled()
        await _send(writer, written(answer.result(), keeps=keeps))
        return keeps


async def _result(handle: Handler, request: Request) -> Response:
    return await handle(request)


async def _sequel(reader: asyncio.StreamReader) -> bytes:
    """What a client sends before it has its answer; empty once it is gone."""
    try:
        return await reader.read(1)
    except OSError:
        return b""


async def _overhear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let a client that was refused finish: one that still sends when we close reads no answer."""
    writer.write_eof()
    async with asyncio.timeout(OVERHEAR_S):
        while await reader.read(HEAD_BYTES):
            pass


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(SEND_S):
        await writer.drain()
