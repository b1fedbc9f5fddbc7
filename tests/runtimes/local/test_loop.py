"""The counting loop: asyncio's own, but for a number and what is called at a pass's end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rollart.runtimes.local.loop import CountingLoop


def play(main: Callable[[CountingLoop], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        await main(loop)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(inside())


def fail() -> None:
    raise OSError("at the end")


def test_each_pass_runs_what_was_ready_when_it_began():
    async def main(loop: CountingLoop) -> None:
        seen: list[tuple[str, int]] = []

        def note(name: str) -> None:
            seen.append((name, loop.passes - began))

        began = loop.passes
        loop.call_soon(lambda: (note("a"), loop.call_soon(note, "c")))
        loop.call_soon(note, "b")
        for _ in range(4):
            await asyncio.sleep(0)
        assert seen == [("a", 1), ("b", 1), ("c", 2)]

    play(main)


def test_the_end_of_a_pass_comes_before_the_next_and_once():
    async def main(loop: CountingLoop) -> None:
        seen: list[str] = []
        loop.call_soon(lambda: (seen.append("a"), loop.call_soon(seen.append, "next")))
        loop.at_pass_end(lambda: seen.append("end of the first"))
        loop.call_soon(lambda: loop.at_pass_end(lambda: seen.append("end")))
        loop.call_soon(seen.append, "b")
        for _ in range(4):
            await asyncio.sleep(0)
        assert seen == ["end of the first", "a", "b", "end", "next"]

    play(main)


def test_what_is_scheduled_at_the_end_does_not_wait_for_the_world():
    async def main(loop: CountingLoop) -> None:
        came = loop.create_future()
        loop.at_pass_end(lambda: came.set_result(None))
        async with asyncio.timeout(5.0):
            await came

    play(main)


def test_an_error_at_the_end_is_told_and_the_loop_goes_on():
    async def main(loop: CountingLoop) -> None:
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: told.append(context))
        seen: list[str] = []
        loop.at_pass_end(fail)
        loop.at_pass_end(lambda: seen.append("after it"))
        await asyncio.sleep(0)
        assert [type(context["exception"]) for context in told] == [OSError]
        assert seen == ["after it"]

    play(main)
