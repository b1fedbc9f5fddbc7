"""The loop of a child that has coroutine handlers; apart, because most children need no asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rollart.process.serve import ChildPort, Handler, Request, answering, find_handler


def run_async_handlers(
    port: ChildPort,
    handlers: Mapping[str, Handler],
    *,
    close: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Answer requests, overlapping, until the owner stops this child; then cancel the rest.

    Args:
        close: awaited at the end, in the same loop, whatever became of the requests.
    """
    asyncio.run(_serve_and_close(port, handlers, close))


async def _serve_and_close(
    port: ChildPort,
    handlers: Mapping[str, Handler],
    close: Callable[[], Awaitable[None]] | None,
) -> None:
    try:
        await _serve_async(port, handlers)
    finally:
        if close is not None:
            await close()


async def _serve_async(port: ChildPort, handlers: Mapping[str, Handler]) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    running: set[asyncio.Task[None]] = set()
    loop.add_reader(port.fileno(), readable.set)
    async with asyncio.TaskGroup() as group:
        while not port.stopping:
            readable.clear()
            for request in port.poll():
                task = group.create_task(_handle_async(port, handlers, request))
                running.add(task)
                task.add_done_callback(running.discard)
            if not port.stopping:
                await readable.wait()
        loop.remove_reader(port.fileno())
        for task in running:
            task.cancel()


async def _handle_async(port: ChildPort, handlers: Mapping[str, Handler], request: Request) -> None:
    with answering(port, request):
        value = find_handler(handlers, request)(*request.args)
        if isinstance(value, Awaitable):
            value = await value
        port.reply(request.id, value)
