from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollart.process.child import Child
from rollart.process.errors import ChildDied, ChildStartError
from rollart.process.forkserver import ForkServer
from rollart.process.report import ExitCause

HERE = str(Path(__file__).parent)
SERVICE = "process_children:service"


def state(pid: int) -> str:
    """One letter as in proc(5); empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_hundred_forked_children_leave_no_zombie_and_no_descriptor() -> None:
    async def main() -> None:
        outer = len(os.listdir("/proc/self/fd"))
        server = await ForkServer.start(python_path=[HERE], preload=["process_children"])
        mine = len(os.listdir("/proc/self/fd"))
        theirs = len(os.listdir(f"/proc/{server.child.pid}/fd"))
        pids: list[int] = []
        for _ in range(5):
            children = await asyncio.gather(
                *(server.fork(SERVICE, None, name=f"env{n}") for n in range(20))
            )
            pids += [child.pid for child in children]
            answers = await asyncio.gather(*(c.call("echo", c.pid, timeout=5.0) for c in children))
            assert answers == [[child.pid] for child in children]
            for child in children[::2]:
                child.kill()
            reports = await asyncio.gather(*(child.close(5.0) for child in children))
            assert [report.signal for report in reports[::2]] == [signal.SIGKILL] * 10
            assert all(report.clean for report in reports[1::2])
        assert [state(pid) for pid in pids] == [""] * 100
        assert len(os.listdir("/proc/self/fd")) == mine
        assert len(os.listdir(f"/proc/{server.child.pid}/fd")) == theirs
        assert (await server.close(2.0)).clean
        assert len(os.listdir("/proc/self/fd")) == outer

    asyncio.run(main())


def test_the_fork_server_has_one_thread_and_keeps_beating() -> None:
    async def main() -> None:
        server = await ForkServer.start(python_path=[HERE], heartbeat_timeout=0.6)
        await asyncio.sleep(1.5)
        assert server.child.alive
        assert len(os.listdir(f"/proc/{server.child.pid}/task")) == 1
        await server.close(2.0)

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_children_die_with_the_fork_server_and_calls_fail(how: signal.Signals) -> None:
    async def main() -> None:
        server = await ForkServer.start(python_path=[HERE], heartbeat_timeout=0.8)
        children = [
            await server.fork(f"process_children:{entry}", None, name=entry)
            for entry in ("service", "asleep", "busy", "locked")
        ]
        call = asyncio.create_task(children[0].call("sleep", 60.0, timeout=60.0))
        await asyncio.sleep(0.05)
        os.kill(server.child.pid, how)
        reports = await asyncio.wait_for(asyncio.gather(*(c.died for c in children)), 5.0)
        assert all(report.code is None and report.signal is None for report in reports)
        with pytest.raises(ChildDied):
            await call
        assert {state(child.pid) for child in children} <= {"", "Z"}
        with pytest.raises(ChildStartError, match="cannot fork late"):
            await server.fork(SERVICE, None, name="late")
        await server.close(1.0)

    asyncio.run(main())


def test_a_child_can_be_killed_while_the_fork_server_is_stopped() -> None:
    async def main() -> None:
        server = await ForkServer.start(python_path=[HERE])
        child = await server.fork("process_children:busy", None, name="busy")
        os.kill(server.child.pid, signal.SIGSTOP)
        child.kill()
        report = await asyncio.wait_for(child.died, 3.0)
        assert report.cause is ExitCause.KILLED
        assert state(child.pid) in ("", "Z")
        os.kill(server.child.pid, signal.SIGCONT)
        other = await server.fork(SERVICE, None, name="after")
        assert await other.call("echo", 1, timeout=5.0) == [1]
        assert state(child.pid) == ""
        await server.close(2.0)

    asyncio.run(main())


def test_an_abandoned_fork_confuses_no_later_one() -> None:
    async def main() -> None:
        server = await ForkServer.start(python_path=[HERE])
        os.kill(server.child.pid, signal.SIGSTOP)
        tasks = [
            asyncio.create_task(server.fork(SERVICE, None, name=f"abandoned{n}")) for n in range(3)
        ]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0.01)
        assert all(isinstance(r, asyncio.CancelledError) for r in await gathered(tasks))
        os.kill(server.child.pid, signal.SIGCONT)
        child = await server.fork(SERVICE, "mine", name="wanted")
        assert await child.call("config", timeout=5.0) == "mine"
        await asyncio.sleep(0.5)  # abandoned ones meet the end of their stream
        assert children_of(server.child.pid) == [child.pid]
        child.kill()  # reaches this child, not an abandoned one
        assert (await asyncio.wait_for(child.died, 2.0)).signal == signal.SIGKILL
        await server.close(2.0)

    asyncio.run(main())


async def gathered(tasks: list[asyncio.Task[Child]]) -> list[Child | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_preload_that_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (tmp_path / "torch.py").write_text("")

    async def main() -> None:
        with pytest.raises(ChildStartError, match=r"preloading threaded started 1 thread"):
            await ForkServer.start(preload=["threaded"], python_path=[str(tmp_path)])
        with pytest.raises(ChildStartError, match=r"preloading torch loads torch"):
            await ForkServer.start(preload=["torch"], python_path=[str(tmp_path)])
        with pytest.raises(ChildStartError, match=r"No module named 'not_there'"):
            await ForkServer.start(preload=["not_there"])

    asyncio.run(main())


def test_closing_the_server_ends_its_children() -> None:
    async def main() -> None:
        server = await ForkServer.start(python_path=[HERE])
        children = [await server.fork(SERVICE, None, name=f"env{n}") for n in range(5)]
        await server.close(2.0)
        assert all(not child.alive for child in children)
        assert [child.died.result().signal for child in children] == [signal.SIGKILL] * 5
        assert [state(child.pid) for child in children] == [""] * 5

    asyncio.run(main())
