"""A loopback platform in a process of its own, for whoever measures or holds an event loop itself.

Invariant: the process reads commands, a line each, and answers each with a line of JSON; it ends
with its input, so with whoever started it, and leaves nothing behind.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rollart.testing.loopback.fc_platform import CustomRuntime, fc_cloud
from rollart.testing.loopback.functions_framework import FunctionsFramework
from rollart.testing.loopback.instances import Figures, Scaling
from rollart.testing.loopback.lambda_platform import LambdaFunction, lambda_cloud

KINDS = ("lambda", "fc", "framework")
_ENDS_S = 30.0  # seconds that the process gets to end its instances


class Apart:
    """A platform of one of `KINDS` over a folder as `write_handler` makes it.

    A context manager. Its methods block for about a millisecond.

    Args:
        environment: variables that the function declares.
        options: of the class of that kind, such as ``threads=32`` for functions-framework.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        scaling: Scaling | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no loopback platform; use one of {', '.join(KINDS)}")
        told = {
            "kind": kind,
            "folder": str(folder),
            "scaling": asdict(scaling or Scaling()),
            "options": {**options, "environment": dict(environment or {})},
        }
        self._command = [sys.executable, "-P", "-m", __name__, json.dumps(told)]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> "Apart":
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.url = self._told()["url"]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (process := self._process) is not None:
            try:
                process.communicate(timeout=_ENDS_S)  # closes its input first
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def figures(self) -> Figures:
        """What happened up to now. functions-framework counts nothing."""
        return Figures(**self._ask("figures"))

    def down(self) -> None:
        """Nothing answers at the URL any more, as if it were gone."""
        self._ask("down")

    def up(self) -> None:
        """It answers again."""
        self._ask("up")

    def _ask(self, command: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        return self._told()

    def _told(self) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the platform's process ended with {process.wait()}")
        return json.loads(line)


async def _run(told: Mapping[str, Any]) -> None:
    folder, scaling = Path(told["folder"]), Scaling(**told["scaling"])
    async with AsyncExitStack() as stack:
        if told["kind"] == "framework":
            framework = FunctionsFramework(folder, **told["options"])
            await stack.enter_async_context(framework)
            url, server = framework.url, framework
            figures = Figures
        else:
            platform = (
                lambda_cloud(LambdaFunction(folder=folder, **told["options"]), scaling)
                if told["kind"] == "lambda"
                else fc_cloud(CustomRuntime(folder=folder, **told["options"]), scaling)
            )
            await stack.enter_async_context(platform)
            url, server = platform.url, platform.server
            figures = platform.figures
        _tell({"url": url})
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
        )
        while line := await commands.readline():
            command = line.decode().strip()
            if command == "down":
                await server.stop()
            elif command == "up":
                await server.start()
            _tell(asdict(figures()))


def _tell(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
