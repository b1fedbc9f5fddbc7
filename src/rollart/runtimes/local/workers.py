"""Workers of users' classes, each in a killable child: the `Workers` port of this machine.

Invariant: what was started here has ended when `close` returns. Who waits on whom: a call waits for
the worker's answer, under its deadline; one that passes ends the worker, whose state is unknown
from then on.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart.core.errors import WorkerFailed
from rollart.core.ports import Binding, ClassPath, WorkerHandle
from rollart.process.child import Child
from rollart.process.errors import CallTimeout, ChildDied, ProcessError, RemoteError
from rollart.process.spawn import spawn
from rollart.runtimes.local import worker_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.values import pack_value, unpack_value
from rollart.runtimes.local.worker_host import WorkerHostConfig

START_S = 300.0
"""Seconds that making an instance may take: it may load a model."""

_CLOSE_GRACE_S = 2.0


class LocalWorkers:
    """Starts workers on this machine.

    Args:
        python_path: folders, besides the installed packages, from which classes are imported.
        logs: folder that gets a log a worker; without it their output is dropped.
        run_id: marks the processes.
    """

    def __init__(
        self, *, python_path: Sequence[str] = (), logs: Path | None = None, run_id: str = "workers"
    ) -> None:
        self._python_path = tuple(python_path)
        self._logs = logs
        self._env = child_environment(os.environ, run_id)
        self._started: list[LocalWorker] = []

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        """A worker of the class. Raises `WorkerFailed` when it cannot be started."""
        name = binding.worker
        try:
            child = await spawn(
                worker_host.ENTRY,
                WorkerHostConfig(
                    path=kind.path,
                    options=pack_value(dict(options)),
                    worker=name,
                    hardware=binding.hardware,
                ),
                name=name,
                env=self._env,
                inherit_env=False,
                python_path=(*self._python_path, *([kind.folder] if kind.folder else [])),
                start_timeout=START_S,
                log_file=None if self._logs is None else self._logs / f"{name}.log",
            )
        except ProcessError as error:
            raise WorkerFailed(name, f"cannot be started: {in_a_line(error)}") from error
        worker = LocalWorker(child, binding)
        self._started.append(worker)
        return worker

    async def close(self) -> None:
        """End every worker, within seconds."""
        async with asyncio.TaskGroup() as group:
            for worker in self._started:
                group.create_task(worker.close())


class LocalWorker:
    """The `WorkerHandle` port over one child."""

    def __init__(self, child: Child, binding: Binding) -> None:
        self._child = child
        self._binding = binding

    @property
    def id(self) -> str:
        return self._binding.worker

    @property
    def hardware(self) -> str:
        return self._binding.hardware

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        """The method's result. Raises `WorkerFailed`."""
        packed = (pack_value(args), pack_value(kwargs))
        try:
            return unpack_value(await self._child.call("call", method, *packed, timeout=seconds))
        except RemoteError as error:
            reason = f"{method} raised {error.type_name}: {error.message}"
            raise WorkerFailed(self.id, reason) from error
        except ChildDied as error:
            raise WorkerFailed(self.id, in_a_line(error.report)) from error
        except CallTimeout as error:
            self._child.kill()
            reason = f"no answer to {method} within {seconds:g} s; it was killed"
            raise WorkerFailed(self.id, reason) from error

    async def wait_dead(self) -> str:
        """Why the child ended, once it has."""
        return in_a_line(await asyncio.shield(self._child.died))

    async def close(self) -> None:
        """End the child, in order if it can, and wait until it is gone."""
        await self._child.close(_CLOSE_GRACE_S)
