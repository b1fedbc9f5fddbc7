from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.process.errors import BadFrame, FrameTooLarge
from rollart.process.frames import FrameReader, FrameWriter
from rollart.process.messages import Call, Result, ToOwner

MESSAGES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=50),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_messages_survive_any_cut_of_the_stream(messages: list[Any], cuts: list[int]) -> None:
    writer, reader = FrameWriter(10_000), FrameReader(Any, 10_000)
    stream = bytearray()
    for message in messages:
        writer.append(stream, message)
    received: list[Any] = []
    at, turn = 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        received += reader.feed(bytes(stream[at : at + step]))
        at, turn = at + step, turn + 1
    assert received == messages
    assert reader.fault is None


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_a_typed_fault(data: bytes) -> None:
    reader = FrameReader(ToOwner, 1000)
    reader.feed(data)
    assert reader.fault is None or isinstance(reader.fault, (BadFrame, FrameTooLarge))
    if reader.fault is not None:
        assert reader.feed(data) == []


def test_token_arrays_travel_as_bytes() -> None:
    tokens = struct.pack("<4i", 1, 2, 3, 151_643)
    buffer = bytearray()
    FrameWriter(1000).append(buffer, Result(1, [tokens, memoryview(tokens), bytearray(tokens)]))
    (message,) = FrameReader(ToOwner, 1000).feed(bytes(buffer))
    assert message == Result(1, [tokens, tokens, tokens])


def test_a_message_over_the_limit_is_refused_and_leaves_the_buffer_as_it_was() -> None:
    buffer = bytearray(b"before")
    with pytest.raises(FrameTooLarge, match=r"102 bytes exceeds the limit of 100 bytes") as caught:
        FrameWriter(100).append(buffer, b"x" * 100)
    assert (caught.value.size, caught.value.limit) == (102, 100)
    with pytest.raises(TypeError):
        FrameWriter(100).append(buffer, [1, object()])
    assert buffer == b"before"


def test_an_announced_size_over_the_limit_is_a_fault_before_its_bytes_arrive() -> None:
    reader = FrameReader(Any, 100)
    good = bytearray()
    FrameWriter(100).append(good, "good")
    assert reader.feed(bytes(good) + struct.pack(">I", 101)) == ["good"]
    assert isinstance(reader.fault, FrameTooLarge)
    assert (reader.fault.size, reader.fault.limit) == (101, 100)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x91" * 90_000, b"\xdd\xff\xff\xff\xff", b"\xa1\xff", b"\x92\x63\x01"],
    ids=["empty", "invalid", "deep", "long_array", "not_utf8", "unknown_tag"],
)
def test_a_malformed_payload_is_a_bad_frame(payload: bytes) -> None:
    reader = FrameReader(ToOwner, 100_000)
    assert reader.feed(struct.pack(">I", len(payload)) + payload) == []
    assert isinstance(reader.fault, BadFrame)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_executes_nothing(tmp_path: Path) -> None:
    crater = tmp_path / "crater"
    bomb = pickle.dumps(Bomb(crater))
    reader = FrameReader(ToOwner, 100_000)
    assert reader.feed(struct.pack(">I", len(bomb)) + bomb) == []
    assert isinstance(reader.fault, BadFrame)
    wrapped = bytearray()
    FrameWriter(100_000).append(wrapped, Result(1, bomb))
    assert FrameReader(ToOwner, 100_000).feed(bytes(wrapped)) == [Result(1, bomb)]
    assert not crater.exists()
    pickle.loads(bomb)
    assert crater.exists()  # the bomb is live: whoever unpickles it is hit


def test_a_message_of_the_other_direction_is_refused() -> None:
    buffer = bytearray()
    FrameWriter(1000).append(buffer, Call(1, "method", ()))
    reader = FrameReader(ToOwner, 1000)
    assert reader.feed(bytes(buffer)) == []
    assert isinstance(reader.fault, BadFrame)
