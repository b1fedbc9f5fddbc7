"""The child of a serverless pool: calls one user's function, again and again.

It may block, crash or hang; the owner kills this process when a call takes too long.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from rollart.process.errors import ChannelClosed
from rollart.process.serve import ChildPort
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.user_code import Caller, describe, load, show_prints_at_once
from rollart.runtimes.local.values import pack_value, unpack_value

ENTRY = "rollart.runtimes.local.function_host:entry"


def entry(port: ChildPort, config: Any) -> None:
    """Serve the function at the import path `config`: ``[True, value]`` or ``[False, reason]``."""
    show_prints_at_once()
    function = load(config)
    caller = Caller()
    port.ready()
    while not port.stopping:
        for request in port.requests(None):
            tell(port, called(function, caller, *request.args))


def tell(port: ChildPort, outcome: Packed, *why: Packed) -> None:
    """Answer with `outcome`; where it cannot be sent, with ``[False, reason, *why]``."""
    try:
        port.event(outcome)
    except ChannelClosed:
        raise
    except Exception as error:  # too large, or text that is no text: it costs one call only
        port.event((False, describe(error), *why))


def called(function: Callable[..., Any], caller: Caller, args: Packed, kwargs: Packed) -> Packed:
    """The function's packed result; never raises for what user code does."""
    try:
        value = caller.call(partial(function, **unpack_value(kwargs)), *unpack_value(args))
        return (True, pack_value(value))
    except BaseException as error:  # also sys.exit() in user code: it costs one call only
        return (False, describe(error))
