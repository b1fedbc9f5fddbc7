"""Arguments and results of users' functions, on their way between processes.

Invariant: a value arrives as what it was: a trajectory (without its tokens), a verdict, or plain
JSON with bytes; anything else is refused by name. Nothing is pickled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollart.core.types import Trajectory, Verdict
from rollart.runtimes.local.codec import (
    Packed,
    pack_trajectory,
    pack_verdict,
    unpack_trajectory,
    unpack_verdict,
)

_PLAIN, _TRAJECTORY, _VERDICT, _LIST, _TABLE = range(5)


def pack_value(value: object) -> Packed:
    """Raises `TypeError` naming the type of what cannot be sent."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return (_PLAIN, value)
        case Trajectory():
            return (_TRAJECTORY, pack_trajectory(value, tokens=False))
        case Verdict():
            return (_VERDICT, pack_verdict(value))
        case Mapping():
            return (_TABLE, {str(key): pack_value(item) for key, item in value.items()})
        case Sequence() if not isinstance(value, bytearray):
            return (_LIST, [pack_value(item) for item in value])
        case _:
            raise TypeError(
                f"{type(value).__name__} cannot be sent to another process; use a Trajectory, a "
                "Verdict, None, bool, int, float, str, bytes, and lists and dicts of them"
            )


def unpack_value(packed: Packed) -> Any:
    """What was packed; sequences come out as lists."""
    kind, value = packed
    if kind == _TRAJECTORY:
        return unpack_trajectory(value)
    if kind == _VERDICT:
        return unpack_verdict(value)
    if kind == _LIST:
        return [unpack_value(item) for item in value]
    if kind == _TABLE:
        return {key: unpack_value(item) for key, item in value.items()}
    return value
