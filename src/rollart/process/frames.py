"""Frames: a 4-byte big-endian length, then one msgpack message.

Nothing here can execute what it reads: msgpack yields numbers, text, bytes, lists and maps only.
Invariant: after a fault the stream has no known frame boundary, so the reader yields nothing more.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from rollart.process.errors import BadFrame, ChannelError, FrameTooLarge

FRAME_LIMIT = 64 * 1024 * 1024
"""Default largest payload in bytes."""

_HEADER = struct.Struct(">I")


class FrameWriter:
    """Appends framed messages to a buffer."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._encoder = msgspec.msgpack.Encoder()

    def append(self, buffer: bytearray, message: object) -> None:
        """Append one frame, or leave the buffer as it was and raise.

        Raises:
            FrameTooLarge: the payload exceeds the limit.
            TypeError: the message holds something that msgpack cannot express.
        """
        start = len(buffer)
        try:
            buffer += b"\0\0\0\0"
            self._encoder.encode_into(message, buffer, -1)
            size = len(buffer) - start - _HEADER.size
            if size > self.limit:
                raise FrameTooLarge(size, self.limit)
        except BaseException:
            del buffer[start:]
            raise
        _HEADER.pack_into(buffer, start, size)


class FrameReader:
    """Cuts a byte stream into messages.

    Attributes:
        fault: why the stream can no longer be read; None while it is sound.
    """

    def __init__(self, message_type: Any, limit: int) -> None:
        self.limit = limit
        self.fault: ChannelError | None = None
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._rest = bytearray()
        self._needed = _HEADER.size

    def feed(self, data: bytes) -> list[Any]:
        """Add bytes and return the messages that they complete.

        Messages before a faulty frame are still returned; then `fault` is set.
        """
        if self.fault is not None:
            return []
        whole: bytes | bytearray = data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            whole, self._rest = self._rest, bytearray()
        return self._cut(memoryview(whole))

    def _cut(self, view: memoryview) -> list[Any]:
        messages: list[Any] = []
        start, end = 0, len(view)
        self._needed = _HEADER.size
        while end - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(view, start)
            if size > self.limit:
                self.fault = FrameTooLarge(size, self.limit)
                return messages
            stop = start + _HEADER.size + size
            if stop > end:
                self._needed = _HEADER.size + size
                break
            try:
                messages.append(self._decoder.decode(view[start + _HEADER.size : stop]))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                self.fault = BadFrame(
                    f"a frame of {size} bytes is no valid message ({error}); "
                    "the peer must speak the same version of this protocol"
                )
                return messages
            start = stop
        self._rest = bytearray(view[start:])
        return messages
