"""What a virtual loop refuses, and that it says what to do instead."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from rollart.runtimes.sim.loop import (
    VirtualLoop,
    VirtualLoopError,
    run_virtual,
)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def refuse_executor(loop: asyncio.AbstractEventLoop) -> None:
    await loop.run_in_executor(None, print)


async def refuse_thread(_loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.to_thread(print)


async def refuse_lookup(loop: asyncio.AbstractEventLoop) -> None:
    await loop.getaddrinfo("localhost", 80)


async def refuse_connection(_loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def refuse_reader(loop: asyncio.AbstractEventLoop) -> None:
    loop.add_reader(0, print)


async def refuse_process(_loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.create_subprocess_exec("true")


async def refuse_signal(loop: asyncio.AbstractEventLoop) -> None:
    loop.add_signal_handler(2, print)


class TestRefusals:
    @pytest.mark.parametrize(
        ("main", "name"),
        [
            (refuse_executor, "run_in_executor"),
            (refuse_thread, "run_in_executor"),
            (refuse_lookup, "getaddrinfo"),
            (refuse_connection, "getaddrinfo|create_connection"),
            (refuse_reader, "add_reader"),
            (refuse_process, "subprocess_exec"),
            (refuse_signal, "add_signal_handler"),
        ],
    )
    def test_what_needs_a_real_machine_is_refused_with_a_remedy(
        self, main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]], name: str
    ) -> None:
        async def start() -> None:
            await main(asyncio.get_running_loop())

        with pytest.raises(VirtualLoopError, match=rf"({name})\(\) .* asyncio\.sleep\(\)"):
            run_virtual(start)

    def test_no_method_of_an_event_loop_is_left_unimplemented(self) -> None:
        inherited = {
            name
            for name in dir(asyncio.AbstractEventLoop)
            if not name.startswith("_")
            and getattr(VirtualLoop, name) is getattr(asyncio.AbstractEventLoop, name)
        }
        assert inherited == set()

    def test_another_thread_that_wakes_the_loop_fails_there_and_fails_the_run(self) -> None:
        raised = list[BaseException]()

        async def main() -> None:
            loop = asyncio.get_running_loop()

            def wake() -> None:
                try:
                    loop.call_soon_threadsafe(print)
                except VirtualLoopError as error:
                    raised.append(error)

            thread = threading.Thread(target=wake)
            thread.start()
            thread.join()
            await forever()

        with pytest.raises(VirtualLoopError, match="another thread"):
            run_virtual(main)
        assert len(raised) == 1

    def test_a_threads_future_cannot_resolve_a_virtual_wait(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            outside = Future[int]()
            waiting = asyncio.wrap_future(outside)
            thread = threading.Thread(target=outside.set_result, args=(1,))
            thread.start()
            thread.join()
            await waiting

        with caplog.at_level(logging.CRITICAL), pytest.raises(VirtualLoopError, match="thread"):
            run_virtual(main)

    def test_the_loops_own_thread_may_use_the_threadsafe_call(self) -> None:
        async def main() -> None:
            loop, woken = asyncio.get_running_loop(), asyncio.Event()
            loop.call_soon_threadsafe(woken.set)
            await woken.wait()

        run_virtual(main)

    def test_another_thread_cannot_run_the_loop(self) -> None:
        loop, raised = VirtualLoop(), list[BaseException]()

        def run() -> None:
            try:
                loop.run_forever()
            except VirtualLoopError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        loop.close()
        assert len(raised) == 1

    def test_a_run_inside_a_run_is_refused(self) -> None:
        async def main() -> None:
            run_virtual(asyncio.sleep(1.0))

        with pytest.raises(VirtualLoopError, match="await the coroutine"):
            run_virtual(main)
        with pytest.raises(VirtualLoopError, match="await the coroutine"):
            asyncio.run(main())

    def test_a_closed_loop_takes_no_more_work(self) -> None:
        loop = VirtualLoop()
        loop.close()
        assert loop.is_closed()
        with pytest.raises(RuntimeError, match="closed"):
            loop.call_soon(print)
        with pytest.raises(RuntimeError, match="closed"):
            loop.call_later(1.0, print)
        with pytest.raises(RuntimeError, match="closed"):
            loop.run_forever()

    def test_no_file_is_opened(self) -> None:
        before = sorted(os.listdir("/dev/fd"))
        loop = VirtualLoop()
        loop.run_until_complete(asyncio.sleep(1.0))
        after = sorted(os.listdir("/dev/fd"))
        loop.close()
        assert before == after
