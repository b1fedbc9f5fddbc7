from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rollart.process.forkserver import ForkServer
from rollart.process.owner import RUN_ID_VARIABLE, live_processes
from rollart.process.spawn import spawn

HERE = str(Path(__file__).parent)


def test_the_processes_of_a_run_are_found_by_their_marker() -> None:
    async def main() -> None:
        run_id = f"marked-{os.getpid()}"
        env = {RUN_ID_VARIABLE: run_id}
        assert live_processes(run_id) == ()
        server = await ForkServer.start(python_path=[HERE], env=env)
        forked = await server.fork("process_children:service", None, name="a (forked) child")
        spawned = await spawn(
            "process_children:service", None, name="spawned", python_path=[HERE], env=env
        )
        found = {process.pid: process for process in live_processes(run_id)}
        assert set(found) == {server.child.pid, forked.pid, spawned.pid}
        assert found[forked.pid].parent_pid == server.child.pid
        assert found[spawned.pid].parent_pid == os.getpid()
        assert found[forked.pid].name == "a (forked) chil"  # the kernel keeps 15 bytes
        assert live_processes(run_id + "0") == ()
        await spawned.close(2.0)
        await server.close(2.0)
        assert live_processes(run_id) == ()

    asyncio.run(main())
