"""Workers in this very process, and a class for them that every `Workers` port can start."""

import asyncio
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rollart.core.errors import WorkerFailed
from rollart.core.ports import Binding, ClassPath, WorkerHandle
from rollart.runtimes.sim.workers import InProcessWorker


class Parrot:
    """Says what it is told, and fails when told so."""

    worker = ""
    hardware = ""

    def __init__(self, *, prefix: str = "") -> None:
        self._prefix = prefix

    def say(self, word: str) -> str:
        return self._prefix + word

    async def where(self) -> list[str]:
        return [self.worker, self.hardware]

    def fail(self) -> None:
        raise ValueError("as told")

    async def hang(self) -> None:
        await asyncio.get_running_loop().create_future()

    def crash(self) -> None:
        """Ends its process: not for workers that share one."""
        os._exit(3)


PARROT = ClassPath(path=f"{__name__}:Parrot")


class ScriptedWorker(InProcessWorker):
    """A worker in this process that keeps its calls, and dies when told to."""

    def __init__(self, binding: Binding, instance: Any) -> None:
        super().__init__(binding, instance)
        instance.worker, instance.hardware = binding.worker, binding.hardware
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        if self.alive:
            self.calls.append((method, tuple(args)))
        return await super().call(method, args, kwargs, seconds=seconds)


class ScriptedWorkers:
    """The `Workers` port over instances, of which it keeps hold.

    Args:
        refuse: workers that cannot be started, by name.
    """

    def __init__(self, refuse: Sequence[str] = ()) -> None:
        self._refuse = frozenset(refuse)
        self.started: dict[str, ScriptedWorker] = {}

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        if binding.worker in self._refuse:
            raise WorkerFailed(binding.worker, "scripted")
        module, _, name = kind.path.partition(":")
        if module not in sys.modules:
            importlib.import_module(module)
        instance = getattr(sys.modules[module], name)(**options)
        self.started[binding.worker] = ScriptedWorker(binding, instance)
        return self.started[binding.worker]
