"""The messages between an owner and its child.

Arrays on the wire (`[tag, fields...]`), so a small message costs a few bytes and no key lookups.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Start(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """First message to a child: what to run, and how to live.

    Attributes:
        entry: ``"module:function"``.
        config: anything msgpack can express; second argument of the function.
        name: the child's name.
        python_path: directories put in front of ``sys.path``, in this order.
        env: variables set before the entry's module is imported.
        beat_interval: seconds between two heartbeats.
        frame_limit: largest frame in bytes, both ways.
        pulse: False for a child that must stay single-threaded and beats by itself.
    """

    entry: str
    config: Any
    name: str
    python_path: list[str]
    env: dict[str, str]
    beat_interval: float
    frame_limit: int
    pulse: bool


class Call(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """A request; `id` is None when no answer is wanted."""

    id: int | None
    method: str
    args: tuple[Any, ...]


class Stop(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Please end."""


class Ready(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """The child has set itself up."""


class Beat(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The child's interpreter runs."""


class Result(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """Answer to the call with this id."""

    id: int
    value: Any


class Failure(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """The call with this id raised."""

    id: int
    type_name: str
    message: str
    traceback: str


class Event(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """Something the child says unasked."""

    value: Any


ToChild = Start | Call | Stop
ToOwner = Ready | Beat | Result | Failure | Event
