"""Tasks of one domain, made by the user's class in a child: the control side.

Owns the position: how many tasks were handed out. Invariant: the position alone says what comes
next, so a source restored to it, here or in another process, goes on with the same task. Waits on
the child, under a deadline, whenever the stock that it sent is used up.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rollart.core.errors import ConfigError
from rollart.core.types import Task
from rollart.process.child import Child
from rollart.process.errors import CallTimeout, ChildDied, ProcessError, RemoteError
from rollart.runtimes.local.codec import Packed, plain
from rollart.runtimes.local.remote import in_a_line

TASKS_S = 60.0
"""Seconds that user code may take to make one task, or all held-out ones."""

ForkTasks = Callable[[int], Awaitable[Child]]
"""Forks a child that runs `task_host.entry` from the given position on."""


class LocalTaskSource:
    """The `TaskSource` port for one domain.

    Args:
        domain: the tag.
        path: the environment's import path, for messages.
    """

    def __init__(self, domain: str, path: str, fork: ForkTasks) -> None:
        self._domain = domain
        self._path = path
        self._fork = fork
        self._child: Child | None = None
        self._stock: deque[Packed] = deque()
        self._position = 0
        self._over = False
        self._turn = asyncio.Lock()

    async def next(self) -> Task | None:
        """The next task; None when there are no more.

        Raises `ConfigError`, naming the class, when its code fails, hangs or ends its process.
        """
        async with self._turn:
            if not self._stock and not self._over:
                await self._restock()
            if not self._stock:
                return None
            task = Task(domain=self._domain, key=str(self._position), payload=self._stock.popleft())
            self._position += 1
            return task

    def snapshot(self) -> int:
        """How many tasks were handed out."""
        return self._position

    def restore(self, position: int) -> None:
        """Go on as if `position` tasks had been handed out."""
        if position < 0:
            raise ValueError(f"position = {position}: a count of tasks, 0 or more")
        self._position = position
        self._stock.clear()
        self._over = False
        if self._child is not None:
            self._child.kill()
            self._child = None

    async def _restock(self) -> None:
        if self._child is None or not self._child.alive:
            self._child = await started(self._fork, self._position, self._domain, self._path)
        taken = await asked(self._child, "take", (), domain=self._domain, path=self._path)
        self._stock.extend(taken)
        self._over = not taken


async def heldout(child: Child, count: int, *, domain: str, path: str) -> tuple[Task, ...]:
    """At most `count` distinct tasks that training never meets; errors as `LocalTaskSource`."""
    payloads = await asked(child, "heldout", (count,), domain=domain, path=path)
    return tuple(
        Task(domain=domain, key=f"heldout-{number}", payload=payload)
        for number, payload in enumerate(payloads)
    )


async def baselines(
    child: Child, tasks: Sequence[Task], *, path: str
) -> tuple[tuple[str, float], ...]:
    """Success of the class's simple policies on these tasks; empty if it has none."""
    if not tasks:
        return ()
    payloads = [plain(task.payload) for task in tasks]
    measured = await asked(child, "baselines", (payloads,), domain=tasks[0].domain, path=path)
    return tuple((name, success) for name, success in measured)


async def started(fork: ForkTasks, position: int, domain: str, path: str) -> Child:
    """A tasks' child. Raises `ConfigError` when the class cannot be loaded in it."""
    try:
        return await fork(position)
    except ProcessError as error:
        raise ConfigError(
            f"domains[{domain}].environment = {path!r}: {in_a_line(error)}"
        ) from error


async def asked(
    child: Child, method: str, arguments: tuple[Packed, ...], *, domain: str, path: str
) -> Packed:
    """The child's answer; what user code did wrong becomes a `ConfigError` that names it."""
    names = {"take": "train_tasks", "heldout": "heldout_tasks"}
    what = f"domains[{domain}].environment = {path!r}: {names.get(method, method)}"
    try:
        return await child.call(method, *arguments, timeout=TASKS_S)
    except RemoteError as error:
        raise ConfigError(f"{what} raised {error.type_name}: {error.message}") from error
    except CallTimeout as error:
        child.kill()
        raise ConfigError(
            f"{what} took more than {TASKS_S:g} s; make tasks one at a time, each in less"
        ) from error
    except ChildDied as error:
        raise ConfigError(f"{what} ended its process: {in_a_line(error)}") from error
