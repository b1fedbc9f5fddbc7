"""What the chat template of a Hugging Face tokenizer makes of messages, as text.

Owns how messages, tool calls and tools are told to a template. Invariant: an assistant's own words
are rendered as they were written; calls that they spell out are not told a second time, unless the
template refuses the answers to calls that it was not told of. Pure; nothing waits here.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollart.backends.renderers.tool_calls import CLOSE, OPEN, read_answer
from rollart.core.types import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKER = "An0answer"
"""Stands for an assistant's words where only what follows them matters."""

_THOUGHT = "<think>\nA thought.\n</think>\n\nAn answer."
_CALL = f'{OPEN}\n{{"name": "look", "arguments": {{}}}}\n{CLOSE}'
_TOOL = ToolSpec(name="look", description="Look around.", parameters='{"type": "object"}')
_QUESTION = Message(role="user", content="A question.")
_CALLS = (ToolCall(id="call00000", name="look", arguments="{}"),)
_RESULT = Message(role="tool", content="A result.", tool_call_id="call00000")
_DEPTH = 3


class ChatTemplate:
    """The template of one tokenizer.

    Attributes:
        takes_tools: it declares tools in its own words; otherwise they are told in plain text
            after the message that declares them.
        knows_tools: it renders messages of role ``tool``.
        needs_calls: it does so only after an assistant's message whose calls it was told of.
        rewrites: what is rendered of earlier turns, or what follows an answer, was seen to depend
            on more than the answer's followers.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Try the template out; raises ValueError with the reason if it takes no plain chat."""
        source: Any = tokenizer.chat_template
        self._tokenizer = tokenizer
        self.takes_tools = "tools" in (source if isinstance(source, str) else json.dumps(source))
        self._check_shows_answers()
        self.knows_tools, self.needs_calls = self._try_tools()
        self.rewrites = self._try_rewriting()

    def text(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """The whole text, by default up to where the agent speaks.

        Raises ValueError when the template refuses the messages, naming their roles.
        """
        from jinja2 import TemplateError

        tools = tuple(tool for message in messages for tool in message.tools)
        spelled = [_spells_calls_out(message) for message in messages]
        try:
            return self._apply([self._told(m) for m in messages], tools, prompt=prompt)
        except TemplateError as error:
            if any(spelled) and any(message.role == "tool" for message in messages):
                return self._text_with_calls(messages, tools, prompt=prompt)
            raise _refusal(messages, error) from error

    def tail(
        self,
        messages: Sequence[Message],
        tools: tuple[ToolSpec, ...] = (),
        calls: tuple[ToolCall, ...] = (),
    ) -> str:
        """What follows an assistant's words when ``messages`` come next.

        Args:
            messages: the new ones.
            tools: those declared in the conversation.
            calls: those of the assistant's message; of use where ``needs_calls``.

        Raises ValueError as `text` does.
        """
        question = Message(role="user", content=_QUESTION.content, tools=tools)
        answer = Message(role="assistant", content=MARKER)
        answers_calls = any(message.role == "tool" for message in messages)
        if not (self.needs_calls and answers_calls and calls):
            return self.text((question, answer, *messages)).split(MARKER, 1)[1]
        close = self.text((question, answer), prompt=False).split(MARKER, 1)[1]
        called = Message(role="assistant", content="", tool_calls=calls)
        before = self.text((question, called), prompt=False)
        after = self.text((question, called, *messages))
        if not after.startswith(before):
            raise ValueError(
                "the chat template renders tool calls otherwise once they are answered, so that "
                "nothing can be appended to them; use another template"
            )
        return close + after[len(before) :]

    # -- trying it out -------------------------------------------------------------------------

    def _check_shows_answers(self) -> None:
        answered = (_QUESTION, Message(role="assistant", content=MARKER), _QUESTION)
        if MARKER not in self.text(answered):
            raise ValueError(
                "the chat template does not show what the assistant said before, so that no turn "
                "can follow another; use a template that renders messages of role assistant"
            )

    def _try_tools(self) -> tuple[bool, bool]:
        plain = Message(role="assistant", content=MARKER)
        told = Message(role="assistant", content="", tool_calls=_CALLS)
        for needs, answer in ((False, plain), (True, told)):
            try:
                self.text((_QUESTION, answer, _RESULT))
            except ValueError:
                continue
            return True, needs
        return False, False

    def _try_rewriting(self) -> bool:
        """Whether following an answer up is ever more than appending its tail."""
        followers: list[tuple[Message, ...]] = [(_QUESTION,)]
        if self.knows_tools and not self.needs_calls:
            followers += [(_RESULT,), (_RESULT, _RESULT)]
        for tools in ((), (_TOOL,)) if self.takes_tools else ((),):
            for more in followers:
                tail = self.tail(more, tools)
                for answer in (MARKER, _THOUGHT, _CALL):
                    chat = [Message(role="user", content=_QUESTION.content, tools=tools)]
                    for _ in range(_DEPTH):
                        expected = self.text(chat) + answer + tail
                        chat += [Message(role="assistant", content=answer), *more]
                        if self.text(chat) != expected:
                            return True
        return False

    # -- telling -------------------------------------------------------------------------------

    def _text_with_calls(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], *, prompt: bool
    ) -> str:
        from jinja2 import TemplateError

        try:
            chat = [self._told(message, calls=True) for message in messages]
            return self._apply(chat, tools, prompt=prompt)
        except TemplateError as error:
            raise _refusal(messages, error) from error

    def _apply(
        self, chat: list[dict[str, Any]], tools: tuple[ToolSpec, ...], *, prompt: bool
    ) -> str:
        options: dict[str, Any] = {}
        if tools and self.takes_tools:
            options["tools"] = [_declaration(tool) for tool in tools]
        return str(
            self._tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=prompt, **options
            )
        )

    def _told(self, message: Message, *, calls: bool = False) -> dict[str, Any]:
        """A message as chat templates expect it; with ``calls``, those it spells out are told."""
        spelled = _spells_calls_out(message)
        content = message.content
        if spelled and calls:
            content = read_answer(content).content
        if message.tools and not self.takes_tools:
            content = f"{content}\n\n{_in_plain_text(message.tools)}".lstrip()
        chat: dict[str, Any] = {"role": message.role, "content": content}
        if message.tool_calls and (calls or not spelled):
            chat["tool_calls"] = [_told_call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            chat["tool_call_id"] = message.tool_call_id
        return chat


def rest_after(text: str, answer: str) -> str | None:
    """What follows ``answer`` at the start of ``text``; None if something else stands there.

    Templates trim answers and set thoughts apart by lines of their own; white space does not count.
    """
    for kept in (answer, answer.strip()):
        if text.startswith(kept):
            return text[len(kept) :]
    at = 0
    for character in "".join(answer.split()):
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != character:
            return None
        at += 1
    return text[at:]


def _spells_calls_out(message: Message) -> bool:
    """Whether the assistant's words hold its calls, as they do where a renderer read them."""
    return bool(message.tool_calls) and read_answer(message.content).calls == message.tool_calls


def _told_call(call: ToolCall) -> dict[str, Any]:
    """Arguments as a mapping where they are one: templates write it as JSON."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    return {
        "id": call.id,
        "type": "function",
        "function": {
            "name": call.name,
            "arguments": arguments if isinstance(arguments, dict) else call.arguments,
        },
    }


def _declaration(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": json.loads(tool.parameters),
        },
    }


def _in_plain_text(tools: tuple[ToolSpec, ...]) -> str:
    lines = (json.dumps(_declaration(tool)["function"], ensure_ascii=False) for tool in tools)
    return "\n".join(
        [
            "You can call these tools:",
            *lines,
            f'To call one, write {OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE}',
        ]
    )


def _refusal(messages: Sequence[Message], error: Exception) -> ValueError:
    roles = ", ".join(message.role for message in messages)
    return ValueError(
        f"the chat template refuses messages of roles {roles}: {error}; change the roles "
        "that the environment uses, or the template"
    )
