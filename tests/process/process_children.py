"""Entries of the children that the tests start. Loaded by the children, not by pytest."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from typing import Any

from rollart.process.owner import die_with_parent
from rollart.process.serve import ChildPort, serve


class OwnError(Exception):
    """Raised by a handler, to see how it travels."""


def service(port: ChildPort, config: Any) -> None:
    """Simple sync handlers."""

    def fail(text: str) -> None:
        raise OwnError(text)

    def events(count: int) -> int:
        for number in range(count):
            port.event({"number": number})
        return count

    def child_of_mine() -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def spin(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    handlers = {
        "config": lambda: config,
        "echo": lambda *args: args,
        "fail": fail,
        "sleep": time.sleep,
        "spin": spin,
        "events": events,
        "blob": bytes,
        "object": object,
        "exit": sys.exit,
        "environ": os.environ.get,
        "write": lambda size: sys.stderr.write("x" * size + "\n") and None,
        "child_of_mine": child_of_mine,
    }
    serve(port, handlers)


def async_service(port: ChildPort, config: Any) -> None:
    """Coroutine handlers next to a sync one."""

    async def rest(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OwnError("async")

    serve(port, {"rest": rest, "fail": fail, "echo": lambda value: value})


def pusher(port: ChildPort, config: Any) -> None:
    """A loop of its own: works between polls, and pushes events."""
    port.ready()
    steps = 0
    while not port.stopping:
        for request in port.poll():
            port.reply(request.id, steps)
        steps += 1
        port.events([steps, -steps])
        time.sleep(0.001)


def asleep(port: ChildPort, config: Any) -> None:
    """Its main thread sleeps for good."""
    port.ready()
    time.sleep(1000)


def busy(port: ChildPort, config: Any) -> None:
    """Its main thread computes for good."""
    port.ready()
    while True:
        pass


def locked(port: ChildPort, config: Any) -> None:
    """Its main thread holds the interpreter's lock in C code for good."""
    port.ready()
    re.match(r"(a+)+$", "a" * 64 + "b")


def asleep_without_kernel(port: ChildPort, config: Any) -> None:
    """As on a system without parent-death signals."""
    die_with_parent(False)
    asleep(port, config)


def busy_without_kernel(port: ChildPort, config: Any) -> None:
    """As on a system without parent-death signals; and it started something."""
    die_with_parent(False)
    subprocess.Popen(["sleep", "1000"])
    busy(port, config)


def never_ready(port: ChildPort, config: Any) -> None:
    time.sleep(1000)


def broken(port: ChildPort, config: Any) -> None:
    raise OwnError("cannot set up")


def quitter(port: ChildPort, config: Any) -> None:
    """Ends right after it became ready, with words in its socket."""
    port.ready()
    port.event("last words")


def raw_bytes(port: ChildPort, config: Any) -> None:
    """Writes what it is told onto the channel, past the protocol."""
    port.ready()
    os.write(port.fileno(), config["data"])
    time.sleep(1000)
