"""`BlockingChannel`: the child's end of a message channel over a Unix socket pair.

Sending blocks while the owner does not read, which is the child's back-pressure; it never waits for
anything else. Imports no asyncio, so a child starts sooner.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from typing import Any

from rollart.process.errors import ChannelClosed
from rollart.process.frames import FRAME_LIMIT, FrameReader, FrameWriter

_READ_SIZE = 256 * 1024
_READS_PER_POLL = 64  # bounds one poll() to 16 MiB, so a fast peer cannot hold it forever


class BlockingChannel:
    """The child's end. Any thread may send; only one thread may receive."""

    def __init__(
        self, sock: socket.socket, *, message_type: Any = Any, frame_limit: int = FRAME_LIMIT
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._reader = FrameReader(message_type, frame_limit)
        self._writer = FrameWriter(frame_limit)
        self._inbox: deque[Any] = deque()
        self._send_lock = threading.Lock()
        self._end_of_stream = False

    def fileno(self) -> int:
        """The socket's descriptor, for a selector. Call `poll` when it is readable."""
        return self._sock.fileno()

    def set_frame_limit(self, limit: int) -> None:
        """Change the largest payload in bytes, both ways, from the next frame on."""
        self._reader.limit = limit
        self._writer.limit = limit

    def send(self, message: object) -> None:
        """Send one message; blocks while the owner does not read.

        Raises:
            ChannelClosed: the owner is gone.
            FrameTooLarge: the message is too large; nothing was sent.
            TypeError: msgpack cannot express the message; nothing was sent.
        """
        self.send_many((message,))

    def send_many(self, messages: tuple[object, ...] | list[object]) -> None:
        """Send several messages with one write; as `send`, all or none."""
        batch = bytearray()
        for message in messages:
            self._writer.append(batch, message)
        with self._send_lock:
            self._write(batch)

    def try_send(self, message: object) -> bool:
        """Send unless another thread is just sending; return whether it was sent."""
        batch = bytearray()
        self._writer.append(batch, message)
        if not self._send_lock.acquire(blocking=False):
            return False
        try:
            self._write(batch)
        finally:
            self._send_lock.release()
        return True

    def recv(self, timeout: float | None) -> Any:
        """Return the next message.

        Args:
            timeout: seconds to wait; None waits as long as the owner lives.

        Raises:
            TimeoutError: no message in time.
            ChannelClosed: end of stream.
            BadFrame, FrameTooLarge: the stream is faulty.
        """
        self._gather(timeout)
        if not self._inbox:
            raise TimeoutError(f"no message within {timeout} s")
        return self._inbox.popleft()

    def poll(self, timeout: float | None = 0.0) -> list[Any]:
        """Return all messages that are there, by default without blocking.

        Args:
            timeout: seconds to wait for a first message; None waits as long as the owner lives.

        Raises:
            ChannelClosed: end of stream, after all messages before it were returned.
            BadFrame, FrameTooLarge: likewise for a faulty stream.
        """
        self._gather(timeout)
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def close(self) -> None:
        """Close this process's descriptor."""
        self._sock.close()

    def _write(self, batch: bytearray) -> None:
        try:
            self._sock.sendall(batch)
        except OSError as error:
            raise ChannelClosed(f"cannot send: the owner is gone ({error})") from error

    def _gather(self, timeout: float | None) -> None:
        """Fill the inbox; wait only while it is empty."""
        self._read_available()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._inbox:
            self._raise_if_ended()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            _wait_readable(self._sock, left)
            self._read_available()

    def _read_available(self) -> None:
        for _ in range(_READS_PER_POLL):
            if self._end_of_stream:
                return
            try:
                data = self._sock.recv(_READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if data:
                self._inbox.extend(self._reader.feed(data))
            if not data or self._reader.fault is not None:
                self._end_of_stream = True
            elif len(data) < _READ_SIZE // 2 and self._inbox:
                return  # most likely empty now: saves a system call for each small message

    def _raise_if_ended(self) -> None:
        if self._reader.fault is not None:
            raise self._reader.fault
        if self._end_of_stream:
            raise ChannelClosed("the owner closed the channel")


def _wait_readable(sock: socket.socket, timeout: float | None) -> None:
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    poller.poll(None if timeout is None else timeout * 1000.0)
