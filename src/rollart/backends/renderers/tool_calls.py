"""Tool calls out of an assistant's text.

Invariant: nothing raises and no attempt at a call is lost. A call that cannot be read keeps its
text as `arguments`, which then are no JSON object, or has an empty name, so that whoever executes
calls can say what is wrong with it. Read are calls between ``<tool_call>`` tags and, where there
are none, an answer that is JSON as a whole (fenced or not, also after a token that announces it).
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from rollart.core.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ANNOUNCED = ("<|python_tag|>", "[TOOL_CALLS]")
THINK, THOUGHT = "<think>", "</think>"
MARKS = (OPEN, CLOSE, *ANNOUNCED, THINK, THOUGHT)
"""What must stay in a decoded answer, even where a tokenizer calls it special."""

_ARGUMENTS = ("arguments", "parameters")
_FENCE = re.compile(r"\A```(?:json|tool_call)?\s*\n(.*?)\n?```\Z", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_LOOKS_LIKE_A_CALL = re.compile(r'\A\[?\s*\{\s*"name"\s*:')
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer taken apart: what was said beside the calls (thoughts included), and the calls."""

    content: str
    calls: tuple[ToolCall, ...] = ()


def read_answer(text: str) -> Answer:
    """Take an answer apart. Calls within a thought are none. Ids count from 0 in each answer."""
    if "{" not in text and not any(mark in text for mark in (OPEN, *ANNOUNCED)):
        return Answer(content=text)
    if text.lstrip().startswith(THINK) and THOUGHT not in text:  # a thought that was cut off
        return Answer(content=text)
    said_at = text.find(THOUGHT) + len(THOUGHT) if THOUGHT in text else 0
    thought, said = text[:said_at], text[said_at:]
    if OPEN in said:
        rest, found = _tagged(said)
    else:
        found = _whole(said)
        rest = "" if found else said
    # Nine letters and digits: what the pickiest templates take as an id.
    calls = tuple(
        ToolCall(id=f"call{number:05d}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(found)
    )
    return Answer(content=thought + rest, calls=calls)


def _tagged(said: str) -> tuple[str, list[tuple[str, str]]]:
    """The text around the tags, and (name, arguments) of what is in them."""
    rest, found = "", list[tuple[str, str]]()
    at = 0
    while (opens := said.find(OPEN, at)) >= 0:
        rest += said[at:opens]
        begin = opens + len(OPEN)
        # A string within the JSON may hold a tag: the decoder says where a good call is over.
        values, end = _values(said, begin)
        closes = _next_tag(said, end)
        if values and not said[end:closes].strip():
            found += map(_call, values)
        else:
            closes = _next_tag(said, begin)
            found.append(_malformed(said[begin:closes].strip()))
        at = closes + len(CLOSE) * said.startswith(CLOSE, closes)
    return rest + said[at:], found


def _next_tag(said: str, at: int) -> int:
    """Where the next tag is, whether it closes or opens; the end where there is none."""
    places = (said.find(tag, at) for tag in (CLOSE, OPEN))
    return min((place for place in places if place >= 0), default=len(said))


def _whole(said: str) -> list[tuple[str, str]]:
    """The calls that an answer without tags consists of; none if it is something else."""
    body = said.strip()
    mark = next((mark for mark in ANNOUNCED if body.startswith(mark)), "")
    body = body.removeprefix(mark).strip()
    fenced = _FENCE.match(body)
    if fenced is not None:
        body = fenced[1].strip()
    values, end = _values(body, 0)
    if end < len(body):
        meant = mark or _LOOKS_LIKE_A_CALL.match(body)
        return [_malformed(body)] if meant else []
    if mark or all(_is_call(value) for value in values):
        return [_call(value) for value in values]
    return []


def _values(text: str, at: int) -> tuple[list[Any], int]:
    """The JSON values in a row from ``at`` (lists opened, semicolons between), and their end."""
    values: list[Any] = []
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == ";"):
            at += 1
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return values, at
        values += value if isinstance(value, list) else [value]


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and any(key in value for key in _ARGUMENTS)
    )


def _call(value: Any) -> tuple[str, str]:
    """Name and arguments of a JSON value; arguments given as text are that text."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return "", json.dumps(value, ensure_ascii=False)
    arguments = next((value[key] for key in _ARGUMENTS if key in value), {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return name, arguments


def _malformed(body: str) -> tuple[str, str]:
    named = _NAME.search(body)
    return named[1] if named else "", body
