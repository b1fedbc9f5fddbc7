from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollart.process.child import Child
from rollart.process.errors import (
    CallTimeout,
    ChannelFull,
    ChildDied,
    ChildStartError,
    FrameTooLarge,
    RemoteError,
)
from rollart.process.forkserver import ForkServer
from rollart.process.report import ExitCause
from rollart.process.spawn import spawn

HERE = str(Path(__file__).parent)
Start = Callable[..., Awaitable[Child]]


@asynccontextmanager
async def starter(how: str) -> AsyncIterator[Start]:
    """Yield a function that starts an entry of process_children; all it started is ended."""
    started: list[Child] = []
    before = children()
    server = await ForkServer.start(python_path=[HERE]) if how == "fork" else None

    async def start(entry: str, config: Any = None, **options: Any) -> Child:
        options = {"name": entry, **options}
        if server is None:
            options = {"python_path": [HERE], **options}
            child = await spawn(f"process_children:{entry}", config, **options)
        else:
            child = await server.fork(f"process_children:{entry}", config, **options)
        started.append(child)
        return child

    try:
        yield start
    finally:
        for child in started:
            child.kill()
            await asyncio.wait_for(child.died, 5.0)
        if server is not None:
            await server.close(2.0)
        assert children() <= before


def children() -> set[int]:
    """Ids of this process's children, zombies included."""
    listed = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for pids in listed for pid in pids}


def state(pid: int) -> str:
    """One letter as in proc(5); empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def with_children(how: str, body: Callable[[Start], Awaitable[None]]) -> None:
    async def main() -> None:
        async with starter(how) as start:
            await body(start)

    asyncio.run(main())


both = pytest.mark.parametrize("how", ["spawn", "fork"])


@both
def test_a_call_goes_round_and_the_config_arrives(how: str) -> None:
    async def body(start: Start) -> None:
        config = {"size": 4, "blob": b"\x00\x01", "names": ["a", None]}
        child = await start("service", config)
        assert await child.call("config", timeout=5.0) == config
        assert await child.call("echo", 1, "two", b"three", timeout=5.0) == [1, "two", b"three"]
        answers = await asyncio.gather(*(child.call("echo", n, timeout=5.0) for n in range(100)))
        assert answers == [[n] for n in range(100)]
        report = await child.close(2.0)
        assert (report.cause, report.code, report.clean) == (ExitCause.CLOSED, 0, True)
        with pytest.raises(ChildDied):
            await child.call("echo", 1, timeout=5.0)
        with pytest.raises(ChildDied):
            child.cast("echo", 1)

    with_children(how, body)


@both
def test_an_exception_in_the_child_arrives_with_type_message_and_traceback(how: str) -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        with pytest.raises(RemoteError) as caught:
            await child.call("fail", "my words", timeout=5.0)
        assert caught.value.type_name == "process_children.OwnError"
        assert caught.value.message == "my words"
        assert "in fail" in caught.value.traceback
        with pytest.raises(RemoteError, match=r"LookupError: no method 'nothing' here; .*echo"):
            await child.call("nothing", timeout=5.0)
        with pytest.raises(RemoteError, match="TypeError: Encoding objects of type object"):
            await child.call("object", timeout=5.0)
        assert await child.call("echo", timeout=5.0) == []

    with_children(how, body)


@both
def test_a_child_killed_in_mid_call_fails_all_its_calls_within_a_second(how: str) -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        calls = [asyncio.create_task(child.call("sleep", 60.0, timeout=60.0)) for _ in range(20)]
        await asyncio.sleep(0.05)
        begin = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - begin < 1.0
        assert all(isinstance(answer, ChildDied) for answer in done)
        report = child.died.result()
        assert (report.cause, report.signal, report.code) == (ExitCause.ITSELF, 9, None)
        assert not child.alive

    with_children(how, body)


@both
def test_an_exit_in_mid_call_reports_code_and_last_output(how: str) -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        await child.call("write", 10, timeout=5.0)
        with pytest.raises(ChildDied, match=r"exit code 7\nxxxxxxxxxx"):
            await child.call("exit", 7, timeout=5.0)
        assert child.died.result().code == 7

    with_children(how, body)


@both
def test_what_a_child_sent_before_its_end_still_arrives(how: str) -> None:
    async def body(start: Start) -> None:
        events: list[Any] = []
        child = await start("quitter", on_event=events.append)
        report = await asyncio.wait_for(child.died, 5.0)
        assert events == ["last words"]
        assert report.clean

    with_children(how, body)


@both
def test_a_stopped_child_is_declared_dead_after_the_heartbeat_timeout(how: str) -> None:
    async def body(start: Start) -> None:
        child = await start("service", heartbeat_timeout=0.6)
        await asyncio.sleep(1.5)  # a healthy child outlives many timeouts
        assert child.alive
        os.kill(child.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(ChildDied, match=r"no heartbeat for 0\.\d s \(limit 0.6 s\)"):
            await child.call("echo", timeout=10.0)
        assert 0.3 < time.monotonic() - begin < 2.0
        assert child.died.result().cause is ExitCause.SILENT
        assert state(child.pid) == ""

    with_children(how, body)


def test_a_busy_main_thread_still_beats_and_a_held_interpreter_lock_does_not() -> None:
    async def body(start: Start) -> None:
        busy = await start("busy", heartbeat_timeout=0.8)
        locked = await start("locked", heartbeat_timeout=0.8)
        report = await asyncio.wait_for(locked.died, 5.0)
        assert report.cause is ExitCause.SILENT
        assert busy.alive

    with_children("spawn", body)


def test_a_stall_of_the_owner_is_not_taken_for_silence_of_the_child() -> None:
    async def body(start: Start) -> None:
        child = await start("service", heartbeat_timeout=0.8)
        await asyncio.sleep(0.05)
        time.sleep(2.0)  # noqa: ASYNC251 - the stall is the point
        assert await child.call("echo", 1, timeout=5.0) == [1]

    with_children("spawn", body)


def test_a_hung_handler_times_out_and_disturbs_nobody() -> None:
    async def body(start: Start) -> None:
        hung = await start("service")
        other = await start("service")
        loop = asyncio.get_running_loop()
        latencies: list[float] = []

        async def measure() -> None:
            while True:
                due = loop.time() + 0.005
                await asyncio.sleep(0.005)
                latencies.append(loop.time() - due)

        meter = asyncio.create_task(measure())
        call = asyncio.create_task(hung.call("sleep", 1.0, timeout=0.3))
        for number in range(200):
            assert await other.call("echo", number, timeout=1.0) == [number]
        with pytest.raises(CallTimeout, match=r"service.sleep gave no answer within 0.3 s"):
            await call
        # The late answer to the first call must not be taken for the second one's.
        assert await hung.call("echo", "second", timeout=5.0) == ["second"]
        meter.cancel()
        latencies.sort()
        assert latencies[len(latencies) * 99 // 100] < 0.1
        assert latencies[-1] < 0.3  # one turn may wait for a busy machine, never for the child

    with_children("spawn", body)


def test_an_answer_that_comes_late_is_ignored() -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        with pytest.raises(CallTimeout):
            await child.call("sleep", 0.2, timeout=0.05)
        task = asyncio.create_task(child.call("echo", timeout=5.0))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.3)
        assert await child.call("echo", 1, timeout=5.0) == [1]

    with_children("spawn", body)


def test_events_arrive_in_order_and_before_the_answer_that_follows_them() -> None:
    async def body(start: Start) -> None:
        events: list[Any] = []
        child = await start("service", on_event=events.append)
        assert await child.call("events", 1000, timeout=5.0) == 1000
        assert [event["number"] for event in events] == list(range(1000))

    with_children("spawn", body)


def test_a_child_may_run_a_loop_of_its_own() -> None:
    async def body(start: Start) -> None:
        events: list[Any] = []
        child = await start("pusher", on_event=events.append)
        await asyncio.sleep(0.05)
        assert await child.call("steps", timeout=5.0) > 0
        report = await child.close(2.0)
        assert report.clean
        assert events[:4] == [1, -1, 2, -2]

    with_children("spawn", body)


def test_coroutine_handlers_overlap_and_fail_alone() -> None:
    async def body(start: Start) -> None:
        child = await start("async_service")
        begin = time.monotonic()
        rests = [child.call("rest", 0.3, timeout=5.0) for _ in range(50)]
        answers = await asyncio.gather(
            *rests, child.call("fail", timeout=5.0), return_exceptions=True
        )
        assert answers[:-1] == [0.3] * 50
        assert isinstance(answers[-1], RemoteError)
        assert time.monotonic() - begin < 2.0
        assert await child.call("echo", 5, timeout=5.0) == 5
        resting = asyncio.create_task(child.call("rest", 60.0, timeout=60.0))
        await asyncio.sleep(0.05)
        report = await child.close(2.0)  # running handlers are cancelled
        assert report.clean
        with pytest.raises(ChildDied):
            await resting

    with_children("spawn", body)


def test_a_child_that_does_not_stop_is_killed_after_the_grace() -> None:
    async def body(start: Start) -> None:
        child = await start("busy")
        begin = time.monotonic()
        report = await child.close(0.3)
        assert 0.25 < time.monotonic() - begin < 1.5
        assert report.cause is ExitCause.KILLED
        assert "still running 0.3 s after close()" in report.reason
        assert await child.close(0.3) is report

    with_children("spawn", body)


def test_sigterm_ends_a_child_and_sigint_does_not() -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        os.kill(child.pid, signal.SIGINT)
        assert await child.call("echo", 1, timeout=5.0) == [1]
        assert os.getsid(child.pid) == child.pid
        os.kill(child.pid, signal.SIGTERM)
        assert (await asyncio.wait_for(child.died, 2.0)).signal == signal.SIGTERM

    with_children("spawn", body)


@both
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_what_a_child_started_ends_with_it(how: str, end: str) -> None:
    async def body(start: Start) -> None:
        child = await start("service")
        grandchild = await child.call("child_of_mine", timeout=5.0)
        assert state(grandchild) not in ("", "Z")
        if end == "kill":
            child.kill()
        else:
            child.cast("exit", 0)
        await asyncio.wait_for(child.died, 5.0)
        await asyncio.sleep(0.1)
        assert state(grandchild) in ("", "Z")  # the system's first process reaps it

    with_children(how, body)


def test_large_output_never_blocks_a_child_and_its_end_is_kept(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        log = tmp_path / "child.log"
        child = await start("service", log_file=log)
        await child.call("write", 5_000_000, timeout=10.0)
        await child.call("write", 3, timeout=10.0)
        report = await child.close(2.0)
        assert report.output.endswith("x\nxxx")
        assert len(report.output) <= 2 * 64 * 1024
        assert log.stat().st_size == 5_000_000 + 1 + 3 + 1

    with_children("spawn", body)


@both
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">I", 1_999_999_999), "1999999999 bytes exceeds the limit of"),
        (b"\0\0\0\x04\xc1\xc1\xc1\xc1", "no valid message"),
    ],
    ids=["oversize", "garbage"],
)
def test_a_child_that_breaks_the_protocol_is_killed(how: str, data: bytes, words: str) -> None:
    async def body(start: Start) -> None:
        child = await start("raw_bytes", {"data": data})
        report = await asyncio.wait_for(child.died, 5.0)
        assert report.cause is ExitCause.CHANNEL
        assert words in report.reason

    with_children(how, body)


def test_messages_over_the_limit_are_refused_on_both_sides_and_the_child_lives() -> None:
    async def body(start: Start) -> None:
        child = await start("service", frame_limit=10_000)
        with pytest.raises(FrameTooLarge, match="exceeds the limit of 10000 bytes"):
            await child.call("echo", b"x" * 20_000, timeout=5.0)
        with pytest.raises(RemoteError, match=r"FrameTooLarge: .* limit of 10000 bytes"):
            await child.call("blob", 20_000, timeout=5.0)
        assert len(await child.call("blob", 9_000, timeout=5.0)) == 9_000

    with_children("spawn", body)


def test_a_child_that_does_not_read_makes_the_sender_fail_and_can_be_closed() -> None:
    async def body(start: Start) -> None:
        child = await start("asleep", pending_limit=1_000_000)

        async def fill() -> None:
            while True:
                child.cast("echo", b"x" * 100_000)
                await asyncio.sleep(0)

        with pytest.raises(ChannelFull):
            await asyncio.wait_for(fill(), 5.0)
        assert (await child.close(0.2)).cause is ExitCause.KILLED

    with_children("spawn", body)


@both
def test_a_failed_start_says_why_and_leaves_nothing(how: str) -> None:
    async def body(start: Start) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ChildStartError, match=r"(?s)exit code 1.*OwnError: cannot set up"):
            await start("broken")
        with pytest.raises(ChildStartError, match="has no function 'no_such_entry'"):
            await start("no_such_entry")
        with pytest.raises(ChildStartError, match=r"was not ready within 0\.5 s"):
            await start("never_ready", start_timeout=0.5)
        with pytest.raises(TypeError):
            await start("service", object())
        task = asyncio.ensure_future(start("never_ready"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(os.listdir("/proc/self/fd")) == before

    with_children(how, body)


def test_a_child_gets_the_environment_it_is_given(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        os.environ["ROLLART_TEST_SECRET"] = "secret"
        try:
            heir = await start("service", env={"A": "1"})
            bare = await start("service", env={"A": "2"}, inherit_env=False)
        finally:
            del os.environ["ROLLART_TEST_SECRET"]
        assert await heir.call("environ", "ROLLART_TEST_SECRET", timeout=5.0) == "secret"
        assert await heir.call("environ", "A", timeout=5.0) == "1"
        assert await bare.call("environ", "ROLLART_TEST_SECRET", timeout=5.0) is None
        assert await bare.call("environ", "A", timeout=5.0) == "2"

    with_children("spawn", body)
