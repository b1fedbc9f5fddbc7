"""The process of a function's runtime: started clean, killed with all its children."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STARTING_S = 30.0
"""Seconds until a server that was started listens, or is taken for one that never will."""

_LOOK_S = 0.01  # between two looks whether it listens yet
_INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR")
"""Variables that a runtime gets of ours; a platform gives a function no more than it declares."""


class RuntimeProcess:
    """One process in a session of its own. `ended` is set once it is gone, and `status` with it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._waiting = asyncio.create_task(self._wait())
        self.ended = asyncio.Event()

    @classmethod
    async def start(
        cls, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
    ) -> "RuntimeProcess":
        """Run `command` in `folder`; what it prints is added to `log`."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env={**inherited, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status; negative for a signal; None while it runs."""
        return self._process.returncode

    def last_words(self, size: int = 500) -> str:
        """The end of what all of this function's processes printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-size:].strip()

    async def listens(self, port: int) -> bool:
        """Until it takes a connection on `port`, which nothing else tells; False if it ends first.

        Raises `TimeoutError` after `STARTING_S`.
        """
        async with asyncio.timeout(STARTING_S):
            while not self.ended.is_set():
                if await _is_open(port):
                    return True
                await asyncio.sleep(_LOOK_S)
        return False

    async def stop_listening(self, port: int) -> None:
        """Kill it, and wait until its children, who may listen too, are gone as well."""
        await self.stop()
        async with asyncio.timeout(STARTING_S):
            while True:
                if not await _is_open(port):
                    return
                await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Kill it and its children, and wait until it is gone."""
        if not self.ended.is_set():
            self._kill()
        await self._waiting

    async def _wait(self) -> None:
        await self._process.wait()
        self._kill()  # children that outlived it
        self.ended.set()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def _is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return True


def free_port() -> int:
    """A port that was free just now, for a server that binds it itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
