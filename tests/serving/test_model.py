"""Questions to an engine that answers by script: what stops an answer, and that nothing is left."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink, Rendered
from rollart.core.tokens import NO_TOKENS, TokenBlock, ids_array
from rollart.core.types import GenerateRequest, Message, StopReason, TokenDelta
from rollart.serving.model import ServedLimits, ServedModel
from rollart.serving.openai import ApiError, ChatAnswer, ChatRequest


class Letters:
    """A renderer whose tokens are letters; it takes no message that says "?"."""

    async def open(self, messages: Sequence[Message]) -> Rendered:
        text = "".join(message.content for message in messages)
        if "?" in text:
            raise ValueError("the template takes no questions")
        return Rendered(tokens=np.array([ord(letter) for letter in text], np.int32))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return await self.open(messages)

    async def parse(self, sampled: TokenBlock) -> Message:
        text = "".join(map(chr, ids_array(sampled).tolist()))
        return Message(role="assistant", content=text)


class Writer:
    """An engine that says what it is told to, a delta at a time."""

    id, hardware = "writer", "local"

    def __init__(self) -> None:
        self.sinks: dict[str, DeltaSink] = {}
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []
        self.asked = asyncio.Event()
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        self.sinks[request.id] = sink
        self.requests.append(request)
        self.asked.set()

    def say(self, text: str, finish: StopReason | None = None, refused: str | None = None) -> None:
        for name, sink in list(self.sinks.items()):
            ids = np.array([ord(letter) for letter in text], np.int32)
            sink(
                TokenDelta(
                    request_id=name,
                    ids=ids,
                    logprobs=NO_TOKENS,
                    version=0,
                    finish=finish,
                    refused=refused,
                )
            )

    async def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self.sinks.pop(name, None)

    def release(self, session: str) -> None:
        self.released.append(session)

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update(self, version: PolicyVersion) -> None: ...

    async def rebuild_kv(self) -> int:
        return 0

    async def wait_dead(self) -> str:
        return await asyncio.shield(self.death)

    async def close(self) -> None: ...


def question(text: str = "hello", **settings: object) -> ChatRequest:
    fields = {"model": "m", "messages": (Message(role="user", content=text),), **settings}
    return ChatRequest(**fields)  # type: ignore[arg-type]


def ask(request: ChatRequest, *words: str, finish: StopReason = StopReason.STOP) -> ChatAnswer:
    """The answer where the engine says these words, a delta each; nothing may be left of it."""

    async def main() -> ChatAnswer:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=4))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            asked = group.create_task(model.chat(request))
            await engine.asked.wait()
            for word in words[:-1]:
                engine.say(word)
            engine.say(words[-1], finish)
        assert engine.sinks == {}
        assert engine.released == [sent.session for sent in engine.requests]
        return asked.result()

    return asyncio.run(main())


def test_an_answer_is_all_that_the_engine_says() -> None:
    expected = ChatAnswer(text="good day", finish="stop", prompt_tokens=5, completion_tokens=8)
    assert ask(question(), "good", " ", "day") == expected


def test_an_answer_that_was_cut_off_says_so() -> None:
    for reason in (StopReason.LENGTH, StopReason.CONTEXT):
        assert ask(question(), "good", finish=reason).finish == "length"


def test_an_answer_ends_before_the_first_text_that_stops_it_also_across_tokens() -> None:
    found = ask(question(stop=("xyz", "d d")), "goo", "d ", "day", " xyz", finish=StopReason.LENGTH)
    assert (found.text, found.finish) == ("goo", "stop")
    assert found.completion_tokens == len("good day")


def test_settings_reach_the_engine_and_an_open_length_is_what_the_context_leaves() -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=4))
        for settings in ({"seed": 7, "temperature": 0.5, "max_tokens": 3}, {}):
            engine.asked.clear()
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                group.create_task(model.chat(question(**settings)))
                await engine.asked.wait()
                engine.say("", StopReason.STOP)
        told, left = engine.requests
        assert (told.seed, told.temperature, told.max_tokens) == (7, 0.5, 3)
        assert (left.temperature, left.max_tokens) == (1.0, 32 - 5)
        assert told.session != left.session

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (question("x" * 32), "context_length_exceeded"),
        (question(max_tokens=28), "context_length_exceeded"),
        (question("why?"), None),
    ],
)
def test_what_can_never_be_answered_is_refused_before_the_engine_is_asked(
    request_: ChatRequest, code: str | None
) -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=4))
        with pytest.raises(ApiError) as refused:
            await model.chat(request_)
        assert (refused.value.status, refused.value.code) == (400, code)
        assert engine.requests == []

    asyncio.run(main())


def test_questions_beyond_the_limit_are_asked_to_come_again() -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=2))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            tasks = [group.create_task(model.chat(question())) for _ in range(2)]
            await engine.asked.wait()
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as refused:
                await model.chat(question())
            assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
            engine.say("a", StopReason.STOP)
        assert [task.result().text for task in tasks] == ["a", "a"]

    asyncio.run(main())


def test_a_question_that_is_given_up_is_taken_from_the_engine() -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=1))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            asked = group.create_task(model.chat(question()))
            await engine.asked.wait()
            asked.cancel()
        assert engine.sinks == {}
        assert engine.released == [engine.requests[0].session]
        async with asyncio.TaskGroup() as group:  # its place is free again
            again = group.create_task(model.chat(question()))
            await asyncio.sleep(0.01)
            engine.say("a", StopReason.STOP)
        assert again.result().text == "a"

    asyncio.run(main())


def test_every_question_ends_when_the_engine_is_gone() -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=4))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(model.watch())
            asked = group.create_task(refused_by(model))
            await engine.asked.wait()
            engine.death.set_result("killed by signal 9")
        assert (asked.result(), await refused_by(model)) == (503, 503)

    async def refused_by(model: ServedModel) -> int:
        with pytest.raises(ApiError) as refused:
            await model.chat(question())
        return refused.value.status

    asyncio.run(main())


def test_what_the_engine_refuses_is_told_in_its_words() -> None:
    async def main() -> None:
        engine = Writer()
        model = ServedModel(engine, Letters(), ServedLimits(context=32, questions=4))

        async def asked() -> None:
            with pytest.raises(ApiError, match="no such ids"):
                await model.chat(question())

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(asked())
            await engine.asked.wait()
            engine.say("", refused="no such ids")

    asyncio.run(main())
