"""The real functions-framework, as Cloud Run and Knative run it, on loopback.

Invariant: it serves ``main.py`` of a folder, its processes are killed with the context.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart.testing.loopback.runtime_process import RuntimeProcess, free_port


class FunctionsFramework:
    """One function's server; an async context manager.

    Args:
        folder: of the package.
        target: the function's name in ``main.py``.
        workers, threads: its own settings of parallelism; its default is about 8 calls at once.
        environment: variables that the function declares.
        python: command of the interpreter; by default this one, with its packages.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: str = "score",
        workers: int = 1,
        threads: int = 16,
        environment: Mapping[str, str] | None = None,
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        self._folder = folder
        self._command = [
            *python,
            "-m",
            "functions_framework",
            "--target",
            target,
            "--source",
            str(folder / "main.py"),
            "--host",
            "127.0.0.1",
        ]
        self._environment = {
            "PYTHONPATH": str(folder),
            "THREADS": str(threads),
            "WORKERS": str(workers),
            **(environment or {}),
        }
        self._process: RuntimeProcess | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def start(self) -> None:
        """Start it, on the port of an earlier start if there was one, until it listens."""
        self._port = self._port or free_port()
        process = await RuntimeProcess.start(
            [*self._command, "--port", str(self._port)],
            folder=self._folder,
            environment=self._environment,
            log=self._folder / "runtime.log",
        )
        self._process = process
        if not await process.listens(self._port):
            raise RuntimeError(f"functions-framework ended: {process.last_words()}")

    async def stop(self) -> None:
        """Kill it; `start` brings it back at the same URL."""
        if self._process is not None:
            await self._process.stop_listening(self._port)

    async def __aenter__(self) -> "FunctionsFramework":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
