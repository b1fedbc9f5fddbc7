"""Chat formats of several families: parts that add up to the template's own render, id for id."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rollart.backends.envs.shop import Shop
from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.errors import ConfigError
from rollart.core.ports import Rendered
from rollart.core.tokens import TokenBlock, VersionRuns, ids_array
from rollart.core.types import Message, Piece, Segment, Task, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QWEN = """
{%- if tools -%}
<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif -%}
{%- set seen = namespace(query=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set seen.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
<|im_start|>assistant
{% if '</think>' in m.content -%}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') -%}
{%- if loop.index0 > seen.query -%}
{{ '<think>\n' + thought + '\n</think>\n\n' + said }}
{%- else -%}
{{ said }}
{%- endif -%}
{%- else -%}
{{ m.content }}
{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{{ '\n<tool_call>\n' + ({'name': call.function.name, 'arguments': call.function.arguments}
| tojson) + '\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}
<|im_start|>user
{%- endif -%}
{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
LLAMA = """
{{- '<|bos|>' -}}
{%- set ns = namespace(tools=tools) -%}
{%- for m in messages -%}
{%- set role = 'ipython' if m.role == 'tool' else m.role -%}
{{ '<|start_header|>' + role + '<|end_header|>\n\n' }}
{%- if m.role == 'user' and ns.tools -%}
{{ 'Answer with a JSON call of one of ' + (ns.tools | tojson) + '\n\n' }}
{%- set ns.tools = none -%}
{%- endif -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception('one call at a time') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
{%- else -%}
{{ m.content | trim }}
{%- endif -%}
<|eot|>
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header|>assistant<|end_header|>\n\n' }}
{%- endif -%}
"""
THINKER = """
{%- for m in messages -%}
{%- set content = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant'
else m.content -%}
{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}
"""
WANTS_CALLS = """
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if not messages[loop.index0 - 1].tool_calls -%}
{{ raise_exception('a result without a call') }}
{%- endif -%}
{{ '<|im_start|>tool ' + messages[loop.index0 - 1].tool_calls[0].function.name + '\n' + m.content
+ '<|im_end|>\n' }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\n' + m.content }}
{%- for call in m.tool_calls or [] -%}{{ '<tool_call>' + call.function.name }}{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
ROUNDS = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '[Round ' + (loop.index0 // 2) | string + ']\n' }}{%- endif -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
FORGETFUL = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
TOOLS_LAST = """
{%- for m in messages -%}
{%- if loop.last and tools -%}{{ 'tools ' + (tools | tojson) + '\n' }}{%- endif -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

LOOK = ToolSpec(name="look", description="Look.", parameters='{"type": "object"}')
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "hello"}}\n</tool_call>'
JSON_CALL = '{"name": "look", "parameters": {"at": "hello"}}'


def user(content: str, *tools: ToolSpec) -> Message:
    return Message(role="user", content=content, tools=tools)


def told(content: str) -> Message:
    return Message(role="tool", content=content, tool_call_id="call00000")


def reference(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]) -> list[int]:
    """The template's own render of a conversation in which words are told as they were said."""
    chat = [{"role": message.role, "content": message.content} for message in messages]
    tools: Any = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters),
            },
        }
        for message in messages
        for tool in message.tools
    ]
    text = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True, tools=tools or None
    )
    return list(tokenizer.encode(str(text), add_special_tokens=False))


@dataclass
class Talk:
    """A conversation as control records it: every answer is sampled ids, `end` among them."""

    tokenizer: "PreTrainedTokenizerBase"
    renderer: HfChatRenderer
    end: str = "<|im_end|>"
    messages: list[Message] = field(default_factory=list)
    segments: list[list[Piece]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)

    async def hears(self, *messages: Message) -> Rendered:
        if self.messages:
            last = np.array(self.sampled[-1], np.int32)
            rendered = await self.renderer.extend(self.messages, last, messages)
        else:
            rendered = await self.renderer.open(messages)
        if rendered.restarts or not self.messages:
            self.segments.append([])
        self.segments[-1].append(Piece(ids=rendered.tokens))
        self.messages += messages
        return rendered

    async def says(self, text: str) -> Message:
        ids = np.array(self.tokenizer.encode(text + self.end, add_special_tokens=False), np.int32)
        self.sampled.append(ids.tolist())
        runs = VersionRuns(((0, len(ids)),))
        zeros = np.zeros(len(ids), np.float32)
        self.segments[-1].append(Piece(ids=ids, logprobs=zeros, versions=runs))
        self.messages.append(await self.renderer.parse(ids))
        return self.messages[-1]

    def ids(self) -> list[int]:
        """The open segment."""
        return Segment(pieces=tuple(self.segments[-1])).ids().tolist()

    def text(self) -> str:
        """The open segment."""
        return str(self.tokenizer.decode(self.ids()))

    def check(self) -> None:
        """Parts add up to the whole, and what was sampled is trained on."""
        assert self.ids() == reference(self.tokenizer, self.messages)
        self.check_trained()

    def check_trained(self) -> None:
        """Exactly what was sampled is trained on, each id once."""
        trained: list[int] = []
        for pieces in self.segments:
            segment = Segment(pieces=tuple(pieces))
            trained += segment.ids()[segment.loss_mask()].tolist()
        assert trained == [token for answer in self.sampled for token in answer]


def talk(make_tokenizer: Any, template: str, end: str = "<|im_end|>") -> Talk:
    tokenizer = make_tokenizer(template)
    return Talk(tokenizer, HfChatRenderer(tokenizer), end)


def test_qwens_format_adds_up_through_thoughts_calls_and_grouped_results(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, QWEN)
        await one.hears(user("find hello", LOOK))
        for thought in ("where", "again"):
            said = await one.says(f"<think>\n{thought}\n</think>\n\n{CALL}")
            assert [(c.name, c.arguments) for c in said.tool_calls] == [("look", '{"at": "hello"}')]
            assert not (await one.hears(told("here"), told("there"))).restarts
            one.check()
        assert len(one.segments) == 1
        await one.says("<think>\nso\n</think>\n\nhello!")
        assert (await one.hears(user("and now?"))).restarts
        one.check()
        text = one.text()
        assert "<think>" not in text
        assert text.count("<tool_call>") == 2
        assert "Tools:" in text

    asyncio.run(main())


def test_a_thought_that_the_template_only_sets_apart_otherwise_begins_no_segment(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, QWEN)
        await one.hears(user("find hello", LOOK))
        await one.says(f"<think>hm</think>{CALL}")
        assert not (await one.hears(told("here"))).restarts
        one.check_trained()
        assert one.text().endswith(
            "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nhere\n</tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n"
        )

    asyncio.run(main())


def test_llamas_format_adds_up_with_json_calls_and_declared_tools(make_tokenizer: Any) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, LLAMA, "<|eot|>")
        assert not one.renderer.rewrites_history
        await one.hears(Message(role="system", content="be brief"), user("find hello", LOOK))
        for place in ("here", "there"):
            said = await one.says(JSON_CALL)
            assert said.tool_calls == (
                ToolCall(id="call00000", name="look", arguments='{"at": "hello"}'),
            )
            await one.hears(told(place))
            one.check()
        await one.says("hello is there")
        await one.hears(user("thanks"))
        one.check()
        assert len(one.segments) == 1
        text = one.text()
        assert text.count("Answer with a JSON call of one of") == 1
        assert text.count("<|eot|><|start_header|>ipython<|end_header|>\n\n") == 2
        assert text.count("<|bos|>") == 1

    asyncio.run(main())


def test_a_thinking_model_gets_one_segment_a_turn_each_under_the_context_it_was_sampled_in(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, THINKER)
        await one.hears(user("one"))
        for number in range(3):
            one.check()
            assert one.text().count("<think>") == 1
            await one.says(f"thought {number}\n</think>\n\nhello {number}")
            assert (await one.hears(user("more"))).restarts
        one.check()
        assert len(one.segments) == 4

    asyncio.run(main())


def test_a_template_that_wants_the_call_before_its_result_is_told_of_it(
    make_tokenizer: Any,
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, WANTS_CALLS)
        await one.hears(user("find hello"))
        await one.says(CALL)
        await one.hears(told("here"))
        opened = "<|im_start|>user\nfind hello<|im_end|>\n<|im_start|>assistant\n"
        after = "<|im_end|>\n<|im_start|>tool look\nhere<|im_end|>\n<|im_start|>assistant\n"
        assert one.text() == f"{opened}{CALL}{after}"
        await one.says("hello")
        await one.hears(user("more"))
        assert one.text().endswith(
            "hello<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
        )

    asyncio.run(main())


@pytest.mark.parametrize(("template", "tools"), [(ROUNDS, ()), (TOOLS_LAST, (LOOK,))])
def test_what_depends_on_the_place_in_the_conversation_is_rendered_whole(
    make_tokenizer: Any, template: str, tools: tuple[ToolSpec, ...]
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, template)
        assert one.renderer.rewrites_history
        await one.hears(user("one", *tools))
        for _ in range(3):
            await one.says("hello")
            await one.hears(user("more"))
            one.check()

    asyncio.run(main())


def test_tools_are_told_in_plain_text_to_a_template_that_takes_none(
    chatml: "PreTrainedTokenizerBase",
) -> None:
    async def main() -> None:
        one = Talk(chatml, HfChatRenderer(chatml))
        await one.hears(user("find hello", LOOK))
        opened = one.text()
        assert opened.startswith("<|im_start|>user\nfind hello\n\nYou can call these tools:\n{")
        assert '"name": "look"' in opened
        await one.says(CALL)
        await one.hears(told("here"))
        assert one.text() == (
            f"{opened}{CALL}<|im_end|>\n<|im_start|>tool\nhere<|im_end|>\n<|im_start|>assistant\n"
        )

    asyncio.run(main())


def test_tools_that_are_declared_later_begin_a_segment(make_tokenizer: Any) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, LLAMA, "<|eot|>")
        await one.hears(user("one"))
        await one.says("hello")
        assert (await one.hears(user("use this", LOOK))).restarts
        one.check()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (FORGETFUL, "does not show what the assistant said before"),
        ("{{ messages[0].content", "the chat template refuses messages of roles user"),
        ("{{ raise_exception('music only') }}", "music only"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_at_load_with_the_reason(
    make_tokenizer: Any, template: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        HfChatRenderer(make_tokenizer(template))


@pytest.mark.parametrize(
    "bad",
    [
        '<tool_call>{"name": "price", "arguments": {"a": 1,</tool_call>',
        '<tool_call>{"name": "steal", "arguments": {"item": "fig"}}</tool_call>',
    ],
)
def test_a_call_that_is_none_is_answered_in_the_segment_and_the_episode_goes_on(
    make_tokenizer: Any, bad: str
) -> None:
    async def main() -> None:
        one = talk(make_tokenizer, QWEN)
        shop = Shop()
        task = Task(domain="shop", key="t", payload={"order": {"fig": 2}, "prices": {"fig": 4}})
        await one.hears(*shop.reset(task, 0).messages)
        refused = shop.step(await one.says(f"<think>\nhm\n</think>\n\n{bad}"))
        (answer,) = refused.observation.messages
        assert (answer.role, answer.tool_call_id) == ("tool", one.messages[-1].tool_calls[0].id)
        assert answer.content.startswith("error: ")
        assert dict(refused.metrics)["tool_parse_error"] == 1.0
        await one.hears(answer)
        one.check()
        good = '<tool_call>{"name": "price", "arguments": {"item": "fig"}}</tool_call>'
        priced = shop.step(await one.says(good))
        await one.hears(*priced.observation.messages)
        one.check()
        assert priced.observation.messages[0].content == "4"
        end = shop.step(await one.says("<think>\n2 * 4\n</think>\n\n8"))
        assert (end.done, end.reward, len(one.segments)) == (True, 1.0, 1)

    asyncio.run(main())


class ForgetsTheSeparator(HfChatRenderer):
    """Planted bug: what the template puts after the end token is left out."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        rendered = await super().extend(history, sampled, messages)
        return Rendered(tokens=ids_array(rendered.tokens)[1:], restarts=rendered.restarts)


class NeverRestarts(HfChatRenderer):
    """Planted bug: history that the template rewrote is kept as it was."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return Rendered(tokens=(await super().extend(history, sampled, messages)).tokens)


@pytest.mark.parametrize("broken", [ForgetsTheSeparator, NeverRestarts])
def test_the_check_of_these_tests_finds_planted_bugs(
    make_tokenizer: Any, broken: type[HfChatRenderer]
) -> None:
    async def main() -> None:
        tokenizer = make_tokenizer(QWEN)
        one = Talk(tokenizer, broken(tokenizer))
        await one.hears(user("one"))
        await one.says("<think>\nhm\n</think>\n\nhello")
        await one.hears(user("two"))
        with pytest.raises(AssertionError):
            one.check()

    asyncio.run(main())
