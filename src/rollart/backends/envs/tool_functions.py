"""Python functions as tools: schema out of the signature, calls checked before anything runs.

Invariant: a function is entered only with arguments that fit its type hints; model output is read
as JSON and never evaluated. What is wrong with a call is said in words that the model can use.
Tools run in the caller's process and may block; nothing else waits here.
"""

import inspect
import json
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rollart.core.types import ToolCall, ToolSpec

Function = Callable[..., object]

MOST_CHARACTERS = 4000
"""Length at which a tool's answer is cut."""

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


class BadCall(Exception):
    """A call that was not executed; the message is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call came to. `refused`: it was not executed. `failed`: it was, and raised."""

    content: str
    refused: bool = False
    failed: bool = False


class Toolbox:
    """Tools by name."""

    def __init__(self, functions: Iterable[Function]) -> None:
        """Take functions and bound methods.

        Raises TypeError for a parameter without type hint or of a type that JSON has none for,
        ValueError for two tools of one name.
        """
        self._tools: dict[str, _Tool] = {}
        for function in functions:
            tool = _Tool(function)
            if tool.spec.name in self._tools:
                raise ValueError(f"two tools are called {tool.spec.name!r}; rename one")
            self._tools[tool.spec.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What to declare to the model."""
        return tuple(tool.spec for tool in self._tools.values())

    def answer(self, call: ToolCall) -> Answer:
        """Execute a call, if it can be, and say what came of it.

        `ValueError`, `LookupError` and `ArithmeticError` out of a tool are answers about its
        arguments and go to the model; anything else is a fault of the tool, and is raised.
        """
        try:
            tool, arguments = self._checked(call)
        except BadCall as error:
            return Answer(content=f"error: {error}", refused=True)
        try:
            result = tool.function(**arguments)
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except (ValueError, LookupError, ArithmeticError) as error:
            said = error.args[0] if isinstance(error, KeyError) and error.args else error
            return Answer(content=f"error: {said}", failed=True)
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}... ({len(text)} characters in all)"
        return Answer(content=text)

    def _checked(self, call: ToolCall) -> tuple["_Tool", Mapping[str, Any]]:
        """The tool meant and its arguments, converted; raises BadCall."""
        try:
            arguments = json.loads(call.arguments, parse_constant=_no_constant)
        except RecursionError:
            raise BadCall("the call is nested too deeply") from None
        except ValueError as error:
            raise BadCall(f"the call is not valid JSON: {error}") from None
        known = ", ".join(self._tools)
        if not call.name:
            raise BadCall(
                f'the call names no tool; write {{"name": ..., "arguments": {{...}}}} ({known})'
            )
        tool = self._tools.get(call.name)
        if tool is None:
            raise BadCall(f"there is no tool {call.name!r}; there are: {known}")
        if not isinstance(arguments, dict):
            raise BadCall(f"arguments of {call.name} are no JSON object")
        return tool, tool.fit(arguments)


class _Tool:
    """One function, its declaration and its parameters' types."""

    def __init__(self, function: Function) -> None:
        self.function = function
        name = getattr(function, "__name__", type(function).__name__)
        hints = get_type_hints(function)
        self._types: dict[str, Any] = {}
        self._required: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in hints or parameter.kind not in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            ):
                raise TypeError(
                    f"tool {name}: parameter {parameter.name!r} needs a type hint and must be "
                    "one that can be given by name"
                )
            self._types[parameter.name] = hints[parameter.name]
            if parameter.default is parameter.empty:
                self._required.append(parameter.name)
        try:
            properties = {key: schema_of(kind) for key, kind in self._types.items()}
        except TypeError as error:
            raise TypeError(f"tool {name}: {error}") from None
        self.spec = ToolSpec(
            name=name,
            description=" ".join((inspect.getdoc(function) or "").split()),
            parameters=json.dumps(
                {"type": "object", "properties": properties, "required": self._required}
            ),
        )

    def fit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them; raises BadCall."""
        name = self.spec.name
        takes = ", ".join(self._types) or "nothing"
        for key in arguments:
            if key not in self._types:
                raise BadCall(f"{name} takes no argument {key!r}; it takes {takes}")
        for key in self._required:
            if key not in arguments:
                raise BadCall(f"{name} needs the argument {key!r}; it takes {takes}")
        try:
            return {key: fitted(value, self._types[key], key) for key, value in arguments.items()}
        except BadCall as error:
            raise BadCall(f"{name}: {error}") from None


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type hint; raises TypeError for one that JSON has no type for."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one) for one in inner]}
    if kind is type(None):
        return {"type": "null"}
    raise TypeError(
        f"the type {kind!r} cannot be declared; use str, int, float, bool, Literal, list[...], "
        "dict[str, ...] or unions of them"
    )


def fitted(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``, a whole number accepted as float and the other way round.

    Raises BadCall naming ``where`` the value stands.
    """
    origin, inner = get_origin(kind), get_args(kind)
    match = None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in (str, bool, type(None)) or (kind is int and not isinstance(value, bool)):
        match = isinstance(value, kind)
    elif origin is Literal:
        match = any(value == one and type(value) is type(one) for one in inner)
    elif origin is list and isinstance(value, list):
        return [fitted(one, inner[0], f"{where}[{at}]") for at, one in enumerate(value)]
    elif origin is dict and isinstance(value, dict):
        return {key: fitted(one, inner[1], f"{where}.{key}") for key, one in value.items()}
    elif origin in (Union, types.UnionType):
        for one in inner:
            try:
                return fitted(value, one, where)
            except BadCall:
                continue
    if match:
        return value
    wanted = json.dumps(schema_of(kind))
    raise BadCall(f"{where} = {json.dumps(value)[:80]} does not fit {wanted}")


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")
