"""Arguments and results of users' functions, on their way between processes.

Invariant: a value arrives as what it was: a trajectory as its document, a verdict, or plain JSON
with bytes; anything else is refused by name. Nothing is pickled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollart.core.documents import document_of
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.types import Trajectory, Verdict
from rollart.runtimes.local.codec import Packed, pack_verdict, unpack_verdict

_PLAIN, _TRAJECTORY, _VERDICT, _LIST, _TABLE = range(5)


_DEEPEST = 100  # lists and dicts in one another: whoever unpacks must have the stack for it


def pack_value(value: object, *, _depth: int = 0) -> Packed:
    """Subclasses of plain types (NumPy has some) are sent as what they subclass.

    Raises `TypeError` naming the type, or the value, of what cannot be sent.
    """
    if _depth > _DEEPEST:
        raise TypeError(
            f"lists and dicts more than {_DEEPEST} deep cannot be sent to another process; "
            "flatten them, and look for one that holds itself"
        )
    match value:
        case None | bool():
            return (_PLAIN, value)
        case int():
            if not -(2**63) <= value < 2**64:
                raise TypeError(
                    f"an int of {value.bit_length()} bits cannot be sent to another process, only "
                    "-2**63 to 2**64 - 1; use a float or a str"
                )
            return (_PLAIN, int(value))
        case float():
            return (_PLAIN, float(value))
        case str():
            return (_PLAIN, str.__str__(value))  # str() of an enumeration is its name
        case bytes():
            return (_PLAIN, bytes(value))
        case Trajectory() | TrajectoryDocument():
            document = value if isinstance(value, TrajectoryDocument) else document_of(value)
            return (_TRAJECTORY, document.to_json())
        case Verdict():
            return (_VERDICT, pack_verdict(value))
        case Mapping():
            return (
                _TABLE,
                {_key(key): pack_value(item, _depth=_depth + 1) for key, item in value.items()},
            )
        case Sequence() if not isinstance(value, bytearray):
            return (_LIST, [pack_value(item, _depth=_depth + 1) for item in value])
        case _:
            raise TypeError(
                f"{type(value).__name__} cannot be sent to another process; use a Trajectory, a "
                "Verdict, None, bool, int, float, str, bytes, and lists and dicts of them"
            )


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"a dict with the key {key!r}, which is {type(key).__name__}, cannot be sent to "
            "another process; use str keys"
        )
    return str.__str__(key)


def unpack_value(packed: Packed) -> Any:
    """What was packed; sequences come out as lists."""
    kind, value = packed
    if kind == _TRAJECTORY:
        return TrajectoryDocument.from_json(value)
    if kind == _VERDICT:
        return unpack_verdict(value)
    if kind == _LIST:
        return [unpack_value(item) for item in value]
    if kind == _TABLE:
        return {key: unpack_value(item) for key, item in value.items()}
    return value
