"""In the child: finding and calling what a user wrote.

Invariant: whatever user code raises is caught here or by the one caller of `Caller.call`, and
told in one line: type, message, and the line of the user's file it came from.
"""

import asyncio
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from rollart.data.classes import RunReached


def load(path: str) -> Any:
    """The object at ``module:name``.

    Raises:
        ImportError: the module or the name does not exist. Whatever importing the module raises.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except RunReached:
        module = _read_script(module_name)
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ImportError(
            f"module {module_name!r} ({getattr(module, '__file__', 'built in')}) has no {name!r}; "
            f"it has: {', '.join(public[:12])}"
        )
    return getattr(module, name)


def _read_script(name: str) -> ModuleType:
    """The module of a script that starts a run: what stands above that."""
    spec = importlib.util.find_spec(name)
    assert spec is not None  # it has just been imported, up to there
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with suppress(RunReached):
        spec.loader.exec_module(module)
    return module


def describe(error: BaseException) -> str:
    """One line: type and message of an exception, and where it was raised outside this package."""
    text = " ".join(str(error).split())[:2000]
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if "rollart/runtimes/local" not in frame.filename]
    where = f" ({foreign[-1].filename}:{foreign[-1].lineno})" if foreign else ""
    return f"{type(error).__name__}: {text}{where}"


def show_prints_at_once() -> None:
    """Flush user prints line by line, so that a killed child's last words are in the log."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


class Caller:
    """Calls plain and async functions alike; async ones in one event loop of this process."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result, awaited if it is awaitable."""
        result = function(*args)
        if not inspect.isawaitable(result):
            return result
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_await(result))


async def _await(awaitable: Any) -> Any:
    return await awaitable
