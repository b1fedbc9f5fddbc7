"""The child of a local function's pool: a user's function behind the wire, within its limits.

Invariant: memory, network and processor time are bounded before the first call; the function may
block, crash or hang all the same, and its owner kills this process when a call takes too long.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.scoring.declared import declared_settings
from rollart.core.scoring.handle import Handler
from rollart.process.errors import ChannelClosed
from rollart.process.serve import ChildPort
from rollart.runtimes.local.function_limits import bound_memory, bound_processor, leave_network
from rollart.runtimes.local.user_code import describe, load, show_prints_at_once

ENTRY = "rollart.runtimes.local.function_host:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionHostConfig:
    """One function.

    Attributes:
        function: its import path.
        version: the hash of its sources.
        memory_mib: of a function that declares none; None: no bound.
        store: prefix of URLs that documents may be read from.
    """

    function: str
    version: str
    memory_mib: int | None = None
    store: str = ""


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: for each job of a request and its seconds, an event with the answer."""
    settings = msgspec.convert(config, FunctionHostConfig)
    show_prints_at_once()
    function = load(settings.function)
    declared = declared_settings(function)
    if not declared.network:
        leave_network()
    bound_memory(declared.memory_mib or settings.memory_mib)
    handler = Handler(
        function, path=settings.function, version=settings.version, store=settings.store
    )
    port.ready()
    while not port.stopping:
        for request in port.requests(None):
            body, seconds = request.args
            bound_processor(seconds)
            tell(port, handler.handle(body))


def tell(port: ChildPort, outcome: Any, *why: Any) -> None:
    """Answer with `outcome`; where it cannot be sent, with ``[False, reason, *why]``."""
    try:
        port.event(outcome)
    except ChannelClosed:
        raise
    except Exception as error:  # too large, or text that is no text: it costs one call only
        port.event((False, describe(error), *why))
