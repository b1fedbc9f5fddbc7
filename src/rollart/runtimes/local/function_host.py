"""The child of a local function's pool: a user's function behind the wire, within its limits.

Invariant: memory, network, files and processor time are bounded before the first call, and each
call has a fork of its own unless the function declares that it may not; it may block, crash or hang
all the same, and its owner kills this process when a call takes too long.
"""

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.scoring.declared import declared_settings
from rollart.core.scoring.handle import Handler
from rollart.process.errors import ChannelClosed
from rollart.process.serve import ChildPort
from rollart.runtimes.local.forked_calls import CallCrashed, ForkedCalls
from rollart.runtimes.local.function_limits import (
    bound_memory,
    bound_processor,
    leave_network,
    write_only_to,
)
from rollart.runtimes.local.user_code import describe, load, show_prints_at_once

ENTRY = "rollart.runtimes.local.function_host:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionHostConfig:
    """One function.

    Attributes:
        function: its import path.
        version: the hash of its sources.
        store: prefix of URLs that documents may be read from.
        scratch: the one folder that a function without network may write to; where it runs.
    """

    function: str
    version: str
    store: str = ""
    scratch: str = ""


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: for each job of a request and its seconds, an event with the answer."""
    settings = msgspec.convert(config, FunctionHostConfig)
    show_prints_at_once()
    function = load(settings.function)
    declared = declared_settings(function)
    if settings.scratch:
        os.chdir(settings.scratch)
        os.environ["TMPDIR"] = tempfile.tempdir = settings.scratch
    if not declared.network:
        leave_network()
        write_only_to(settings.scratch)
    bound_memory(declared.memory_mib)
    handler = Handler(
        function,
        path=settings.function,
        version=settings.version,
        store=settings.store,
        forks=not declared.reuse,
    )

    def work(body: bytes, seconds: float) -> bytes:
        bound_processor(seconds, for_good=not declared.reuse)
        return handler.handle(body)

    calls = None if declared.reuse else ForkedCalls(work)
    if calls is not None:
        calls.prepare()
    port.ready()
    while not port.stopping:
        for request in port.requests(None):
            if calls is None:
                tell(port, work(*request.args))
            else:
                answer(port, handler, calls, *request.args)


def answer(
    port: ChildPort, handler: Handler, calls: ForkedCalls, body: bytes, seconds: float
) -> None:
    """Answer a request from a fork. Where that ends first, this process ends with its words."""
    try:
        with calls.answer(body, seconds) as answered:
            tell(port, answered)
    except CallCrashed as crashed:
        raise SystemExit(str(crashed)) from crashed
    handler.answered()
    calls.prepare()


def tell(port: ChildPort, outcome: Any, *why: Any) -> None:
    """Answer with `outcome`; where it cannot be sent, with ``[False, reason, *why]``."""
    try:
        port.event(outcome)
    except ChannelClosed:
        raise
    except Exception as error:  # too large, or text that is no text: it costs one call only
        port.event((False, describe(error), *why))
