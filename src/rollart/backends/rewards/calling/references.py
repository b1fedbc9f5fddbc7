"""Documents too large to send: in a store that both sides reach, while their call lasts.

Invariant: an object's name is the hash of its content, it is whole before anybody is told of it,
and it is removed when the last call that needs it has ended. Files and sockets are used in threads
of the store's own, since a store that hangs must not take those in which names are resolved; who
puts or closes waits for them no longer than `STORE_S`.
"""

import asyncio
import hashlib
import os
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Reference

STORE_S = 60.0
"""Seconds that writing one document may take."""

THREADS = 8
"""Documents written or removed at once, of one store."""


class Objects(Protocol):
    """Where bytes lie, by URL."""

    async def write(self, url: str, data: bytes) -> None: ...

    async def remove(self, url: str) -> None: ...


class _Held:
    """An object, and how many need it."""

    def __init__(self) -> None:
        self.users = 0
        self.begun = False  # there may be something, perhaps in part
        self.whole = False
        self.lock = asyncio.Lock()


class References:
    """Documents in the folder at `store_url`.

    Args:
        seconds: that a document may take to be written, and `close` to remove what is left.

    Raises `ConfigError` for a URL that no installed package serves.
    """

    def __init__(
        self, store_url: str, *, objects: Objects | None = None, seconds: float = STORE_S
    ) -> None:
        self._store = store_url.rstrip("/")
        self._folder = _path(store_url) if _is_here(store_url) else None
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._objects = _objects_at(store_url, self._threads) if objects is None else objects
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, seconds: float) -> None:
        """Ask at the start whether a folder here can hold documents; in mid-run `put` finds out.

        Raises `ConfigError` for one that neither is there nor has a parent that is: it may be
        mistyped, or its disk not mounted.
        """
        if self._folder is None:
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                lacks = await loop.run_in_executor(self._threads, _lacks, self._folder)
        except TimeoutError:
            lacks = (
                f"{self._folder} does not answer within {seconds:.3g} s; check the disk it is on"
            )
        if lacks:
            raise ConfigError(f"?store={self._store}: {lacks}")

    async def put(self, data: bytes) -> Reference:
        """Store a document; `drop` what comes back when its call has ended.

        Raises `PlatformFault` of the kind UNAVAILABLE; what was begun is removed then, once it
        has come to its end.
        """
        digest = hashlib.sha256(data).hexdigest()
        reference = Reference(url=f"{self._store}/{digest}.json", size=len(data), sha256=digest)
        held = self._held.setdefault(reference.url, _Held())
        held.users += 1
        writing = self._begin(self._write(reference.url, held, data))
        scope = asyncio.timeout(self._seconds)
        try:
            async with scope:
                await asyncio.shield(writing)  # a thread cannot be cancelled
        except asyncio.CancelledError:
            self.drop(reference)
            raise
        except Exception as error:
            self.drop(reference)
            late = f"a document was not written within {self._seconds:.3g} s"
            why = late if scope.expired() else f"{type(error).__name__}: {error}"
            raise PlatformFault(Fault.UNAVAILABLE, f"the store {self._store}: {why}") from error
        return reference

    def drop(self, reference: Reference) -> None:
        """A call no longer needs it; never waits. `close` does."""
        held = self._held[reference.url]
        held.users -= 1
        if not held.users:
            self._begin(self._remove(reference.url, held))

    async def close(self) -> None:
        """Wait until all that was dropped is gone; what the store does not take away stays."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        while self._tasks and loop.time() < deadline:
            await asyncio.wait(self._tasks, timeout=deadline - loop.time())
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _write(self, url: str, held: _Held, data: bytes) -> None:
        async with held.lock:
            if not held.whole:
                held.begun = True
                await self._objects.write(url, data)
                held.whole = True

    async def _remove(self, url: str, held: _Held) -> None:
        async with held.lock:
            if held.users:
                return
            if held.begun:
                held.begun = held.whole = False
                await self._objects.remove(url)
            if not held.users and self._held.get(url) is held:
                del self._held[url]

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told by `put`; what cannot be removed is left to the store


def _objects_at(url: str, threads: ThreadPoolExecutor) -> Objects:
    if _is_here(url):
        return _InThreads(threads, write=_write_file, remove=_remove_file)
    scheme = urllib.parse.urlsplit(url).scheme
    try:
        import fsspec

        if not scheme:
            raise ValueError("it is no URL")
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"?store={url}: {error}; use file:///folder, or install what serves "
            f"{scheme or 'such'} URLs (fsspec, and s3fs for s3://)"
        ) from error
    return _InThreads(threads, write=_write_remote, remove=_remove_remote)


def _is_here(url: str) -> bool:
    return urllib.parse.urlsplit(url).scheme == "file"


def _lacks(folder: Path) -> str:
    """Why no documents can lie there, or nothing. Only the folder itself is made, by the first."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return f"{folder} is no folder; give one, or what can be made one"
    if not os.path.isdir(folder.parent):
        return (
            f"there is no folder {folder.parent} to make it in; make that, or mount the disk that "
            "it is on"
        )
    return ""


class _InThreads:
    """Objects by functions that block."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        *,
        write: Callable[[str, bytes], None],
        remove: Callable[[str], None],
    ) -> None:
        self._threads = threads
        self._write = write
        self._remove = remove

    async def write(self, url: str, data: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._write, url, data)

    async def remove(self, url: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._remove, url)


def _write_file(url: str, data: bytes) -> None:
    """In a folder of this machine, or one that is mounted on it."""
    path = _path(url)
    if lacks := _lacks(path.parent):
        raise NotADirectoryError(lacks)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def _remove_file(url: str) -> None:
    _path(url).unlink(missing_ok=True)


def _write_remote(url: str, data: bytes) -> None:
    """In whatever fsspec reaches, with credentials from the environment."""
    files, path = _at(url)
    files.pipe_file(path, data)


def _remove_remote(url: str) -> None:
    files, path = _at(url)
    files.rm_file(path)


def _at(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    return url_to_fs(url)


def _path(url: str) -> Path:
    return Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
