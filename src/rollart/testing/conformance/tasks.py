"""Conformance of a `TaskSource`: one order, a position that can be kept, an end that stays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollart.core.ports import TaskSource
from rollart.core.types import Task
from rollart.testing.conformance.contract import Contract

MakeSource = Callable[[], Awaitable[TaskSource]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSourceTrial:
    """What the suite may assume: the domain, and how many tasks there are if they end."""

    domain: str
    count: int | None = None
    look_at: int = 12
    patience_s: float = 30.0


async def check_task_source(make: MakeSource, trial: TaskSourceTrial) -> None:
    """Every clause of the `TaskSource` port; raises `ConformanceError` at the first broken one.

    Args:
        make: makes the same source from its beginning; called several times.
    """
    contract = Contract("TaskSource", trial.patience_s)
    wanted = trial.look_at if trial.count is None else min(trial.look_at, trial.count)

    async def take(source: TaskSource, count: int) -> list[Task]:
        taken: list[Task] = []
        for _ in range(count):
            task = await contract.soon(source.next(), "next returns")
            contract.require(task is not None, "there are as many tasks as were said", f"{taken}")
            if task is not None:
                taken.append(task)
        return taken

    tasks = await take(await make(), wanted)
    for task in tasks:
        good = task.domain == trial.domain and bool(task.key)
        contract.require(good, "a task has the domain and a key", f"{task}")
    again = await take(await make(), wanted)
    contract.require(again == tasks, "the order is the same in every run", f"{tasks}, {again}")
    for cut in sorted({0, 1, wanted // 2, wanted}):
        source = await make()
        await take(source, cut)
        position = source.snapshot()
        await take(source, wanted - cut)
        for fresh in (source, await make()):
            fresh.restore(position)
            contract.require(
                fresh.snapshot() == position, "a position restored is the position", f"{position}"
            )
            rest = await take(fresh, wanted - cut)
            clause = "after restore it goes on where it was"
            contract.require(rest == tasks[cut:], clause, f"{rest} after {cut}")
    if trial.count is not None:
        await _ends(contract, await make(), trial.count)


async def _ends(contract: Contract, source: TaskSource, count: int) -> None:
    found = 0
    while found <= count and await contract.soon(source.next(), "next returns") is not None:
        found += 1
    contract.require(found == count, "there are as many tasks as were said", f"{found} of {count}")
    for _ in range(3):
        late = await contract.soon(source.next(), "next returns")
        contract.require(late is None, "once there are no more, there are no more", f"{late}")
