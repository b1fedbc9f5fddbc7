"""A served model: questions to an engine, answers from it.

Invariant: when a question is over, however it ended, the engine has let go of it. Who waits on
whom: a question for the engine's tokens; when the engine is gone, every question ends.
"""

import asyncio
import contextlib
import itertools
import secrets
from dataclasses import dataclass

import numpy as np

from rollart.core.errors import RollartError
from rollart.core.ports import Engine, Renderer
from rollart.core.tokens import Int32Array, ids_array
from rollart.core.types import GenerateRequest, TokenDelta
from rollart.serving.openai import FINISHED, ApiError, ChatAnswer, ChatRequest

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """`context`: tokens of a question and its answer; `questions`: under way or waiting at once."""

    context: int
    questions: int


class ServedModel:
    """One engine and the renderer of its chat template."""

    def __init__(self, engine: Engine, renderer: Renderer, limits: ServedLimits) -> None:
        self._engine = engine
        self._renderer = renderer
        self._limits = limits
        self._names = itertools.count(1)
        self._asked = 0
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the engine is gone, once it is; see `watch`."""

    async def watch(self) -> None:
        """Wait until the engine is gone, and end every question then."""
        self.lost.set_result(await self._engine.wait_dead())

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        """Answer a question. Raises `ApiError`."""
        if self.lost.done():
            raise _gone()
        if self._asked >= self._limits.questions:
            raise ApiError(
                429,
                f"{self._limits.questions} questions are under way; ask again later",
                retry_after_s=RETRY_AFTER_S,
            )
        self._asked += 1
        try:
            return await self._chat(request)
        finally:
            self._asked -= 1

    async def _chat(self, request: ChatRequest) -> ChatAnswer:
        prompt = await self._prompt(request)
        room = self._limits.context - len(prompt)
        if room < (request.max_tokens or 1):
            raise ApiError(
                400,
                f"messages of {len(prompt)} tokens and an answer of {request.max_tokens or 1} "
                f"exceed the context of {self._limits.context} tokens",
                param="messages" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        name = f"chat-{next(self._names)}"
        seed = secrets.randbits(63) if request.seed is None else request.seed
        deltas: asyncio.Queue[TokenDelta] = asyncio.Queue()
        self._engine.add(
            GenerateRequest(
                id=name,
                session=name,
                prompt=(prompt,),
                max_tokens=room if request.max_tokens is None else request.max_tokens,
                temperature=request.temperature,
                seed=seed,
            ),
            deltas.put_nowait,
        )
        try:
            return await self._collected(request, deltas, len(prompt))
        finally:
            with contextlib.suppress(RollartError):  # an engine that is lost has let go
                await self._engine.abort([name])
            self._engine.release(name)

    async def _prompt(self, request: ChatRequest) -> Int32Array:
        try:
            return ids_array((await self._renderer.open(request.messages)).tokens)
        except ValueError as error:  # messages that the template does not take
            raise ApiError(400, str(error), param="messages") from error

    async def _collected(
        self, request: ChatRequest, deltas: "asyncio.Queue[TokenDelta]", prompt_tokens: int
    ) -> ChatAnswer:
        """The answer, cut where it first holds one of the texts that stop it."""
        ids = np.zeros(0, np.int32)
        while True:
            delta = await self._next(deltas)
            if delta.refused is not None:
                raise ApiError(400, delta.refused)
            ids = np.concatenate((ids, ids_array(delta.ids)))
            text, finish = "", delta.finish
            if request.stop or finish is not None:
                text = (await self._renderer.parse(ids)).content
            at = min((at for stop in request.stop if (at := text.find(stop)) >= 0), default=-1)
            if at >= 0 or finish is not None:
                return ChatAnswer(
                    text=text if at < 0 else text[:at],
                    finish="stop" if finish is None or at >= 0 else FINISHED[finish.value],
                    prompt_tokens=prompt_tokens,
                    completion_tokens=len(ids),
                )

    async def _next(self, deltas: "asyncio.Queue[TokenDelta]") -> TokenDelta:
        if not deltas.empty():
            return deltas.get_nowait()
        async with asyncio.TaskGroup() as group:
            got = group.create_task(deltas.get())
            await asyncio.wait((got, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not got.done():
                got.cancel()
        if got.cancelled():
            raise _gone()
        return got.result()


def _gone() -> ApiError:
    return ApiError(503, "the model's engine is gone; start the endpoint again")
