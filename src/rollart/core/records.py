"""`record`: a frozen, slotted, keyword-only dataclass that is made in half the time.

A frozen dataclass sets each field by `object.__setattr__`, which is most of what making one costs,
and one turn of a trajectory makes two dozen. Here `__init__` opens the new instance, sets its
fields as any program does, and closes it. Invariant: nobody but `__init__` ever sees it open; in
all else it is the dataclass that it says it is.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

_become = vars(object)["__class__"].__set__
"""Sets an instance's class, frozen or not; the classes differ in nothing but what they forbid."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[T]) -> type[T]:
    """`@dataclass(frozen=True, slots=True, kw_only=True)`, made faster.

    All fields are keyword-only and belong to the class itself; those with `init=False` are for
    `__post_init__` to set.
    """
    closed: Any = dataclass(frozen=True, slots=True, kw_only=True)(kind)
    names = [field.name for field in fields(closed)]
    opened = type(f"_Open{closed.__name__}", (), {"__slots__": names})
    closed.__init__ = _constructor(closed, opened)
    return closed


def _constructor(closed: type[Any], opened: type[Any]) -> Callable[..., None]:
    """An `__init__` of a signature and fields of its own, which only source text can say."""
    known: dict[str, Any] = {"_become": _become, "_opened": opened, "_closed": closed}
    taken: list[str] = []
    body = ["_become(self, _opened)"]
    for field in fields(closed):
        if field.init:
            taken.append(_parameter(field, known))
            body.append(f"self.{field.name} = {_value(field)}")
    body.append("_become(self, _closed)")
    if hasattr(closed, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ", ".join(["self", "*", *taken] if taken else ["self"])
    exec("\n    ".join([f"def __init__({signature}) -> None:", *body]), known)
    made = known["__init__"]
    made.__qualname__ = f"{closed.__qualname__}.__init__"
    made.__module__ = closed.__module__
    made.__annotations__ = {**closed.__init__.__annotations__}
    return made


def _parameter(field: Field[Any], known: dict[str, Any]) -> str:
    if field.default is not MISSING:
        known[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    if field.default_factory is not MISSING:
        known[f"_make_{field.name}"] = field.default_factory
        known["_missing"] = MISSING
        return f"{field.name}=_missing"
    return field.name


def _value(field: Field[Any]) -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"_make_{field.name}() if {field.name} is _missing else {field.name}"
