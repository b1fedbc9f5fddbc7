"""The virtual loop: its clock, its order, and what it keeps."""

import asyncio
import contextvars
import gc
import heapq
import inspect
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.runtimes.sim import loop as loop_module
from rollart.runtimes.sim.loop import (
    VirtualLoop,
    run_virtual,
)


def now() -> float:
    return asyncio.get_running_loop().time()


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def fail() -> None:
    raise OSError("at the end")


def start_and_forget(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.get_running_loop().create_task(coroutine, name="forgotten")


class TestTime:
    def test_a_year_of_sleep_takes_no_time_and_ends_at_the_exact_second(self) -> None:
        async def main() -> float:
            await asyncio.sleep(365 * 86400)
            return now()

        assert run_virtual(main, start=1.0) == 365 * 86400 + 1.0

    def test_time_stands_still_while_anything_is_ready(self) -> None:
        async def main() -> float:
            asyncio.get_running_loop().call_later(1e-9, lambda: None)
            for _ in range(1000):
                await asyncio.sleep(0)
            return now()

        assert run_virtual(main) == 0.0

    def test_a_timer_in_the_past_fires_at_once_and_never_turns_time_back(self) -> None:
        async def main() -> list[float]:
            fired = list[float]()
            asyncio.get_running_loop().call_at(3.0, lambda: fired.append(now()))
            await asyncio.sleep(1.0)
            return fired

        assert run_virtual(main, start=10.0) == [10.0]

    def test_a_timer_without_a_time_is_refused(self) -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_later(math.nan, lambda: None)

        with pytest.raises(ValueError, match="nan"):
            run_virtual(main)

    def test_timeout_and_wait_for_expire_at_their_virtual_deadlines(self) -> None:
        async def main() -> list[float]:
            seen = list[float]()
            try:
                async with asyncio.timeout(5.0):
                    await forever()
            except TimeoutError:
                seen.append(now())
            try:
                await asyncio.wait_for(asyncio.sleep(100.0), 7.0)
            except TimeoutError:
                seen.append(now())
            assert await asyncio.wait_for(asyncio.sleep(1.0, "result"), 7.0) == "result"
            return [*seen, now()]

        assert run_virtual(main) == [5.0, 12.0, 13.0]

    def test_queue_condition_event_and_task_group_wake_at_virtual_times(self) -> None:
        async def main() -> list[tuple[str, float]]:
            woken = list[tuple[str, float]]()
            queue, event, condition = asyncio.Queue[int](), asyncio.Event(), asyncio.Condition()
            filled = False

            async def take() -> None:
                woken.append((f"queue {await queue.get()}", now()))

            async def wait() -> None:
                await event.wait()
                woken.append(("event", now()))

            async def watch() -> None:
                async with condition:
                    await condition.wait_for(lambda: filled)
                woken.append(("condition", now()))

            async with asyncio.TaskGroup() as group:
                for waiter in (take, wait, watch):
                    group.create_task(waiter())
                await asyncio.sleep(1.0)
                queue.put_nowait(7)
                await asyncio.sleep(1.0)
                event.set()
                await asyncio.sleep(1.0)
                filled = True
                async with condition:
                    condition.notify_all()
            return woken

        assert run_virtual(main) == [("queue 7", 1.0), ("event", 2.0), ("condition", 3.0)]

    def test_each_callback_runs_in_its_own_context(self) -> None:
        variable = contextvars.ContextVar("variable", default="outer")

        async def main() -> list[str]:
            seen = list[str]()
            loop = asyncio.get_running_loop()
            given_context = contextvars.copy_context()
            given_context.run(variable.set, "given")
            loop.call_later(2.0, lambda: seen.append(variable.get()), context=given_context)
            variable.set("task")
            loop.call_later(1.0, lambda: seen.append(variable.get()))
            variable.set("changed since")
            await asyncio.sleep(3.0)
            child = loop.create_task(asyncio.sleep(0), context=given_context)
            await child
            return seen

        assert run_virtual(main) == ["task", "given"]
        assert variable.get() == "outer"


async def firing_order(whens: list[float]) -> list[tuple[float, int]]:
    """(time, index) of timers that are set in this order, as they fire."""
    fired = list[tuple[float, int]]()
    loop = asyncio.get_running_loop()
    for index, when in enumerate(whens):
        loop.call_at(when, lambda index=index: fired.append((now(), index)))
    await asyncio.sleep(max(whens, default=0.0) + 1.0)
    return fired


class TestOrder:
    # Few distinct times, so that most timers have equals.
    @settings(deadline=None)
    @given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.1 + 0.2, 5.0, 1e9]), max_size=60))
    def test_timers_fire_in_the_stable_order_of_their_times(self, whens: list[float]) -> None:
        fired = run_virtual(firing_order(whens))
        assert [index for _, index in fired] == sorted(range(len(whens)), key=whens.__getitem__)
        assert all(time == whens[index] for time, index in fired)

    @given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5]), st.booleans()), max_size=200))
    @settings(max_examples=50, deadline=None)
    def test_cancelled_timers_never_fire_and_do_not_disturb_the_others(
        self, program: list[tuple[float, bool]]
    ) -> None:
        fired = list[int]()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            timers = [
                loop.call_at(when, fired.append, index) for index, (when, _) in enumerate(program)
            ]
            for timer, (_, cancelled) in zip(timers, program, strict=True):
                if cancelled:
                    timer.cancel()
                    timer.cancel()
            await asyncio.sleep(2.0)

        run_virtual(main)
        kept = [index for index, (_, cancelled) in enumerate(program) if not cancelled]
        assert fired == sorted(kept, key=lambda index: program[index][0])

    @settings(deadline=None)
    @given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), max_size=6), max_size=12))
    def test_sleepers_wake_in_the_order_of_a_reference_model(
        self, sleepers: list[list[float]]
    ) -> None:
        woken = list[tuple[float, int]]()

        async def sleeper(name: int, delays: list[float]) -> None:
            for delay in delays:
                await asyncio.sleep(1.0 + delay)
                woken.append((now(), name))

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for name, delays in enumerate(sleepers):
                    group.create_task(sleeper(name, delays))

        run_virtual(main)
        assert woken == reference_order(sleepers)

    def test_a_timer_that_an_equal_one_cancels_does_not_fire(self) -> None:
        async def main() -> list[str]:
            fired = list[str]()
            loop = asyncio.get_running_loop()
            timers = list[asyncio.TimerHandle]()
            loop.call_at(1.0, lambda: [timer.cancel() for timer in timers])
            timers.append(loop.call_at(1.0, fired.append, "second"))
            loop.call_at(1.0, fired.append, "third")
            await asyncio.sleep(2.0)
            return fired

        assert run_virtual(main) == ["third"]

    def test_a_chain_of_callbacks_does_not_starve_a_timer_that_is_due(self) -> None:
        async def main() -> int:
            loop, passes, due = asyncio.get_running_loop(), 0, asyncio.Event()
            loop.call_later(0.0, due.set)
            while not due.is_set():
                passes += 1
                await asyncio.sleep(0)
            return passes

        assert run_virtual(main) == 2

    def test_a_group_cancels_its_members_in_the_same_order_under_every_hash_seed(self) -> None:
        logs = {schedule_in_a_new_process(seed) for seed in ("0", "1", "4242", "random")}
        assert len(logs) == 1
        assert logs == {"\n".join(mixed_schedule())}

    def test_the_same_program_gives_the_same_log_twice_in_one_process(self) -> None:
        first = mixed_schedule()
        # Move the addresses, on which the order of a set of ordinary tasks depends.
        ballast = [bytearray(n) for n in range(100, 4000, 7)]
        second = mixed_schedule()
        assert len(ballast) > 0
        assert first == second
        assert len(first) > 100

    def test_tasks_that_hash_by_address_are_seen_to_change_the_order(self) -> None:
        class OrdinaryLoop(VirtualLoop):
            def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
                task = asyncio.Task(coro, loop=self, name=options.get("name"))
                kept.append(task)  # so that the next run's tasks have other addresses
                return task

        kept, logs = list[object](), set[tuple[str, ...]]()
        for _ in range(8):
            log = list[str]()
            with closing(OrdinaryLoop()) as loop:
                loop.run_until_complete(schedule(log))
            logs.add(tuple(line for line in log if "cancelled" in line))
        assert len(logs) > 1

    def test_equal_timers_in_another_order_are_seen(self) -> None:
        class LastSetFirst(VirtualLoop):
            def call_at(self, when: float, callback: Any, *args: Any, **options: Any) -> Any:
                self._timers_set -= 2
                return super().call_at(when, callback, *args, **options)

        with closing(LastSetFirst()) as loop:
            fired = loop.run_until_complete(firing_order([1.0, 1.0, 0.0]))
        assert fired == [(0.0, 2), (1.0, 1), (1.0, 0)]


def reference_order(sleepers: list[list[float]]) -> list[tuple[float, int]]:
    """A plain event list: (wake time, order in which the sleep began)."""
    heap = list[tuple[float, int, int, int]]()
    begun = 0
    for name, delays in enumerate(sleepers):
        if delays:
            heapq.heappush(heap, (1.0 + delays[0], begun, name, 0))
            begun += 1
    woken = list[tuple[float, int]]()
    while heap:
        time, _, name, step = heapq.heappop(heap)
        woken.append((time, name))
        if step + 1 < len(sleepers[name]):
            heapq.heappush(heap, (time + 1.0 + sleepers[name][step + 1], begun, name, step + 1))
            begun += 1
    return woken


async def schedule(log: list[str]) -> None:
    """A program whose log shows the order of timers, queues, `wait` and a group's cancellation."""
    queue = asyncio.Queue[str]()

    async def worker(name: str, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            await queue.put(name)
            await forever()
        except asyncio.CancelledError:
            log.append(f"{now()} {name} cancelled")
            raise

    async def fail() -> None:
        await asyncio.sleep(50.0)
        raise ValueError("the group ends")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(worker(f"worker-{number}", number % 7))
            group.create_task(fail())
            for _ in range(60):
                log.append(f"{now()} took {await queue.get()}")
    except ExceptionGroup:
        log.append(f"{now()} failed")
    done, _ = await asyncio.wait({asyncio.create_task(asyncio.sleep(1.0)) for _ in range(20)})
    log.extend(task.get_name() for task in done)


def mixed_schedule() -> list[str]:
    log = list[str]()
    run_virtual(schedule(log))
    return log


def schedule_in_a_new_process(seed: str) -> str:
    parts = (now, forever, schedule, mixed_schedule)
    program = "\n\n".join(
        (
            "import asyncio",
            f"from {run_virtual.__module__} import run_virtual",
            *(inspect.getsource(part) for part in parts),
            "print('\\n'.join(mixed_schedule()))",
        )
    )
    source = Path(loop_module.__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return ran.stdout.strip()


class TestDebug:
    def test_a_program_gives_the_same_log_in_debug_mode(self) -> None:
        log = list[str]()
        run_virtual(schedule(log), debug=True)
        assert log == mixed_schedule()

    def test_debug_mode_refuses_a_coroutine_function_as_callback(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert loop.get_debug()
            loop.call_soon(forever)

        with pytest.raises(TypeError, match="create_task"):
            run_virtual(main, debug=True)


class TestMemory:
    def test_timers_set_and_cancelled_leave_nothing_behind(self) -> None:
        loop = VirtualLoop()

        def churn(count: int) -> int:
            """The longest that the heap was."""
            longest = 0
            for _ in range(count):
                loop.call_later(1e6, print).cancel()
                longest = max(longest, len(loop._timers))
            return longest

        assert churn(100_000) < 200
        tracemalloc.start()
        churn(10_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        loop.close()
        assert peak < 100_000  # bytes; ten thousand timers kept would be some two million

    def test_half_of_many_timers_cancelled_at_once_leave_the_heap_at_once(self) -> None:
        loop = VirtualLoop()
        timers = [loop.call_later(1e6 + number, print) for number in range(10_000)]
        for timer in timers[:6000]:
            timer.cancel()
        assert len(loop._timers) < 6000
        loop.close()

    def test_timers_that_outlive_cancelled_ones_all_fire(self) -> None:
        fired = list[int]()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in range(2000):
                loop.call_later(5.0, fired.append, number)
                for _ in range(5):
                    loop.call_later(1.0 + number, print).cancel()
            await asyncio.sleep(10.0)

        run_virtual(main)
        assert fired == list(range(2000))

    def test_finished_tasks_are_released(self) -> None:
        async def main() -> int:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            for _ in range(500):
                await loop.create_task(asyncio.sleep(1.0))
            return len(loop._tasks)

        assert run_virtual(main) <= 3

    def test_an_unfinished_task_that_nobody_else_holds_is_not_collected(self) -> None:
        async def main() -> bool:
            asyncio.get_running_loop().call_soon(start_and_forget, forever())
            await asyncio.sleep(1.0)
            gc.collect()
            return any(task.get_name() == "forgotten" for task in asyncio.all_tasks())

        assert run_virtual(main)


def test_the_end_of_a_pass_comes_before_the_next_and_costs_no_time():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[object] = []
        loop.call_soon(lambda: (seen.append("a"), loop.call_soon(seen.append, "next")))
        loop.call_soon(lambda: loop.at_pass_end(lambda: seen.append((loop.passes, loop.time()))))
        loop.call_soon(seen.append, "b")
        began = loop.passes
        for _ in range(3):
            await asyncio.sleep(0)
        assert seen == ["a", "b", (began + 2, 0.0), "next"]

    run_virtual(main)


def test_what_is_raised_at_the_end_of_a_pass_ends_the_run():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.at_pass_end(fail)
        await asyncio.sleep(1.0)

    with pytest.raises(OSError, match="at the end"):
        run_virtual(main)
