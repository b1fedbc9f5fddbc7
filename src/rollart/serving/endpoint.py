"""The endpoint: which path is what, and every failure as OpenAI's clients read it.

Invariant: `handle` always answers. Who may ask is `Admission`'s, before a body is read.
"""

import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable

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
    """One model under one name, for whoever was admitted."""

    def __init__(self, chat: Chat, *, name: str) -> None:
        self._chat = chat
        self._name = name
        self._since = int(time.time())

    async def handle(self, request: Request) -> Response:
        """The answer to any request."""
        try:
            return await self._answer(request)
        except ApiError as error:
            return refused(error)
        except Exception:  # the boundary: a fault of ours costs one question only
            traceback.print_exc(file=sys.stderr)
            return refused(ApiError(500, "the endpoint failed at this; its output says how"))

    def refuse(self, bad: BadRequest) -> Response:
        """The answer to what could not be read as a request, or was not admitted."""
        code = "invalid_api_key" if bad.status == 401 else None
        return refused(ApiError(bad.status, bad.reason, code=code))

    async def _answer(self, request: Request) -> Response:
        match request.method, request.path.rstrip("/"):
            case "GET", "/v1/models":
                return models(self._name, self._since)
            case "POST", "/v1/chat/completions":
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
