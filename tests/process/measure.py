"""Measures children: ``python tests/process/measure.py``. Prints one line a figure; not a test."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollart.process.child import Child
from rollart.process.forkserver import ForkServer
from rollart.process.spawn import spawn

HERE = str(Path(__file__).parent)
SERVICE = "process_children:service"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def starts(what: str, count: int, start: Callable[[], Awaitable[Child]]) -> None:
    up: list[float] = []
    down: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        child = await start()
        ready = time.perf_counter()
        await child.close(5.0)
        up.append((ready - begin) * 1e3)
        down.append((time.perf_counter() - ready) * 1e3)
    say(
        f"{what}: ready after {statistics.median(up):.1f} ms (best {min(up):.1f}), "
        f"closed and reaped in {statistics.median(down):.1f} ms, n={count}"
    )


async def messages(child: Child, events: list[Any]) -> None:
    for in_flight in (1, 64):
        count = 2_000 if in_flight == 1 else 20_000
        begin = time.perf_counter()

        async def caller(calls: int) -> None:
            for number in range(calls):
                await child.call("echo", number, timeout=10.0)

        await asyncio.gather(*(caller(count // in_flight) for _ in range(in_flight)))
        took = time.perf_counter() - begin
        say(
            f"calls, {in_flight} in flight: {count / took:,.0f}/s (each a message both ways), "
            f"{took / count * in_flight * 1e6:.0f} us a call"
        )
    count = 50_000
    begin = time.perf_counter()
    await child.call("events", count, timeout=60.0)
    say(f"child to owner: {count / (time.perf_counter() - begin):,.0f} events/s")
    begin = time.perf_counter()
    for number in range(count):
        child.cast("echo", number)
        if number % 100 == 0:
            await child.drain()
    await child.call("echo", timeout=60.0)
    say(f"owner to child: {count / (time.perf_counter() - begin):,.0f} casts/s")
    size, rounds = 8_000_000, 10
    begin = time.perf_counter()
    for _ in range(rounds):
        await child.call("echo", b"x" * size, timeout=60.0)
    rate = 2 * size * rounds / (time.perf_counter() - begin)
    say(f"8 MB blobs there and back: {rate / 1e6:,.0f} MB/s")


async def main() -> None:
    await starts("spawn", 10, lambda: spawn(SERVICE, None, name="s", python_path=[HERE]))
    for preload in (["process_children"], ["process_children", "numpy", "gymnasium"]):
        server = await ForkServer.start(preload=preload, python_path=[HERE])
        named = "+".join(preload[1:]) or "nothing heavy"
        await starts(f"fork ({named})", 50, lambda s=server: s.fork(SERVICE, None, name="f"))
        begin = time.perf_counter()
        crowd = await asyncio.gather(*(server.fork(SERVICE, None, name="f") for _ in range(100)))
        each = (time.perf_counter() - begin) * 1e3 / len(crowd)
        say(f"fork ({named}), 100 at once: {each:.1f} ms each")
        await asyncio.gather(*(child.close(5.0) for child in crowd))
        await server.close(5.0)
    events: list[Any] = []
    child = await spawn(SERVICE, None, name="s", python_path=[HERE], on_event=events.append)
    await messages(child, events)
    await child.close(5.0)


if __name__ == "__main__":
    asyncio.run(main())
