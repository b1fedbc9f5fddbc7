"""The endpoint: who may ask, which path is what, and every failure as OpenAI's clients read it.

Invariant: `handle` always answers. Without a token only this machine's own programs are served: a
web page's script, which a browser runs there too, is not (it can neither send JSON unasked nor, by
a name that it makes point here, say a loopback host).
"""

import hmac
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable

from rollart.core.scoring.judge_calls import is_loopback
from rollart.serving.http import BadRequest, Request, Response
from rollart.serving.openai import (
    ApiError,
    ChatAnswer,
    ChatRequest,
    answered,
    models,
    read_chat,
    refused,
)

Chat = Callable[[ChatRequest], Awaitable[ChatAnswer]]
"""Answers a question. Raises `ApiError`."""


class Endpoint:
    """One model under one name; `token`, where there is one, is asked of everybody."""

    def __init__(self, chat: Chat, *, name: str, token: str) -> None:
        self._chat = chat
        self._name = name
        self._token = token.encode()
        self._since = int(time.time())

    async def handle(self, request: Request) -> Response:
        """The answer to any request."""
        try:
            self._admit(request)
            return await self._answer(request)
        except ApiError as error:
            return refused(error)
        except Exception:  # the boundary: a fault of ours costs one question only
            traceback.print_exc(file=sys.stderr)
            return refused(ApiError(500, "the endpoint failed at this; its output says how"))

    def refuse(self, bad: BadRequest) -> Response:
        """The answer to what could not be read as a request."""
        return refused(ApiError(bad.status, bad.reason))

    def _admit(self, request: Request) -> None:
        if self._token:
            given = request.headers.get("authorization", "").encode("latin-1", errors="replace")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise ApiError(
                    401, "send Authorization: Bearer and the token", code="invalid_api_key"
                )
        elif not is_loopback(_host_in(request.headers.get("host", ""))):
            raise ApiError(403, "ask 127.0.0.1 or localhost; this is served to no other name")

    async def _answer(self, request: Request) -> Response:
        match request.method, request.path.rstrip("/"):
            case "GET", "/v1/models":
                return models(self._name, self._since)
            case "POST", "/v1/chat/completions":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise ApiError(415, "send Content-Type: application/json")
                chat = read_chat(request.body)
                if chat.model != self._name:
                    raise ApiError(
                        404,
                        f"model {chat.model[:200]!r} is not served; {self._name!r} is",
                        param="model",
                        code="model_not_found",
                    )
                name = f"chatcmpl-{uuid.uuid4().hex}"
                answer = await self._chat(chat)
                return answered(chat, answer, name=name, created=int(time.time()))
            case _, "/v1/models" | "/v1/chat/completions":
                raise ApiError(405, f"{request.method[:16]} is not served at this path")
            case _:
                raise ApiError(404, "only /v1/models and /v1/chat/completions are served")


def _host_in(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
