"""What of OpenAI's chat API is read, and how answers and errors are written."""

import json
from typing import Any

import pytest

from rollart.core.types import Message
from rollart.serving.openai import (
    ApiError,
    ChatAnswer,
    ChatRequest,
    answered,
    read_chat,
    refused,
)

HELLO = [{"role": "user", "content": "Hello"}]


def read(**fields: Any) -> ChatRequest:
    return read_chat(json.dumps({"model": "m", "messages": HELLO, **fields}).encode())


def test_a_question_is_read_with_its_settings() -> None:
    assert read() == ChatRequest(model="m", messages=(Message(role="user", content="Hello"),))
    full = read(max_tokens=3, temperature=0, seed=-5, stop="\n", user="u", stream=False, n=1)
    assert (full.max_tokens, full.temperature, full.seed, full.stop) == (3, 0.0, -5, ("\n",))
    assert read(max_completion_tokens=4, stop=["a", "b"]).stop == ("a", "b")
    assert read(seed=None, tools=[], response_format={"type": "text"}).seed is None


def test_parts_of_text_are_one_text_and_a_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]
    found = read(messages=[{"role": "developer", "content": parts}]).messages
    assert found == (Message(role="system", content="Hello"),)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("n", 2),
        ("top_p", 0.5),
        ("presence_penalty", 1),
        ("logprobs", True),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("tempreature", 0),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -1),
        ("temperature", 3),
        ("temperature", "hot"),
        ("seed", "one"),
        ("stop", [""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("messages", []),
        ("messages", "Hello"),
        ("model", 7),
    ],
)
def test_what_would_not_be_obeyed_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ApiError) as error:
        read(**{field: value})
    assert (error.value.status, error.value.param) == (400, field)


@pytest.mark.parametrize(
    "message",
    [
        "Hello",
        {"content": "Hello"},
        {"role": "tool", "content": "Hello"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
    ],
)
def test_a_message_that_is_no_text_is_refused_by_its_place(message: object) -> None:
    with pytest.raises(ApiError) as error:
        read(messages=[*HELLO, message])
    assert "messages[1]" in error.value.message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud800"}', b'{"a": NaN}', b"[" * 100_000]
)
def test_a_body_that_is_no_json_of_sound_text_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        read_chat(body)
    assert error.value.status == 400


def test_an_answer_has_what_clients_read() -> None:
    answer = ChatAnswer(text="Hi", finish="length", prompt_tokens=5, completion_tokens=2)
    table = json.loads(answered(read(), answer, name="chatcmpl-1", created=9).body)
    assert table["choices"][0]["message"] == {"role": "assistant", "content": "Hi"}
    assert table["choices"][0]["finish_reason"] == "length"
    assert table["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert (table["object"], table["model"], table["created"]) == ("chat.completion", "m", 9)


def test_an_error_has_what_clients_read() -> None:
    response = refused(ApiError(429, "busy", param="p", code="c", retry_after_s=3))
    said = {"message": "busy", "type": "rate_limit_error", "param": "p", "code": "c"}
    assert json.loads(response.body) == {"error": said}
    assert (response.status, response.headers) == (429, {"Retry-After": "3"})
    assert json.loads(refused(ApiError(503, "x")).body)["error"]["type"] == "server_error"
