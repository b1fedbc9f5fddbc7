"""How a virtual run ends: stuck, by an error, by an interrupt, wound down."""

import asyncio
import gc
import itertools
import logging
import math
import pickle
import sys
from typing import Any

import pytest

from rollart.runtimes.sim.loop import (
    SimulationDeadlock,
    SimulationLivelock,
    SimulationOverrun,
    VirtualLoop,
    run_virtual,
)


def now() -> float:
    return asyncio.get_running_loop().time()


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def break_down() -> None:
    raise IndexError("a callback")


class TestStuck:
    def test_a_wait_that_nothing_ends_is_a_deadlock_that_names_who_waits_and_where(self) -> None:
        async def inner() -> None:
            await forever()

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(inner(), name="zebra")
                group.create_task(asyncio.Queue[int]().get(), name="ant")
                group.create_task(asyncio.sleep(3.0), name="finishes")

        with pytest.raises(SimulationDeadlock) as caught:
            run_virtual(main)
        assert caught.value.time == 3.0
        names = [line.split(":")[0] for line in caught.value.waiting]
        assert names == ["main", "zebra", "ant"]
        first_line = inner.__code__.co_firstlineno
        assert f"{__file__}:{first_line + 1} in " in caught.value.waiting[1]
        assert f"{__file__}:{forever.__code__.co_firstlineno + 1} in forever" in str(caught.value)
        assert "Queue.get" in caught.value.waiting[2]

    def test_a_future_that_nobody_resolves_is_a_deadlock_without_tasks(self) -> None:
        loop = VirtualLoop()
        with pytest.raises(SimulationDeadlock, match="none"):
            loop.run_until_complete(loop.create_future())
        loop.close()

    def test_a_cancelled_timer_and_one_at_infinity_do_not_hide_a_deadlock(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(math.inf, lambda: None)
            loop.call_later(9.0, lambda: None).cancel()
            await forever()

        with pytest.raises(SimulationDeadlock) as caught:
            run_virtual(main)
        assert caught.value.time == 0.0

    def test_a_deadlock_of_many_tasks_has_a_short_text_and_the_full_list(self) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(500):
                    group.create_task(forever())

        with pytest.raises(SimulationDeadlock, match="and 401 more") as caught:
            run_virtual(main)
        assert len(caught.value.waiting) == 501
        assert len(str(caught.value).splitlines()) < 110

    def test_the_errors_survive_pickling(self) -> None:
        error = SimulationDeadlock("reason", 2.0, ("task-1: here",))
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.time, copy.waiting) == (str(error), 2.0, ("task-1: here",))

    def test_callbacks_that_go_on_at_one_instant_are_a_livelock(self) -> None:
        async def main() -> None:
            for _ in itertools.count():
                await asyncio.sleep(0)

        with pytest.raises(SimulationLivelock, match="max_callbacks_per_instant=5000") as caught:
            run_virtual(main, max_callbacks_per_instant=5000)
        assert caught.value.waiting[0].startswith("main: ")

    def test_timers_too_close_to_move_time_are_a_livelock(self) -> None:
        async def main() -> None:
            for _ in itertools.count():
                await asyncio.sleep(1e-9)

        with pytest.raises(SimulationLivelock):
            run_virtual(main, start=1e9, max_callbacks_per_instant=1000)

    def test_many_callbacks_are_no_livelock_when_time_moves_between_them(self) -> None:
        async def main() -> None:
            for _ in range(100):
                for _ in range(30):
                    await asyncio.sleep(0)
                await asyncio.sleep(1.0)

        run_virtual(main, max_callbacks_per_instant=50)

    def test_a_heartbeat_cannot_hide_a_wait_past_the_time_limit(self) -> None:
        async def heartbeat() -> None:
            for _ in itertools.count():
                await asyncio.sleep(1.0)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(heartbeat(), name="heartbeat")
                await forever()

        with pytest.raises(SimulationOverrun, match="max_virtual_time=100 s") as caught:
            run_virtual(main, max_virtual_time=100.0)
        assert caught.value.time == 100.0
        assert len(caught.value.waiting) == 2

    def test_what_ends_at_the_time_limit_is_in_time(self) -> None:
        assert run_virtual(asyncio.sleep(100.0, "result"), max_virtual_time=100.0) == "result"


class TestErrors:
    def test_a_callbacks_exception_ends_the_run(self) -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_later(1.0, break_down)
            await asyncio.sleep(10.0)

        with pytest.raises(IndexError):
            run_virtual(main)

    def test_a_forgotten_tasks_exception_ends_the_run(self) -> None:
        async def fail() -> None:
            raise ValueError("nobody awaits this")

        async def main() -> None:
            asyncio.get_running_loop().create_task(fail())
            await asyncio.sleep(1.0)

        with pytest.raises(ValueError, match="nobody awaits this"):
            run_virtual(main)

    def test_two_exceptions_in_one_pass_are_both_told(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, break_down)
            loop.call_later(1.0, lambda: {}["key"])
            await forever()

        with pytest.raises(IndexError) as caught:
            run_virtual(main)
        assert any("KeyError" in note for note in caught.value.__notes__)

    def test_an_exception_handler_may_keep_the_run_alive(self) -> None:
        async def main() -> list[object]:
            seen = list[object]()
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
            loop.call_later(1.0, break_down)
            await asyncio.sleep(10.0)
            return seen

        assert [type(error) for error in run_virtual(main)] == [IndexError]

    def test_an_exception_handler_that_fails_ends_the_run(self) -> None:
        def handler(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
            raise KeyError("handler")

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(handler)
            assert loop.get_exception_handler() is handler
            loop.call_soon(break_down)
            await asyncio.sleep(10.0)

        with pytest.raises(KeyError, match="handler"):
            run_virtual(main)

    def test_an_error_outside_a_run_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        loop = VirtualLoop()
        future = loop.create_future()
        future.set_exception(ValueError("never retrieved"))
        with caplog.at_level(logging.ERROR):
            del future
            gc.collect()
        loop.close()
        assert "never retrieved" in caplog.text

    def test_a_main_that_fails_along_with_a_callback_is_noted_on_the_callbacks_error(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_at(1.0, loop.call_soon, break_down)
            await asyncio.sleep(1.0)  # main goes on in the same pass as the callback
            raise ValueError("main")

        with pytest.raises(IndexError) as caught:
            run_virtual(main)
        assert caught.value.__notes__ == ["what was awaited had failed as well: ValueError: main"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_in_a_callback_leaves_the_run_at_once(
        self, kind: type[BaseException]
    ) -> None:
        later = list[str]()

        def interrupt() -> None:
            raise kind

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(interrupt)
            loop.call_later(1.0, later.append, "later")
            await asyncio.sleep(2.0)

        with pytest.raises(kind):
            run_virtual(main)
        assert later == []

    def test_an_interrupt_in_main_still_closes_what_is_open(self) -> None:
        closed = list[str]()

        async def other() -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(1.0)
                closed.append("other")

        async def main() -> None:
            task = asyncio.get_running_loop().create_task(other())
            await asyncio.sleep(1.0)
            assert not task.done()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_virtual(main)
        assert closed == ["other"]


class TestWindingDown:
    def test_tasks_left_behind_are_cancelled_in_creation_order_and_awaited(self) -> None:
        ended = list[tuple[int, float]]()

        async def stay(number: int) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(2.0)
                ended.append((number, now()))

        async def main() -> list[asyncio.Task[None]]:
            tasks = [asyncio.get_running_loop().create_task(stay(n)) for n in range(30)]
            await asyncio.sleep(1.0)
            return tasks

        tasks = run_virtual(main)
        assert ended == [(number, 3.0) for number in range(30)]
        assert all(task.cancelled() for task in tasks)

    def test_a_task_that_fails_when_cancelled_is_raised(self) -> None:
        async def stay() -> None:
            try:
                await forever()
            finally:
                raise ValueError("in cleanup")

        async def main() -> object:
            task = asyncio.get_running_loop().create_task(stay())
            await asyncio.sleep(1.0)
            return task

        with pytest.raises(ValueError, match="in cleanup"):
            run_virtual(main)

    def test_a_failure_in_cleanup_is_noted_on_the_error_that_came_first(self) -> None:
        async def stay() -> None:
            try:
                await forever()
            finally:
                raise ValueError("in cleanup")

        async def main() -> None:
            task = asyncio.get_running_loop().create_task(stay())
            await asyncio.sleep(1.0)
            assert not task.done()
            raise KeyError("first")

        with pytest.raises(KeyError) as caught:
            run_virtual(main)
        assert caught.value.__notes__ == ["while winding down also: ValueError: in cleanup"]

    def test_a_failed_callback_in_one_cleanup_does_not_cut_the_others_short(self) -> None:
        cleaned = list[float]()

        async def fail() -> None:
            try:
                await forever()
            finally:
                asyncio.get_running_loop().call_soon(break_down)

        async def stay() -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(1.0)
                cleaned.append(now())

        async def main() -> object:
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(fail()), loop.create_task(stay())]
            await asyncio.sleep(1.0)
            return tasks

        with pytest.raises(IndexError):
            run_virtual(main)
        assert cleaned == [2.0]

    def test_a_cleanup_that_never_ends_is_a_deadlock(self) -> None:
        async def stay() -> None:
            try:
                await forever()
            finally:
                await forever()

        async def main() -> object:
            task = asyncio.get_running_loop().create_task(stay(), name="stubborn")
            await asyncio.sleep(1.0)
            return task

        with pytest.raises(SimulationDeadlock, match="stubborn"):
            run_virtual(main)

    def test_open_async_generators_are_closed_in_order_of_first_use(self) -> None:
        closed = list[int]()

        async def numbers(name: int):
            try:
                while True:
                    yield name
            finally:
                await asyncio.sleep(1.0)
                closed.append(name)

        kept = [numbers(name) for name in range(40)]

        async def main() -> None:
            for generator in kept:
                await anext(generator)

        run_virtual(main)
        assert closed == list(range(40))

    def test_a_dropped_async_generator_is_closed_during_the_run(self) -> None:
        async def main() -> list[float]:
            closed = list[float]()

            async def numbers():
                try:
                    yield 1
                    yield 2
                finally:
                    await asyncio.sleep(1.0)
                    closed.append(now())

            async for _ in numbers():
                break
            await asyncio.sleep(5.0)
            return closed

        assert run_virtual(main) == [1.0]

    def test_a_finished_run_leaves_no_hooks_and_no_running_loop(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        run_virtual(asyncio.sleep(1.0), debug=True)
        assert sys.get_asyncgen_hooks() == hooks
        assert sys.get_coroutine_origin_tracking_depth() == 0
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()

    def test_the_standard_runner_drives_the_loop(self) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop, debug=True) as runner:
            assert runner.run(asyncio.sleep(1e6, "result")) == "result"
            assert runner.get_loop().time() == 1e6

    def test_a_stopped_run_can_go_on(self) -> None:
        loop, fired = VirtualLoop(), list[float]()
        for when in (1.0, 2.0):
            loop.call_at(when, lambda: (fired.append(loop.time()), loop.stop()))
        loop.run_forever()
        assert (fired, loop.is_running()) == ([1.0], False)
        loop.run_forever()
        loop.close()
        assert fired == [1.0, 2.0]

    def test_a_stop_before_the_awaited_result_is_an_error(self) -> None:
        async def main() -> None:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(1.0)

        with pytest.raises(RuntimeError, match="stop"):
            run_virtual(main)
