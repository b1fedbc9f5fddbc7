"""The door: answers come in at the end of a pass, in order, and whoever is cancelled waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rollart.control.door import OpenDoor
from rollart.core.errors import EngineLost
from rollart.core.events import Answered
from rollart.core.tokens import LengthOnly
from rollart.core.types import StopReason, TokenDelta
from rollart.runtimes.local.loop import CountingLoop
from rollart.runtimes.sim.loop import VirtualLoop
from rollart.testing.parts import EventRecorder

Loop = CountingLoop | VirtualLoop


@pytest.fixture(params=[CountingLoop, VirtualLoop])
def play(request: pytest.FixtureRequest):
    """Runs a test's coroutine on a loop that counts its passes, with a door there."""

    def run(main: Callable[[Loop, OpenDoor, EventRecorder], Coroutine[Any, Any, None]]) -> None:
        loop = request.param()
        events = EventRecorder()

        async def inside() -> None:
            await main(loop, OpenDoor(loop, events), events)

        try:
            loop.run_until_complete(inside())
        finally:
            loop.close()

    return run


def who(events: EventRecorder) -> list[tuple[str, ...]]:
    return [event.who for event in events.of(Answered)]


def test_what_comes_in_one_pass_is_told_together_and_in_order(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        answers = [loop.create_future() for _ in range(3)]

        async def part(at: int) -> int:
            return await answers[at]

        asks = [loop.create_task(door.ask(f"ask {at}", part(at))) for at in range(3)]
        await asyncio.sleep(0.01)
        answers[2].set_result(2)
        answers[0].set_result(0)
        await asyncio.sleep(0.01)
        answers[1].set_result(1)
        assert await asyncio.gather(*asks) == [0, 1, 2]
        assert who(events) == [("ask 2", "ask 0"), ("ask 1",)]

    play(main)


def test_nothing_comes_in_before_the_pass_is_over(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        seen: list[str] = []

        async def part() -> None:
            loop.call_soon(lambda: seen.append(f"next pass, {len(events.events)} told"))

        async def asker() -> None:
            await door.ask("ask", part())
            seen.append("answered")

        task = loop.create_task(asker())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await task
        assert seen == ["next pass, 0 told", "answered"]

    play(main)


def test_the_passes_are_counted_from_the_doors_making(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        door.come("first", lambda: None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        door.come("second", lambda: None)
        await asyncio.sleep(0)
        first, second = (event.loop_pass for event in events.of(Answered))
        assert (first, second) == (6, 9)

    play(main)


def test_an_error_comes_in_as_an_answer_does(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        async def part() -> None:
            raise EngineLost("engine-0", "it burnt")

        with pytest.raises(EngineLost, match="it burnt"):
            await door.ask("ask", part())
        assert who(events) == [("ask",)]

    play(main)


def test_who_is_cancelled_goes_on_when_the_part_has_let_go(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        let_go = loop.create_future()
        seen: list[str] = []

        async def part() -> None:
            try:
                await loop.create_future()
            finally:
                await let_go
                seen.append("let go")

        task = loop.create_task(door.ask("ask", part()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        let_go.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["let go"]
        assert who(events) == [("ask",)]

    play(main)


def test_an_answer_that_came_with_the_cancellation_is_told_once_and_not_heard(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        answer = loop.create_future()

        async def part() -> str:
            return await answer

        task = loop.create_task(door.ask("ask", part()))
        await asyncio.sleep(0.01)
        answer.set_result("too late")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        assert who(events) == [("ask",)]

    play(main)


def test_only_what_ends_a_request_waits_for_the_pass_to_end(play):
    async def main(loop: Loop, door: OpenDoor, events: EventRecorder) -> None:
        taken: list[int] = []
        sink = door.sink("t/t0#1", lambda delta: taken.append(len(delta.ids)))
        sink(delta(3))
        assert taken == [3]
        sink(delta(4, finish=StopReason.STOP))
        assert taken == [3]
        await asyncio.sleep(0)
        assert taken == [3, 4]
        assert who(events) == [("t/t0#1",)]

    play(main)


def delta(ids: int, finish: StopReason | None = None) -> TokenDelta:
    return TokenDelta(
        request_id="run/t/t0#1",
        ids=LengthOnly(ids),
        logprobs=LengthOnly(ids),
        version=0,
        finish=finish,
    )
