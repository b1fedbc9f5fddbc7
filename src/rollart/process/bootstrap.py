"""First steps of every child, spawned or forked: tie it to its owner, then run its entry."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

from rollart.process.blocking import BlockingChannel
from rollart.process.errors import ProcessError
from rollart.process.messages import Start, ToChild
from rollart.process.owner import die_with_parent, set_process_name
from rollart.process.pulse import start_pulse
from rollart.process.serve import ChildPort

_START_SECONDS = 60.0  # the owner sends the first message at once; it may be slow, or dead


def run_child(sock: socket.socket) -> None:
    """Live as a child on this socket until the entry returns.

    Raises:
        ProcessError: no valid first message, or no such entry. Whatever the entry raises.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's, who then closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    channel = BlockingChannel(sock, message_type=ToChild)
    start = channel.recv(_START_SECONDS)
    if not isinstance(start, Start):
        raise ProcessError(f"the first message must be Start, not {type(start).__name__}")
    set_process_name(start.name)
    channel.set_frame_limit(start.frame_limit)
    os.environ.update(start.env)
    sys.path[:0] = [folder for folder in start.python_path if folder not in sys.path]
    if start.pulse:
        start_pulse(channel, start.beat_interval)
    load_entry(start.entry)(ChildPort(channel, start.name), start.config)


def load_entry(entry: str) -> Callable[[ChildPort, Any], None]:
    """Import ``module:function``.

    Raises:
        ProcessError: it is not of that form, or the module has no such function.
        ImportError: the module cannot be imported.
    """
    module_name, _, function_name = entry.partition(":")
    if not module_name or not function_name:
        raise ProcessError(f"entry {entry!r} must have the form 'module:function'")
    function = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(function):
        raise ProcessError(f"entry {entry!r}: the module has no function {function_name!r}")
    return cast("Callable[[ChildPort, Any], None]", function)
