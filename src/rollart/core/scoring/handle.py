"""A user's function behind the wire: request bytes in, answer bytes out, on every platform.

Invariant: `handle` always answers, whatever the function does, short of ending the process; a
function that raises, or returns what is no verdict, is an error and never a score.
"""

import asyncio
import hashlib
import inspect
import json
import os
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.verdict import Verdict, as_verdict
from rollart.core.scoring.wire import (
    Answer,
    Garbled,
    Reference,
    Request,
    bounded,
    decode_request,
    encode_answer,
)

STORE = "ROLLART_REWARD_STORE"
"""Environment variable with the prefix of URLs that documents may be read from."""

LARGEST = 1 << 30  # bytes of a document that is read from a store


class Handler:
    """One function, in this process.

    Args:
        function: ``score(trajectory)``, plain or ``async``.
        path: its import path, ``module:function``.
        version: the hash of its sources.
        store: prefix of URLs that documents may be read from; by default `STORE` says.
        forks: each call is answered in a fork of this process, and counts as this process's.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        path: str,
        version: str,
        store: str | None = None,
        forks: bool = False,
    ) -> None:
        self._function = function
        self._path = path
        self._version = version
        self._store = os.environ.get(STORE, "") if store is None else store
        self._forks = forks
        self._process, self._instance = os.getpid(), uuid.uuid4().hex[:12]
        self._cold = True

    def answered(self) -> None:
        """A fork of this process has answered a call, so the next is none of the first."""
        self._cold = False

    def handle(self, body: bytes | str) -> bytes:
        """Answer a request; never raises. Runs coroutines to their end, so not inside a loop."""
        began = time.monotonic()
        self._know_process()
        cold, key = self._cold, ""
        verdict: Verdict | None = None
        error = ""
        try:
            request = decode_request(body)
            key = request.key
            if not request.is_health:
                self._cold = False
                document = self._document(request)
                began = time.monotonic()
                verdict = self._score(document)
        except Garbled as garbled:
            error = _words(garbled)
        except BaseException as raised:  # also sys.exit() in user code: it costs one call only
            error = f"{type(raised).__name__}: {_words(raised)}"
        return encode_answer(
            Answer(
                key=key,
                function=self._path,
                version=self._version,
                instance=self._instance,
                cold=cold,
                seconds=time.monotonic() - began,
                verdict=None if error else verdict,
                error=error,
            )
        )

    def _know_process(self) -> None:
        """A server may have loaded the function first and forked then: each process is its own."""
        if not self._forks and self._process != os.getpid():
            self._process, self._instance, self._cold = os.getpid(), uuid.uuid4().hex[:12], True

    def _score(self, document: TrajectoryDocument) -> Verdict:
        value = self._function(document)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        return as_verdict(value, turns=len(document.turns))

    def _document(self, request: Request) -> TrajectoryDocument:
        if request.reference is None:
            return TrajectoryDocument.from_json(request.trajectory)
        data = _fetched(request.reference, self._store)
        return TrajectoryDocument.from_json(json.loads(data))


def _words(raised: BaseException) -> str:
    """What it says, bounded; what says it is user code, too."""
    try:
        return bounded(str(raised))
    except BaseException as another:
        return f"its words cannot be had, that raises {type(another).__name__}"


async def _awaited(value: Any) -> Any:
    return await value


def _fetched(where: Reference, store: str) -> bytes:
    """A document's bytes, from the store only, whole or not at all."""
    if not store or not _within(where.url, store):
        raise ValueError(
            f"the trajectory lies at {where.url!r}, outside the store {store!r}; set {STORE} of "
            "the function to what ?store= of the reward's URL says"
        )
    if where.size > LARGEST:
        raise ValueError(f"a trajectory of {where.size} bytes; at most {LARGEST}")
    data = _read(where.url)
    if len(data) != where.size or hashlib.sha256(data).hexdigest() != where.sha256:
        raise ValueError(
            f"{where.url}: {len(data)} bytes that are not the {where.size} that were stored"
        )
    return data


def _within(url: str, store: str) -> bool:
    ours, theirs = urllib.parse.urlsplit(store), urllib.parse.urlsplit(url)
    if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
        return False
    inside = theirs.path.removeprefix(ours.path.rstrip("/") + "/")
    return inside != theirs.path and ".." not in urllib.parse.unquote(theirs.path).split("/")


def _read(url: str) -> bytes:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path)).read_bytes()
    try:
        fsspec: Any = import_module("fsspec")  # the package lists it where its store needs it
    except ImportError as error:
        raise ValueError(
            f"{url!r} needs fsspec, which this function's package lacks; package it with "
            f"--store {parts.scheme}://…"
        ) from error
    with fsspec.open(url, "rb") as file:
        return file.read()
