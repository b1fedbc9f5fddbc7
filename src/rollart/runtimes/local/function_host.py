"""The child of a local function's pool: a user's function behind the wire, within its limits.

Invariant: memory, network, files and processor time are bounded before the first call, and each
call has a fork of its own unless the function declares that it may not; it may block, crash or hang
all the same, and its owner kills this process when a call takes too long.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.scoring.declared import declared_settings
from rollart.core.scoring.handle import Handler
from rollart.process.errors import ChannelClosed
from rollart.process.serve import ChildPort
from rollart.runtimes.local.forked_calls import CallCrashed, ForkedCalls, end_as
from rollart.runtimes.local.function_limits import (
    SHARED_MEMORY,
    bound_memory,
    bound_processor,
    give_up_rights,
    leave_system,
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
        scratch: this child's own folder, which it makes, and the one that a function without
            network may write to; each call runs in a folder of its own within, gone with it.
    """

    function: str
    version: str
    store: str
    scratch: str


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: for each job of a request and its seconds, an event with the answer."""
    settings = msgspec.convert(config, FunctionHostConfig)
    show_prints_at_once()
    function = load(settings.function)
    declared = declared_settings(function)
    os.mkdir(settings.scratch)
    _work_in(settings.scratch)
    shared: tuple[str, ...] = ()
    if not declared.network:
        shared = (SHARED_MEMORY,) if leave_system() else ()
        write_only_to(settings.scratch, *shared)
        if declared.reuse:  # else each call does, and their processes are made with these rights
            give_up_rights()
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

    sweepers: list[subprocess.Popen[bytes]] = []

    def folder(call: int) -> str:
        return os.path.join(settings.scratch, str(call))

    def begin(call: int) -> None:
        os.close(port.fileno())  # who could write there could answer for other calls
        os.mkdir(folder(call))
        _work_in(folder(call))
        if not declared.network:
            write_only_to(folder(call), *shared, tells=False)
            give_up_rights()

    calls = (
        None
        if declared.reuse
        else ForkedCalls(work, begin=begin, end=lambda call: sweep(folder(call), sweepers))
    )
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
    """Answer a request from a fork. Where that ends first, this process ends as it did."""
    try:
        with calls.answer(body, seconds) as answered:
            tell(port, answered)
    except CallCrashed as crashed:
        sys.stderr.write(f"rollart: {crashed}\n")
        sys.stderr.flush()
        end_as(crashed.code)
    handler.answered()
    calls.prepare()


def sweep(folder: str, sweepers: list[subprocess.Popen[bytes]]) -> None:
    """Remove a call's folder; what it left there is not the next call's to wait for."""
    sweepers[:] = [one for one in sweepers if one.poll() is None]
    try:
        os.rmdir(folder)
    except OSError:
        nowhere = subprocess.DEVNULL
        with suppress(OSError):  # else it goes with the folder of this process
            command = ("rm", "-rf", "--", folder)
            sweepers.append(
                subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
            )


def remove_tree(folder: str) -> None:
    """Remove a folder that a user's function wrote to, however deep, and whatever it forbids."""
    if os.path.islink(folder):  # nothing behind it is ours
        with suppress(OSError):
            os.unlink(folder)
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for command in ("chmod", "-R", "u+rwX"), ("rm", "-rf", "--"):
            with suppress(OSError):
                subprocess.run([*command, folder], capture_output=True, check=False)


def _work_in(folder: str) -> None:
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def tell(port: ChildPort, outcome: Any, *why: Any) -> None:
    """Answer with `outcome`; where it cannot be sent, with ``[False, reason, *why]``."""
    try:
        port.event(outcome)
    except ChannelClosed:
        raise
    except Exception as error:  # too large, or text that is no text: it costs one call only
        port.event((False, describe(error), *why))
