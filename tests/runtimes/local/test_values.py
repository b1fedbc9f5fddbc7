"""Values on their way between processes: they arrive as what they were, or are refused."""

from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import pytest

from rollart.runtimes.local.values import pack_value, unpack_value


class Colour(StrEnum):
    RED = "red"


def sent(value: object) -> Any:
    return unpack_value(msgspec.msgpack.decode(msgspec.msgpack.encode(pack_value(value))))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(1.5), 1.5),
        (np.str_("x"), "x"),
        (np.bytes_(b"x"), b"x"),
        (Colour.RED, "red"),
        ({Colour.RED: [np.float64(2.0)]}, {"red": [2.0]}),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        (True, True),
    ],
)
def test_subclasses_of_plain_types_arrive_plain(value: object, plain: object) -> None:
    assert sent(value) == plain
    assert type(sent(value)) is type(plain)


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2**70, r"an int of 71 bits cannot be sent .* only -2\*\*63 to 2\*\*64 - 1"),
        ([-(2**63) - 1], "an int of 64 bits cannot be sent"),
        ({1: "a", "1": "b"}, "a dict with the key 1, which is int, cannot be sent .* use str keys"),
        (ENDLESS, "more than 100 deep cannot be sent"),
        (np.float32(1.0), "float32 cannot be sent"),
    ],
)
def test_what_cannot_arrive_as_it_was_is_refused(value: object, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        pack_value(value)
