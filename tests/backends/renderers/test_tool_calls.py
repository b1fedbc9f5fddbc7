"""Calls out of text: the formats that models write, and what becomes of a call that is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.backends.renderers.tool_calls import read_answer

CALL = '{"name": "look", "arguments": {"at": "pond"}}'


def calls(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in read_answer(text).calls]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}",
        f"<tool_call>[{CALL}]</tool_call>",
        '{"name": "look", "parameters": {"at": "pond"}}',
        f"<|python_tag|>{CALL}",
        f"[TOOL_CALLS][{CALL}]",
        f"```json\n{CALL}\n```",
        f"<think>\nI could <tool_call> now {{\n</think>\n\n{CALL}",
        '{"name": "look", "arguments": "{\\"at\\": \\"pond\\"}"}',
    ],
)
def test_a_call_is_read_in_each_format(text: str) -> None:
    assert calls(text) == [("look", '{"at": "pond"}')]


def test_several_calls_keep_their_order_and_have_ids_of_their_own() -> None:
    answer = read_answer(f"First. <tool_call>{CALL}</tool_call> <tool_call>{CALL}</tool_call> End.")
    assert [call.id for call in answer.calls] == ["call00000", "call00001"]
    assert answer.content == "First.   End."
    assert len(calls(f"{CALL}; {CALL}")) == 2
    unclosed = f"<tool_call>{CALL}\n<tool_call>look(<tool_call>{CALL}</tool_call>"
    assert [name for name, _ in calls(unclosed)] == ["look", "", "look"]


@pytest.mark.parametrize(
    "text",
    [
        "left",
        "",
        '{"answer": 3}',
        "[1, 2, 3]",
        "the set {1, 2}",
        f"<think>I might {CALL}",
        f"<think><tool_call>{CALL}</tool_call></think>done",
        '{"name": "Ann"}',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    answer = read_answer(text)
    assert (answer.content, answer.calls) == (text, ())


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        (
            '<tool_call>{"name": "look", "arguments": {"a": 1,</tool_call>',
            "look",
            '{"name": "look", "arguments": {"a": 1,',
        ),
        (
            '{"name": "look", "parameters": {"a": 1,',
            "look",
            '{"name": "look", "parameters": {"a": 1,',
        ),
        ("<tool_call>look(pond)</tool_call>", "", "look(pond)"),
        ("<tool_call></tool_call>", "", ""),
        ('<tool_call>{"tool": "look"}</tool_call>', "", '{"tool": "look"}'),
        ('<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "look", "[1]"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "", '{"name": 3, "arguments": {}}'),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "", "[" * 100_000),
    ],
)
def test_a_malformed_call_keeps_its_text(text: str, name: str, arguments: str) -> None:
    assert calls(text) == [(name, arguments)]


@given(st.text(alphabet='{}[]":,; \nabnme1<>/`', max_size=40))
def test_no_text_raises_and_no_unreadable_call_looks_like_one(body: str) -> None:
    for call in read_answer(f"<tool_call>{body}</tool_call>").calls:
        try:
            readable = isinstance(json.loads(call.arguments), dict)
        except ValueError:
            readable = False
        assert not (readable and call.name) or json.loads(body)


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans())),
    st.text(min_size=1),
)
def test_arguments_survive_whatever_they_hold(arguments: dict[str, object], name: str) -> None:
    body = json.dumps({"name": name, "arguments": arguments}).replace("</", "<\\/")
    (call,) = read_answer(f"<tool_call>{body}</tool_call>").calls
    assert (call.name, json.loads(call.arguments)) == (name, arguments)
