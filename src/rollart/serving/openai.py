"""The part of OpenAI's chat API that is served: requests read, answers and errors written.

Pure. Invariant: a setting that would change the answer and is not obeyed is refused, never passed
over. Source: the API reference of OpenAI's chat completions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollart.core.types import Message
from rollart.serving.http import Response

FINISHED: Mapping[str, str] = {"stop": "stop", "length": "length", "context_overflow": "length"}
"""OpenAI's finish reasons, by this project's."""

_ROLES: Mapping[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_MOST_STOPS = 4
_NEUTRAL: Mapping[str, Sequence[object]] = {
    "stream": (False,),
    "n": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Settings that are not served, with what they may say all the same."""

_INDIFFERENT = frozenset(
    ("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question. None leaves `max_tokens` to the context, and `seed` to chance."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What the model said. `finish` is "stop" or "length"; tokens are counted by the engine."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int


class ApiError(Exception):
    """A request that is not served: an HTTP status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def read_chat(body: bytes) -> ChatRequest:
    """Raises `ApiError` naming what is wrong."""
    try:
        # Half a surrogate pair is no text; no tokenizer would take it.
        table: Any = json.loads(body.decode())
        json.dumps(table, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is no JSON of sound text and finite numbers") from error
    if not isinstance(table, dict):
        raise ApiError(400, "the body is no JSON object")
    given: dict[str, Any] = {name: value for name, value in table.items() if value is not None}
    _refuse_unserved(given)
    model = given.get("model")
    if not isinstance(model, str):
        raise ApiError(400, "model is missing; name one of /v1/models", param="model")
    most = given.get("max_completion_tokens", given.get("max_tokens"))
    return ChatRequest(
        model=model,
        messages=_messages(given.get("messages")),
        max_tokens=None if most is None else _whole("max_tokens", most, least=1),
        temperature=_temperature(given.get("temperature", 1.0)),
        seed=_whole("seed", given["seed"], least=-(2**63)) if "seed" in given else None,
        stop=_stops(given.get("stop", [])),
    )


def answered(request: ChatRequest, answer: ChatAnswer, *, name: str, created: int) -> Response:
    """The answer to a question. `name` is its own, `created` in seconds since 1970."""
    total = answer.prompt_tokens + answer.completion_tokens
    return as_json(
        200,
        {
            "id": name,
            "object": "chat.completion",
            "created": created,
            "model": request.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": answer.text},
                    "logprobs": None,
                    "finish_reason": answer.finish,
                }
            ],
            "usage": {
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "total_tokens": total,
            },
        },
    )


def models(name: str, created: int) -> Response:
    """The list of the one model that is served."""
    one = {"id": name, "object": "model", "created": created, "owned_by": "rollart"}
    return as_json(200, {"object": "list", "data": [one]})


def refused(error: ApiError) -> Response:
    """An error as OpenAI's clients read it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    said = {
        "message": error.message,
        "type": "rate_limit_error" if error.status == 429 else kind,
        "param": error.param,
        "code": error.code,
    }
    asked = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.status == 401:
        asked["WWW-Authenticate"] = "Bearer"
    return as_json(error.status, {"error": said}, asked)


def as_json(status: int, table: object, headers: Mapping[str, str] | None = None) -> Response:
    """A response of this object."""
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    return Response(status=status, body=text.encode(errors="replace"), headers=headers or {})


def _refuse_unserved(given: Mapping[str, Any]) -> None:
    served = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature"}
    served |= {"seed", "stop"} | _INDIFFERENT
    for name, value in given.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                allowed = json.dumps(_NEUTRAL[name][0])
                raise ApiError(
                    400, f"{name} is not served here; leave it out or use {allowed}", param=name
                )
        elif name not in served:
            raise ApiError(400, f"{name[:80]!r} is not known here; leave it out", param=name[:80])


def _messages(given: object) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise ApiError(400, "messages must be a list of at least one", param="messages")
    return tuple(_message(f"messages[{at}]", one) for at, one in enumerate(given))


def _message(where: str, given: object) -> Message:
    if not isinstance(given, dict):
        raise ApiError(400, f"{where} is no object", param=where)
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES or given.get("tool_calls"):
        raise ApiError(
            400, f"{where}: only system, user and assistant speak here, in text", param=where
        )
    return Message(role=_ROLES[role], content=_text(where, given.get("content")))


def _text(where: str, content: Any) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"{where}.content must be text", param=f"{where}.content")
    return "".join(texts)


def _whole(name: str, value: object, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise ApiError(400, f"{name} must be a whole number from {least} on", param=name)
    return value


def _temperature(value: Any) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if not sound or not math.isfinite(value) or not 0 <= value <= 2:
        raise ApiError(400, "temperature must be from 0 to 2", param="temperature")
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    sound = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if not sound or len(stops) > _MOST_STOPS:
        raise ApiError(400, f"stop must be up to {_MOST_STOPS} texts", param="stop")
    return tuple(stops)
