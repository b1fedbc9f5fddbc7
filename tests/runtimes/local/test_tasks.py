"""Tasks from a child: the position alone says what comes next, and user errors name the class."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.process.owner import live_processes
from rollart.runtimes.local import task_host, tasks
from rollart.runtimes.local.task_host import STOCK, TaskHostConfig
from rollart.runtimes.local.tasks import LocalTaskSource

TASKS = '''
import itertools, os, time

class Plain:
    """Says nothing about tasks."""
    def reset(self, task, seed): ...
    def step(self, action): ...

class Endless(Plain):
    @staticmethod
    def train_tasks(seed, *, start=0, **options):
        for number in itertools.count(start):
            yield {"number": number, "seed": seed}

    @staticmethod
    def heldout_tasks(count, seed, **options):
        return [{"number": -number // 2} for number in range(1, 2 * count)]

    @staticmethod
    def baselines(tasks, **options):
        return {"mean": sum(task["number"] for task in tasks) / len(tasks)}

class Five(Plain):
    @classmethod
    def train_tasks(cls, seed, **options):
        return [{"number": number} for number in range(5)]

class Raises(Plain):
    @staticmethod
    def train_tasks(seed, **options):
        yield {"number": 0}
        raise KeyError("no more maps")

class Odd(Plain):
    @staticmethod
    def train_tasks(seed, **options):
        yield "just text"

class Crashes(Plain):
    @staticmethod
    def train_tasks(seed, **options):
        os._exit(3)
'''

Fork = tasks.ForkTasks


@pytest.fixture
def source(warm_forks, user_folder: Path):
    (user_folder / "my_tasks.py").write_text(TASKS)

    @contextlib.asynccontextmanager
    async def make(name: str, **options: object) -> AsyncIterator[tuple[LocalTaskSource, Fork]]:
        path = f"my_tasks:{name}"
        async with warm_forks(modules=("my_tasks",)) as forks:

            async def fork(position: int):
                config = TaskHostConfig(
                    environment=path, options=dict(options), seed=11, position=position
                )
                return await forks.fork(task_host.ENTRY, config, name="lake-tasks")

            yield LocalTaskSource("lake", path, fork), fork

    return make


async def numbers(source: LocalTaskSource, count: int) -> list[object]:
    found = [await source.next() for _ in range(count)]
    return [task and task.payload["number"] for task in found]


def test_tasks_come_in_order_with_keys_seed_and_options(source):
    async def main():
        async with source("Endless", start=100) as (tasks_, _):
            first = await tasks_.next()
            assert first.key == "0"
            assert first.domain == "lake"
            assert first.payload == {"number": 100, "seed": 11}
            count = 3 * STOCK
            assert await numbers(tasks_, count) == list(range(101, 101 + count))
            assert tasks_.snapshot() == count + 1

    asyncio.run(main())


def test_restoring_a_position_goes_on_with_the_same_task(source):
    async def main():
        async with source("Endless") as (tasks_, _):
            await numbers(tasks_, 7)
            kept = tasks_.snapshot()
            ahead = await numbers(tasks_, 5)
            tasks_.restore(kept)
            assert await numbers(tasks_, 5) == ahead == [7, 8, 9, 10, 11]
            tasks_.restore(0)
            assert (await tasks_.next()).key == "0"

    asyncio.run(main())


def test_a_source_that_ends_says_so_again_and_again(source):
    async def main():
        async with source("Five") as (tasks_, _):
            assert await numbers(tasks_, 7) == [0, 1, 2, 3, 4, None, None]
            tasks_.restore(4)
            assert await numbers(tasks_, 2) == [4, None]

    asyncio.run(main())


def test_a_class_without_tasks_gets_empty_ones_with_distinct_keys(source):
    async def main():
        async with source("Plain") as (tasks_, fork):
            found = [await tasks_.next() for _ in range(3)]
            assert [(task.key, task.payload) for task in found] == [("0", {}), ("1", {}), ("2", {})]
            child = await fork(0)
            held = await tasks.heldout(child, 3, domain="lake", path="my_tasks:Plain")
            assert [task.key for task in held] == ["heldout-0", "heldout-1", "heldout-2"]
            assert await tasks.baselines(child, held, path="my_tasks:Plain") == ()

    asyncio.run(main())


def test_heldout_tasks_are_distinct_and_baselines_are_measured_on_them(source):
    async def main():
        async with source("Endless") as (_, fork):
            child = await fork(0)
            held = await tasks.heldout(child, 4, domain="lake", path="my_tasks:Endless")
            assert [task.payload["number"] for task in held] == [-1, -2, -3, -4]
            measured = await tasks.baselines(child, held, path="my_tasks:Endless")
            assert measured == (("mean", -2.5),)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Raises", r"'my_tasks:Raises': train_tasks raised KeyError: 'no more maps'"),
        ("Odd", r"'my_tasks:Odd': train_tasks raised TypeError: a task is str; yield its payload"),
        ("Crashes", r"'my_tasks:Crashes': train_tasks ended its process: .*exit code 3"),
        ("Missing", r"'my_tasks:Missing': .*has no 'Missing'"),
    ],
)
def test_what_user_code_does_wrong_names_its_class(source, name, told):
    async def main():
        async with source(name) as (tasks_, _):
            with pytest.raises(ConfigError, match=rf"domains\[lake\]\.environment = {told}"):
                await numbers(tasks_, 3)

    asyncio.run(main())


def test_what_came_before_an_error_is_handed_out_first(source):
    async def main():
        async with source("Raises") as (tasks_, _):
            assert await numbers(tasks_, 1) == [0]

    asyncio.run(main())


def test_a_lost_child_is_replaced_at_the_same_position(source):
    async def main():
        async with source("Endless") as (tasks_, _):
            await numbers(tasks_, 3)
            for process in live_processes("test-run"):
                if process.name == "lake-tasks":
                    os.kill(process.pid, 9)
            await asyncio.sleep(0.3)
            count = 2 * STOCK
            assert await numbers(tasks_, count) == list(range(3, 3 + count))

    asyncio.run(main())
