"""Messages to tokens and back, by the chat template of a Hugging Face tokenizer.

Invariant: sampled ids are never decoded and encoded again; what follows them is encoded alone and
appended. Where the template would show earlier turns otherwise than the engine saw them (thinking
that is stripped once the next user speaks), the answer is a whole new prompt, marked as a restart.

One per process, used by one event loop; a call takes microseconds for texts seen before, and less
than a millisecond otherwise, so nothing waits on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollart.core.errors import ConfigError
from rollart.core.ports import Rendered
from rollart.core.tokens import Int32Array, TokenBlock, ids_array
from rollart.core.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_TEXTS = 8192
SHORT_ANSWER_TOKENS = 8

_ANSWER = "An0answer"
_THOUGHT = "<think>\nA thought.\n</think>\n\nAn answer."
_QUESTION = Message(role="user", content="A question.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """Ids that follow an assistant's content; ``after_close`` skips the token that closes it."""

    ids: Int32Array
    close: int | None
    after_close: int

    def following(self, sampled: TokenBlock) -> Int32Array:
        """The part that the sampled ids do not already hold."""
        closed = len(sampled) > 0 and int(ids_array(sampled)[-1]) == self.close
        return self.ids[self.after_close :] if closed else self.ids


class HfChatRenderer:
    """A `Renderer` over one tokenizer with a chat template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Probe the template; raises ConfigError if there is none or it takes no plain chat."""
        if not tokenizer.chat_template:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template: add a file "
                "chat_template.jinja to its directory"
            )
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._prompt = lru_cache(CACHED_TEXTS)(self._encode_prompt)
        self._tail = lru_cache(CACHED_TEXTS)(self._encode_tail)
        self._short_text = lru_cache(CACHED_TEXTS)(self._decode)
        try:
            self._rewrites_history = self._probe()
        except ValueError as error:
            raise ConfigError(f"tokenizer {tokenizer.name_or_path!r}: {error}") from error

    @classmethod
    def load(cls, directory: Path | str) -> "HfChatRenderer":
        """Read the tokenizer in ``directory``; raises ConfigError if it holds none."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{directory}: holds no tokenizer that transformers can load ({error}); "
                "give a directory with tokenizer.json and tokenizer_config.json"
            ) from error
        return cls(tokenizer)

    @property
    def rewrites_history(self) -> bool:
        """Whether the template was seen to change earlier turns, so that segments may restart."""
        return self._rewrites_history

    async def open(self, messages: Sequence[Message]) -> Rendered:
        """The first prompt, up to where the agent speaks, as int32 ids [n]."""
        return Rendered(tokens=self._prompt(tuple(messages)))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        """What follows ``sampled``, or a whole prompt with ``restarts``, as int32 ids [n].

        A template that was seen to leave earlier turns alone is not asked about them again: the
        cost is that of the new messages, however long the history.
        """
        if not self._rewrites_history:
            return Rendered(tokens=self._tail(tuple(messages)).following(sampled))
        answer = history[-1].content
        before = self._text(history[:-1])
        after = self._text((*history, *messages))
        for kept in (answer, answer.strip()):
            if after.startswith(before + kept):
                tail = self._as_tail(after[len(before + kept) :])
                return Rendered(tokens=tail.following(sampled))
        return Rendered(tokens=self._encode(after), restarts=True)

    async def parse(self, sampled: TokenBlock) -> Message:
        """The assistant message in the sampled ids, without special and end tokens."""
        ids = tuple(ids_array(sampled).tolist())
        short = len(ids) <= SHORT_ANSWER_TOKENS
        return Message(
            role="assistant", content=self._short_text(ids) if short else self._decode(ids)
        )

    def _probe(self) -> bool:
        """Whether the template changes earlier turns, tried on plain and on thinking answers."""
        for answer in (_ANSWER, _THOUGHT):
            chat: list[Message] = []
            for _ in range(3):
                chat.append(_QUESTION)
                before = self._text(chat) + answer
                chat.append(Message(role="assistant", content=answer))
                if not self._text((*chat, _QUESTION)).startswith(before):
                    return True
        return False

    def _encode_prompt(self, messages: tuple[Message, ...]) -> Int32Array:
        return self._encode(self._text(messages))

    def _encode_tail(self, messages: tuple[Message, ...]) -> _Tail:
        """What the template puts after any assistant content when ``messages`` follow it."""
        chat = (_QUESTION, Message(role="assistant", content=_ANSWER), *messages)
        return self._as_tail(self._text(chat).split(_ANSWER, 1)[1])

    def _as_tail(self, text: str) -> _Tail:
        """The ids of ``text``; a closing token is its first special one, unless text precedes."""
        ids = self._encode(text)
        values = ids.tolist()
        first = next((at for at, token in enumerate(values) if token in self._special), None)
        if first is None or self._decode(tuple(values[:first])).strip():
            return _Tail(ids=ids, close=None, after_close=0)
        return _Tail(ids=ids, close=values[first], after_close=first + 1)

    def _text(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        chat = [_as_chat(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ValueError(
                f"the chat template refuses messages of roles {roles}: {error}; change the roles "
                "that the environment uses, or the template"
            ) from error
        return str(text)

    def _encode(self, text: str) -> Int32Array:
        ids = np.asarray(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
        ids.setflags(write=False)
        return ids

    def _decode(self, ids: tuple[int, ...]) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)


def _as_chat(message: Message) -> dict[str, Any]:
    """A message as chat templates expect it."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat
