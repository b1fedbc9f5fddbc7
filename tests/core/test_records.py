"""A record is the dataclass that it says it is."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import msgspec
import pytest

from rollart.core.records import record


@record
class Place:
    """With a field of each kind."""

    name: str
    at: float = 0.5
    notes: list[str] = field(default_factory=list[str])
    length: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The same by the standard library alone."""

    name: str
    at: float = 0.5
    notes: list[str] = field(default_factory=list[str])


def test_a_record_holds_what_it_was_given_and_its_defaults() -> None:
    given, default = Place(name="here", at=1.0, notes=["a"]), Place(name="there")
    assert (given.name, given.at, given.notes, given.length) == ("here", 1.0, ["a"], 4)
    assert (default.at, default.notes) == (0.5, [])
    assert Place(name="here").notes is not default.notes


def test_a_record_cannot_be_changed_once_it_is_made() -> None:
    place = Place(name="here")
    assert type(place) is Place
    with pytest.raises(FrozenInstanceError):
        place.at = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        object.__setattr__(place, "other", 1)


def test_a_record_is_made_as_its_signature_says_and_in_no_other_way() -> None:
    made = inspect.signature(Place)
    assert [(p.name, p.kind) for p in made.parameters.values()] == [
        (name, inspect.Parameter.KEYWORD_ONLY) for name in ("name", "at", "notes")
    ]
    for arguments in ({}, {"name": "x", "other": 1}, {"name": "x", "length": 1}):
        with pytest.raises(TypeError, match="argument"):
            Place(**arguments)
    with pytest.raises(TypeError, match="positional"):
        Place("x")  # pyright: ignore[reportCallIssue]


def test_records_are_equal_hashed_shown_copied_and_pickled_as_dataclasses_are() -> None:
    place, plain = Place(name="here"), Plain(name="here")
    assert place == Place(name="here") != Place(name="there")
    assert repr(place).replace(", length=4", "") == repr(plain).replace("Plain", "Place")
    assert [each.name for each in fields(place)] == ["name", "at", "notes", "length"]
    assert replace(Place(name="a"), at=1.0) == Place(name="a", at=1.0)
    for same in (copy.copy(place), copy.deepcopy(place), pickle.loads(pickle.dumps(place))):
        assert same == place
        assert same.length == place.length
    with pytest.raises(TypeError, match="unhashable"):
        hash(place)  # of its list


@record
class Written:
    """A record of a log."""

    name: str
    at: float = 0.5


def test_a_record_is_encoded_and_decoded_as_a_dataclass_is() -> None:
    assert msgspec.json.encode(Written(name="here")) == b'{"name":"here","at":0.5}'
    read = msgspec.json.decode(b'{"name":"here"}', type=Written)
    assert read == Written(name="here")
    with pytest.raises(FrozenInstanceError):
        read.at = 2.0  # pyright: ignore[reportAttributeAccessIssue]
