"""Workers in children: killed when they hang, named when they fail, gone at the end."""

import asyncio
import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

from rollart.core.errors import WorkerFailed
from rollart.core.ports import Binding, ClassPath
from rollart.process.owner import live_processes
from rollart.runtimes.local.workers import LocalWorkers
from rollart.testing.workers import PARROT

RUN = "workers-test"


def place(number: int = 0) -> Binding:
    return Binding(worker=f"parrot-{number}", hardware="green")


def test_a_worker_answers_from_another_process_and_knows_its_place() -> None:
    async def main() -> None:
        workers = LocalWorkers(run_id=RUN)
        try:
            worker = await workers.worker(place(), PARROT, {"prefix": "so "})
            assert await worker.call("say", (), {"word": "what"}, seconds=20) == "so what"
            assert await worker.call("where", (), {}, seconds=20) == ["parrot-0", "green"]
            with pytest.raises(WorkerFailed, match="worker parrot-0: fail raised ValueError: as"):
                await worker.call("fail", (), {}, seconds=20)
            with pytest.raises(WorkerFailed, match="fly raised AttributeError"):
                await worker.call("fly", (), {}, seconds=20)
            assert await worker.call("say", ("on",), {}, seconds=20) == "so on"
        finally:
            await workers.close()
        assert live_processes(RUN) == ()

    asyncio.run(main())


def test_a_worker_that_hangs_is_killed_and_one_that_crashes_is_named() -> None:
    async def main() -> None:
        workers = LocalWorkers(run_id=RUN)
        try:
            hung, crashed = await asyncio.gather(
                workers.worker(place(0), PARROT, {}), workers.worker(place(1), PARROT, {})
            )
            with pytest.raises(WorkerFailed, match=r"parrot-0: no answer to hang within 0.3 s"):
                await hung.call("hang", (), {}, seconds=0.3)
            await asyncio.wait_for(hung.wait_dead(), 5)
            with pytest.raises(WorkerFailed, match="worker parrot-1: parrot-1 "):
                await crashed.call("crash", (), {}, seconds=20)
            with pytest.raises(WorkerFailed, match="worker parrot-1"):
                await crashed.call("say", ("x",), {}, seconds=20)
        finally:
            await workers.close()

    asyncio.run(main())


def test_a_dead_worker_is_noticed_within_a_second() -> None:
    async def main() -> None:
        workers = LocalWorkers(run_id=RUN)
        try:
            worker = await workers.worker(place(), PARROT, {})
            (process,) = live_processes(RUN)
            began = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            assert "parrot-0" in await asyncio.wait_for(worker.wait_dead(), 5)
            assert time.monotonic() - began < 1.0
        finally:
            await workers.close()

    asyncio.run(main())


def test_a_class_is_imported_from_its_folder_and_one_that_is_not_there_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            class Mine:
                def __init__(self, size):
                    self.size = size
                def grow(self, more):
                    self.size += more
                    return self.size
            """
        )
    )

    async def main() -> None:
        workers = LocalWorkers(run_id=RUN, logs=tmp_path)
        mine = ClassPath(path="mine:Mine", folder=str(tmp_path))
        try:
            worker = await workers.worker(place(), mine, {"size": 3})
            assert [await worker.call("grow", (n,), {}, seconds=20) for n in (1, 2)] == [4, 6]
            with pytest.raises(WorkerFailed, match=r"parrot-1: cannot be started: .*No module"):
                await workers.worker(place(1), ClassPath(path="mine:Mine"), {"size": 3})
            with pytest.raises(WorkerFailed, match=r"parrot-2: cannot be started: .*TypeError"):
                await workers.worker(place(2), mine, {})
        finally:
            await workers.close()

    asyncio.run(main())
