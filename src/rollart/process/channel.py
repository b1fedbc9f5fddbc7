"""`AsyncChannel`: the owner's end of a message channel over a Unix socket pair.

It never blocks and uses no thread: what is sent in one turn of the loop leaves in one write. The
owner waits for nobody: a peer that does not read makes `send` raise `ChannelFull`. The other end is
`rollart.process.blocking.BlockingChannel`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Self, cast

from rollart.process.errors import ChannelClosed, ChannelError, ChannelFull
from rollart.process.frames import FRAME_LIMIT, FrameReader, FrameWriter

PENDING_LIMIT = 256 * 1024 * 1024
"""Default bytes that may wait in the owner for a child that does not read."""


class AsyncChannel(asyncio.Protocol):
    """The owner's end. Open it with `AsyncChannel.open`; use it in that loop only.

    Attributes:
        closed: done once the socket is closed; its result is the error that closed the channel,
            or None at end of stream or after `close()`.
        last_received: loop time in seconds at which the peer was last heard.
    """

    def __init__(
        self,
        on_message: Callable[[Any], None],
        *,
        message_type: Any,
        frame_limit: int,
        pending_limit: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[ChannelError | None] = self._loop.create_future()
        self.last_received = self._loop.time()
        self._on_message = on_message
        self._reader = FrameReader(message_type, frame_limit)
        self._writer = FrameWriter(frame_limit)
        self._pending_limit = pending_limit
        self._outgoing = bytearray()
        self._transport: asyncio.Transport | None = None
        self._fault: ChannelError | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        on_message: Callable[[Any], None],
        *,
        message_type: Any = Any,
        frame_limit: int = FRAME_LIMIT,
        pending_limit: int = PENDING_LIMIT,
    ) -> Self:
        """Take over a connected Unix stream socket.

        Args:
            on_message: called in the loop for each message, in order; if it raises, the channel
                closes with that error.
            message_type: what msgspec decodes frames into; anything else is a `BadFrame`.
            frame_limit: largest payload in bytes, both ways.
            pending_limit: bytes that may wait for a peer that does not read.
        """
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(
            lambda: cls(
                on_message,
                message_type=message_type,
                frame_limit=frame_limit,
                pending_limit=pending_limit,
            ),
            sock=sock,
        )
        return channel

    def send(self, message: object) -> None:
        """Queue one message; it leaves at the end of this turn of the loop.

        Raises:
            ChannelClosed: the channel is closed.
            ChannelFull: more than `pending_limit` bytes wait; nothing was queued.
            FrameTooLarge: the message is too large; nothing was queued.
            TypeError: msgpack cannot express the message; nothing was queued.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ChannelClosed("cannot send: the channel is closed")
        pending = len(self._outgoing) + transport.get_write_buffer_size()
        if pending > self._pending_limit:
            raise ChannelFull(pending, self._pending_limit)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._writer.append(self._outgoing, message)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was sent, or the channel is closed."""
        self._flush()
        await self._may_write.wait()

    def close(self) -> None:
        """Close at once; what was not yet written is lost. `closed` resolves a turn later."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and not self._transport.is_closing():
            # The transport may keep a reference, so the next turn gets a new buffer.
            batch, self._outgoing = self._outgoing, bytearray()
            self._transport.write(batch)

    def _fail(self, fault: ChannelError) -> None:
        self._fault = fault
        self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        for message in self._reader.feed(data):
            if self._transport is None or self._transport.is_closing():
                return
            self._on_message(message)
        if self._reader.fault is not None:
            self._fail(self._reader.fault)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outgoing = bytearray()
        self._may_write.set()
        if self._fault is None and exc is not None and not isinstance(exc, OSError):
            self._fault = ChannelError(f"handling a message raised {exc!r}")
            self._fault.__cause__ = exc
        if not self.closed.done():
            self.closed.set_result(self._fault)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()
