"""Who may ask, and what every path and every failure answers."""

import asyncio
import json
from typing import Any

import pytest

from rollart.serving.admission import Admission
from rollart.serving.endpoint import Endpoint
from rollart.serving.http import BadRequest, Request
from rollart.serving.openai import ApiError, ChatAnswer, ChatRequest

HELLO = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
JSON = {"host": "127.0.0.1:8000", "content-type": "application/json; charset=utf-8"}


async def hi(request: ChatRequest) -> ChatAnswer:
    return ChatAnswer(text="Hi", finish="stop", prompt_tokens=1, completion_tokens=1)


def asked(request: Request, *, token: str = "", chat: Any = hi) -> tuple[int, dict[str, Any]]:
    endpoint = Endpoint(chat, name="m")
    try:
        Admission(token)(request)
    except BadRequest as bad:
        response = endpoint.refuse(bad)
    else:
        response = asyncio.run(endpoint.handle(request))
    return response.status, json.loads(response.body)


def post(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        method="POST", path="/v1/chat/completions", headers={**JSON, **named}, body=HELLO
    )


def test_a_question_is_answered_and_the_model_is_listed() -> None:
    status, table = asked(post())
    assert (status, table["choices"][0]["message"]["content"]) == (200, "Hi")
    status, table = asked(Request(method="GET", path="/v1/models", headers=JSON))
    assert (status, [model["id"] for model in table["data"]]) == (200, ["m"])


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic secret", "Bearer sécret"])
def test_without_the_token_nobody_is_served(given: str) -> None:
    status, table = asked(post(authorization=given), token="secret")
    assert (status, table["error"]["code"]) == (401, "invalid_api_key")
    assert "secret" not in json.dumps(table)
    models = Request(method="GET", path="/v1/models", headers={**JSON, "authorization": given})
    assert asked(models, token="secret")[0] == 401


def test_with_the_token_any_name_of_this_host_is_served() -> None:
    assert asked(post(authorization="Bearer secret", host="gpu7:8000"), token="secret")[0] == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_this_machine_is_served_without_a_token(host: str) -> None:
    assert asked(post(host=host))[0] == 200


@pytest.mark.parametrize("host", ["", "rebound.example:8000", "127.0.0.1.evil.example", "[::2]"])
def test_a_name_that_a_web_page_made_point_here_is_not_served(host: str) -> None:
    assert asked(post(host=host))[0] == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_web_page_may_send_unasked_is_not_read(kind: str) -> None:
    assert asked(post(content_type=kind))[0] == 415


def test_other_paths_methods_and_models_are_refused_in_words() -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("POST", "/update_weights", 404),
        ("POST", "/abort", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
    ):
        found = asked(Request(method=method, path=path, headers=JSON))
        assert found[0] == status
        assert found[1]["error"]["message"]
    other = HELLO.replace(b'"m"', b'"gpt"')
    request = Request(method="POST", path="/v1/chat/completions", headers=JSON, body=other)
    status, table = asked(request)
    assert (status, table["error"]["code"]) == (404, "model_not_found")


def test_a_fault_of_ours_is_a_500_and_its_details_stay_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def broken(request: ChatRequest) -> ChatAnswer:
        raise RuntimeError("the inner works")

    status, table = asked(post(), chat=broken)
    assert status == 500
    assert "inner" not in json.dumps(table)
    assert "the inner works" in capsys.readouterr().err


def test_refusals_of_the_model_and_of_the_server_keep_their_status() -> None:
    async def busy(request: ChatRequest) -> ChatAnswer:
        raise ApiError(429, "busy", retry_after_s=1)

    assert asked(post(), chat=busy)[0] == 429
    refused = Endpoint(hi, name="m").refuse(BadRequest(413, "too much"))
    assert json.loads(refused.body)["error"]["message"] == "too much"
