"""Workers in this very process, and a class for them that every `Workers` port can start."""

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rollart.core.errors import WorkerFailed
from rollart.core.ports import Binding, ClassPath, WorkerHandle


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


class ScriptedWorker:
    """The `WorkerHandle` port over an instance; it dies when told to."""

    def __init__(self, binding: Binding, instance: Any) -> None:
        self._binding = binding
        self._instance = instance
        self._instance.worker, self._instance.hardware = binding.worker, binding.hardware
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    @property
    def id(self) -> str:
        return self._binding.worker

    @property
    def hardware(self) -> str:
        return self._binding.hardware

    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        if self._dead.done():
            raise WorkerFailed(self.id, self._dead.result())
        self.calls.append((method, tuple(args)))
        try:
            async with asyncio.timeout(seconds):
                result = getattr(self._instance, method)(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            self.die(f"no answer to {method} within {seconds:g} s")
            raise WorkerFailed(self.id, self._dead.result()) from None
        except Exception as error:
            raise WorkerFailed(self.id, f"{method} raised {error!r}") from error

    def die(self, reason: str) -> None:
        if not self._dead.done():
            self._dead.set_result(reason)

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        self.die("closed")


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
