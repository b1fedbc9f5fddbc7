import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.errors import ConfigError
from rollart.core.ports import Rendered, Renderer
from rollart.core.tokens import TokenBlock, VersionRuns, ids_array
from rollart.core.types import Message, Piece, Segment, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STRIPS_THINKING = (
    "{% set last = namespace(user=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{% set content = message.content %}"
    "{% if message.role == 'assistant' and loop.index0 < last.user %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_CLOSE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + ':' + message.content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
)
TRIMS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content.strip() + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USERS_ONLY = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + message.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def encode(tokenizer: "PreTrainedTokenizerBase", *tokens: str) -> np.ndarray:
    """Ids of exactly these tokens."""
    return np.array([tokenizer.get_vocab()[token] for token in tokens], np.int32)


def full_render(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], *, prompt: bool
) -> list[int]:
    chat = [{"role": message.role, "content": message.content} for message in messages]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
    return list(tokenizer.encode(str(text), add_special_tokens=False))


class Episode:
    """A conversation as control would record it: segments of observed and sampled pieces."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.messages: list[Message] = []
        self.segments: list[list[Piece]] = []
        self.sampled: TokenBlock = np.zeros(0, np.int32)

    async def observe(self, *messages: Message) -> Rendered:
        if self.messages:
            rendered = await self.renderer.extend(self.messages, self.sampled, messages)
        else:
            rendered = await self.renderer.open(messages)
        if rendered.restarts or not self.messages:
            self.segments.append([])
        self.segments[-1].append(Piece(ids=rendered.tokens))
        self.messages.extend(messages)
        return rendered

    async def answer(self, ids: np.ndarray) -> None:
        self.sampled = ids
        self.segments[-1].append(
            Piece(
                ids=ids,
                logprobs=np.zeros(len(ids), np.float32),
                versions=VersionRuns(((0, len(ids)),)),
            )
        )
        self.messages.append(await self.renderer.parse(ids))

    @property
    def segment(self) -> Segment:
        (pieces,) = self.segments
        return Segment(pieces=tuple(pieces))


async def three_turns(renderer: Renderer, tokenizer: "PreTrainedTokenizerBase") -> Episode:
    """Answers "he", "llo" as two tokens although the tokenizer would write one."""
    episode = Episode(renderer)
    await episode.observe(Message(role="system", content="say hello"), user("go"))
    for number in range(3):
        await episode.answer(encode(tokenizer, "he", "llo", "<|im_end|>"))
        if number < 2:
            await episode.observe(Message(role="tool", content=f"hello {number}"))
    return episode


def test_ids_equal_the_full_render_token_for_token(chatml: "PreTrainedTokenizerBase") -> None:
    async def main() -> None:
        episode = Episode(HfChatRenderer(chatml))
        await episode.observe(Message(role="system", content="be brief"), user("hello?"))
        for reply in ("a tool says hello", "and again"):
            await episode.answer(encode(chatml, "hello", "!", "<|im_end|>"))
            await episode.observe(Message(role="tool", content=reply))
        assert episode.segment.ids().tolist() == full_render(chatml, episode.messages, prompt=True)

    asyncio.run(main())


def test_the_mask_covers_sampled_ids_and_their_end_but_no_header_or_newline(
    chatml: "PreTrainedTokenizerBase",
) -> None:
    async def main() -> None:
        segment = (await three_turns(HfChatRenderer(chatml), chatml)).segment
        tokens = chatml.convert_ids_to_tokens(segment.ids().tolist())
        trained = [token for token, on in zip(tokens, segment.loss_mask(), strict=True) if on]
        assert trained == ["he", "llo", "<|im_end|>"] * 3
        text = "".join(tokens)
        assert text.count("<|im_end|>\n<|im_start|>tool\n") == 2
        assert text.count("<|im_start|>assistant\n") == 3

    asyncio.run(main())


def token_problem(ids: list[int], tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """What is wrong with the recorded tokens of `three_turns`, if anything."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    if tokens.count("hello") != 3:
        return "a sampled token was encoded again, or an observed word was not"
    if "".join(tokens).count("<|im_end|>\n<|im_start|>") != 6:
        return "a separator after an end token is missing or doubled"
    return None


class EncodesHistoryAgain(HfChatRenderer):
    """Planted bug: each turn is a fresh render of the whole conversation."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        whole = await self.open([*history, *messages])
        return Rendered(tokens=whole.tokens, restarts=True)


class RendersTheNewMessagesAlone(HfChatRenderer):
    """Planted bug: what the template puts after the end token is written by nobody."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return await self.open(messages)


@pytest.mark.parametrize(
    ("renderer", "right"),
    [
        (HfChatRenderer, True),
        (EncodesHistoryAgain, False),
        (RendersTheNewMessagesAlone, False),
    ],
)
def test_sampled_ids_are_kept_and_separators_are_complete(
    renderer: type[HfChatRenderer], right: bool, chatml: "PreTrainedTokenizerBase"
) -> None:
    episode = asyncio.run(three_turns(renderer(chatml), chatml))
    ids = Segment(pieces=tuple(episode.segments[-1])).ids().tolist()
    assert (token_problem(ids, chatml) is None) is right


def test_an_answer_cut_off_is_closed_by_the_observation(
    chatml: "PreTrainedTokenizerBase",
) -> None:
    async def main() -> None:
        renderer = HfChatRenderer(chatml)
        history = [user("go"), Message(role="assistant", content="he")]
        cut = await renderer.extend(history, encode(chatml, "he"), [user("on")])
        ended = await renderer.extend(history, encode(chatml, "he", "<|im_end|>"), [user("on")])
        other = await renderer.extend(history, encode(chatml, "he", "<|stop|>"), [user("on")])
        nothing = await renderer.extend(history, np.zeros(0, np.int32), [user("on")])
        text = [chatml.decode(ids_array(r.tokens).tolist()) for r in (cut, ended, other, nothing)]
        after = "\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
        assert text == [f"<|im_end|>{after}", after, f"<|im_end|>{after}", f"<|im_end|>{after}"]

    asyncio.run(main())


def test_a_template_without_closing_token_adds_none(make_tokenizer: Any) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(NO_CLOSE)
        episode = Episode(HfChatRenderer(tokenizer))
        await episode.observe(user("a"))
        await episode.answer(encode(tokenizer, "hello"))
        await episode.observe(user("b"))
        await episode.answer(encode(tokenizer, "he"))
        await episode.observe(user("c"))
        ids = episode.segment.ids().tolist()
        assert ids == full_render(tokenizer, episode.messages, prompt=True)

    asyncio.run(main())


def test_a_template_that_strips_thinking_starts_a_new_segment_with_the_whole_prompt(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(STRIPS_THINKING)
        renderer = HfChatRenderer(tokenizer)
        assert renderer.rewrites_history
        episode = Episode(renderer)
        thought = np.array(
            tokenizer.encode("<think>he</think>hello<|im_end|>", add_special_tokens=False),
            np.int32,
        )
        await episode.observe(user("one"))
        await episode.answer(thought)
        rendered = await episode.observe(user("two"))
        assert rendered.restarts
        whole = full_render(tokenizer, episode.messages, prompt=True)
        assert ids_array(rendered.tokens).tolist() == whole
        assert "think" not in tokenizer.decode(whole)
        await episode.answer(thought)
        pieces = [piece for segment in episode.segments for piece in segment if piece.sampled]
        assert [ids_array(piece.ids).tolist() for piece in pieces] == [thought.tolist()] * 2

    asyncio.run(main())


def test_such_a_template_goes_on_in_the_segment_while_it_changes_nothing(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(STRIPS_THINKING)
        episode = Episode(HfChatRenderer(tokenizer))
        await episode.observe(user("one"))
        await episode.answer(encode(tokenizer, "hello", "<|im_end|>"))
        assert not (await episode.observe(user("two"))).restarts
        thought = tokenizer.encode("<think>a</think>b<|im_end|>", add_special_tokens=False)
        await episode.answer(np.array(thought, np.int32))
        kept = await episode.observe(Message(role="tool", content="seen"))
        assert not kept.restarts
        assert episode.segment.ids().tolist() == full_render(
            tokenizer, episode.messages, prompt=True
        )

    asyncio.run(main())


def test_a_template_that_trims_answers_does_not_cost_a_segment_each_turn(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(TRIMS)
        episode = Episode(HfChatRenderer(tokenizer))
        await episode.observe(user("one"))
        await episode.answer(encode(tokenizer, " ", "hello", "\n", "<|im_end|>"))
        assert not (await episode.observe(user("two"))).restarts
        assert tokenizer.decode(episode.segment.ids().tolist()) == (
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n hello\n<|im_end|>\n"
            "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
        )

    asyncio.run(main())


def test_parse_drops_special_tokens_and_nothing_else(chatml: "PreTrainedTokenizerBase") -> None:
    renderer = HfChatRenderer(chatml)
    short = encode(chatml, " ", "he", "llo", " ", "<|im_end|>")
    long = encode(chatml, *["he", "\n"] * 10, "<|stop|>")
    assert asyncio.run(renderer.parse(short)) == Message(role="assistant", content=" hello ")
    assert asyncio.run(renderer.parse(long)).content == "he\n" * 10


def test_blocks_are_int32_and_cannot_be_changed(chatml: "PreTrainedTokenizerBase") -> None:
    async def main() -> None:
        renderer = HfChatRenderer(chatml)
        opened = ids_array((await renderer.open([user("go")])).tokens)
        sampled = encode(chatml, "he", "<|im_end|>")
        history = [user("go"), Message(role="assistant", content="he")]
        after = ids_array((await renderer.extend(history, sampled, [user("on")])).tokens)
        for block in (opened, after):
            assert block.dtype == np.int32
            with pytest.raises(ValueError, match="read-only"):
                block[0] = 1

    asyncio.run(main())


class CountsMessages:
    """A tokenizer that counts the messages its template is asked to render."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.inner = tokenizer
        self.rendered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply_chat_template(self, chat: list[dict[str, str]], **options: Any) -> Any:
        self.rendered += len(chat)
        return self.inner.apply_chat_template(chat, **options)


def test_a_turn_costs_the_same_however_long_the_history(
    chatml: "PreTrainedTokenizerBase",
) -> None:
    async def main() -> None:
        tokenizer: Any = CountsMessages(chatml)
        episode = Episode(HfChatRenderer(tokenizer))
        await episode.observe(user("start"))
        costs: list[int] = []
        for number in range(50):
            await episode.answer(encode(chatml, "he", "<|im_end|>"))
            before = tokenizer.rendered
            await episode.observe(user(f"turn {number % 40}"))
            costs.append(tokenizer.rendered - before)
        assert costs == [3] * 40 + [0] * 10

    asyncio.run(main())


def test_messages_that_the_template_refuses_are_named_by_role(make_tokenizer: Any) -> None:
    renderer = HfChatRenderer(make_tokenizer(USERS_ONLY))
    with pytest.raises(ValueError, match=r"roles user, tool: no tools here"):
        asyncio.run(renderer.open([user("a"), Message(role="tool", content="b")]))


def test_tool_calls_reach_the_template(make_tokenizer: Any) -> None:
    shows_calls = (
        "{% for message in messages %}{{ '<|im_start|>' + message.content }}"
        "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}"
        "{{ message.tool_call_id or '' }}{% endfor %}"
    )
    tokenizer = make_tokenizer(shows_calls)
    call = ToolCall(id="c1", name="look", arguments="{}")
    messages = [
        Message(role="assistant", content="a", tool_calls=(call,)),
        Message(role="tool", content="b", tool_call_id="c1"),
    ]
    opened = asyncio.run(HfChatRenderer(tokenizer).open(messages))
    text = tokenizer.decode(ids_array(opened.tokens).tolist())
    assert text == "<|im_start|>alook<|im_start|>bc1"


def test_a_tokenizer_without_template_is_refused(make_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"no chat template: add a file chat_template\.jinja"):
        HfChatRenderer(make_tokenizer(None))


def test_a_directory_loads_and_one_without_tokenizer_is_refused(
    chatml: "PreTrainedTokenizerBase", tmp_path: Path
) -> None:
    chatml.save_pretrained(tmp_path / "good")
    loaded = asyncio.run(HfChatRenderer.load(tmp_path / "good").open([user("hello")]))
    assert ids_array(loaded.tokens).tolist() == full_render(chatml, [user("hello")], prompt=True)
    (tmp_path / "bad").mkdir()
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        HfChatRenderer.load(tmp_path / "bad")
