from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from typing import Any

import pytest

from rollart.process.blocking import BlockingChannel
from rollart.process.channel import AsyncChannel
from rollart.process.errors import ChannelClosed, ChannelError, ChannelFull, FrameTooLarge


async def open_pair(inbox: list[Any], **limits: int) -> tuple[AsyncChannel, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(True)
    return await AsyncChannel.open(ours, inbox.append, **limits), theirs


def test_many_small_messages_of_one_turn_leave_in_one_write() -> None:
    async def main() -> None:
        channel, peer = await open_pair([])
        # A datagram-like peer would see one packet; a stream socket shows it in one recv.
        for number in range(500):
            channel.send(number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        blocking = BlockingChannel(peer)
        assert blocking.poll() == list(range(500))
        channel.close()
        await channel.closed
        blocking.close()

    asyncio.run(main())


def test_messages_arrive_in_order_and_the_end_of_the_stream_closes() -> None:
    async def main() -> None:
        inbox: list[Any] = []
        channel, peer = await open_pair(inbox)
        blocking = BlockingChannel(peer)
        for number in range(100):
            blocking.send(number)
        blocking.send_many(["a", "b"])
        blocking.close()
        assert await channel.closed is None
        assert inbox == [*range(100), "a", "b"]
        with pytest.raises(ChannelClosed):
            channel.send("late")

    asyncio.run(main())


def test_a_large_message_passes_both_ways() -> None:
    async def main() -> None:
        arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        channel = await AsyncChannel.open(ours, arrived.set_result)
        blocking = BlockingChannel(theirs)
        blob = os.urandom(8_000_000)
        echo = threading.Thread(target=lambda: blocking.send(blocking.recv(10.0)))
        echo.start()
        channel.send(blob)
        await channel.drain()
        assert await asyncio.wait_for(arrived, 10.0) == blob
        echo.join()
        channel.close()
        await channel.closed
        blocking.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">I", 2_000_000_000), "2000000000 bytes exceeds the limit of 1000 bytes"),
        (struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", "4 bytes is no valid message"),
    ],
    ids=["oversize", "garbage"],
)
def test_a_faulty_frame_closes_the_channel_with_a_typed_error(data: bytes, words: str) -> None:
    async def main() -> None:
        inbox: list[Any] = []
        channel, peer = await open_pair(inbox, frame_limit=1000)
        with peer:
            BlockingChannel(peer).send("fine")
            peer.sendall(data)
            fault = await asyncio.wait_for(channel.closed, 5.0)
            assert isinstance(fault, ChannelError)
            assert words in str(fault)
            assert inbox == ["fine"]
            assert peer.recv(10) == b""

    asyncio.run(main())


def test_a_refused_message_leaves_the_channel_usable() -> None:
    async def main() -> None:
        channel, peer = await open_pair([], frame_limit=100)
        with pytest.raises(FrameTooLarge, match="202 bytes"):
            channel.send(b"x" * 200)
        with pytest.raises(TypeError):
            channel.send(object())
        channel.send("fine")
        await asyncio.sleep(0.01)
        assert BlockingChannel(peer).recv(1.0) == "fine"
        channel.close()
        await channel.closed
        peer.close()

    asyncio.run(main())


def test_a_peer_that_does_not_read_bounds_what_waits_here() -> None:
    async def main() -> None:
        channel, peer = await open_pair([], pending_limit=1_000_000)
        sent = 0

        async def fill() -> None:
            nonlocal sent
            while True:
                channel.send(b"x" * 10_000)
                sent += 10_000
                await asyncio.sleep(0)

        with pytest.raises(ChannelFull) as caught:
            await asyncio.wait_for(fill(), 5.0)
        assert caught.value.limit == 1_000_000
        assert sent < 3_000_000  # the limit and what the kernel's buffers hold
        channel.close()
        await channel.closed
        peer.close()

    asyncio.run(main())


def test_a_callback_that_raises_closes_the_channel_with_its_error() -> None:
    async def main() -> None:
        seen: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        ours, theirs = socket.socketpair()
        channel = await AsyncChannel.open(ours, lambda message: 1 // message)
        blocking = BlockingChannel(theirs)
        blocking.send(0)
        fault = await asyncio.wait_for(channel.closed, 5.0)
        assert isinstance(fault, ChannelError)
        assert isinstance(fault.__cause__, ZeroDivisionError)
        assert len(seen) == 1
        blocking.close()

    asyncio.run(main())


def test_the_blocking_end_waits_no_longer_than_told() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = BlockingChannel(ours)
        start = time.monotonic()
        assert channel.poll() == []
        assert time.monotonic() - start < 0.05
        with pytest.raises(TimeoutError):
            channel.recv(0.05)
        assert 0.04 < time.monotonic() - start < 1.0
        channel.close()


def test_the_blocking_end_delivers_everything_before_it_reports_the_end() -> None:
    ours, theirs = socket.socketpair()
    channel, peer = BlockingChannel(ours), BlockingChannel(theirs)
    peer.send_many([1, 2, 3])
    peer.close()
    assert channel.recv(1.0) == 1
    assert channel.poll() == [2, 3]
    with pytest.raises(ChannelClosed):
        channel.poll()
    with pytest.raises(ChannelClosed):
        channel.send(4)
    channel.close()


def test_sending_from_many_threads_never_mixes_frames() -> None:
    ours, theirs = socket.socketpair()
    channel, peer = BlockingChannel(ours), BlockingChannel(theirs)

    def push(name: int) -> None:
        for number in range(200):
            channel.send([name, number, b"x" * 3000])

    threads = [threading.Thread(target=push, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    received = [peer.recv(5.0) for _ in range(800)]
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [n for who, n, _ in received if who == name] == list(range(200))
    channel.close()
    peer.close()
