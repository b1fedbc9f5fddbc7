"""Workers of users' classes in a simulation: instances in this very process.

Invariant: a call ends by its deadline (virtual seconds) or with the worker. What a class computes
takes no virtual time but what it awaits.
"""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollart.core.errors import WorkerFailed
from rollart.core.ports import Binding, ClassPath


class InProcessWorker:
    """The `WorkerHandle` port over an instance."""

    def __init__(self, binding: Binding, instance: Any) -> None:
        self._binding = binding
        self._instance = instance
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> str:
        return self._binding.worker

    @property
    def hardware(self) -> str:
        return self._binding.hardware

    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        """See the port. Raises `WorkerFailed`."""
        if self._dead.done():
            raise WorkerFailed(self.id, self._dead.result())
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                result = getattr(self._instance, method)(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
        except Exception as error:
            if scope.expired():
                self.die(f"no answer to {method} within {seconds:g} s")
                raise WorkerFailed(self.id, self._dead.result()) from None
            raise WorkerFailed(self.id, f"{method} raised {error!r}") from error

    @property
    def alive(self) -> bool:
        return not self._dead.done()

    def die(self, reason: str) -> None:
        """It is gone from now on; the first reason counts."""
        if not self._dead.done():
            self._dead.set_result(reason)

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        self.die("closed")


def start_worker(
    binding: Binding, kind: ClassPath, options: Mapping[str, object]
) -> InProcessWorker:
    """An instance of a class, which knows its place. Raises `WorkerFailed`."""
    module, _, name = kind.path.partition(":")
    try:
        made = getattr(_module(module, kind.folder), name)(**options)
    except Exception as error:
        raise WorkerFailed(
            binding.worker, f"{kind.path} cannot be made: {type(error).__name__}: {error}"
        ) from error
    made.worker, made.hardware = binding.worker, binding.hardware
    return InProcessWorker(binding, made)


def _module(name: str, folder: str) -> Any:
    if not folder or str(Path(folder).resolve()) in sys.path:
        return importlib.import_module(name)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
