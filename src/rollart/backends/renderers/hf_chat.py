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
from typing import TYPE_CHECKING

import numpy as np

from rollart.backends.renderers.hf_template import ChatTemplate, rest_after
from rollart.backends.renderers.tool_calls import MARKS, read_answer
from rollart.core.errors import ConfigError
from rollart.core.ports import Rendered
from rollart.core.tokens import Int32Array, TokenBlock, ids_array
from rollart.core.types import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_TEXTS = 8192
SHORT_ANSWER_TOKENS = 8


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
    """A `Renderer` over one tokenizer with a chat template.

    Tools that the first messages declare are told to the template in its own terms where it takes
    any, otherwise in plain text after the message that declares them.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Try the template out; raises ConfigError if there is none or it cannot be used."""
        if not tokenizer.chat_template:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template: add a file "
                "chat_template.jinja to its directory"
            )
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        # Where thoughts and calls are marked by special tokens, these must outlive decoding.
        self._unseen = frozenset(
            number
            for number in self._special
            if tokenizer.convert_ids_to_tokens(number) not in MARKS
        )
        self._prompt = lru_cache(CACHED_TEXTS)(self._encode_prompt)
        self._tail = lru_cache(CACHED_TEXTS)(self._encode_tail)
        self._short_answer = lru_cache(CACHED_TEXTS)(self._read)
        try:
            self._template = ChatTemplate(tokenizer)
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
        return self._template.rewrites

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
        template = self._template
        declares = template.takes_tools and any(message.tools for message in messages)
        if not template.rewrites and not declares:
            tools = tuple(tool for message in history for tool in message.tools)
            calls = history[-1].tool_calls if template.needs_calls else ()
            tail = self._tail(tuple(messages), tools, calls)
            return Rendered(tokens=tail.following(sampled))
        before = template.text(history[:-1])
        after = template.text((*history, *messages))
        if after.startswith(before):
            rest = rest_after(after[len(before) :], history[-1].content)
            if rest is not None:
                return Rendered(tokens=self._as_tail(rest).following(sampled))
        return Rendered(tokens=self._encode(after), restarts=True)

    async def parse(self, sampled: TokenBlock) -> Message:
        """The assistant message in the sampled ids: its text, without end tokens, and its calls."""
        ids = tuple(ids_array(sampled).tolist())
        return self._short_answer(ids) if len(ids) <= SHORT_ANSWER_TOKENS else self._read(ids)

    def _read(self, ids: tuple[int, ...]) -> Message:
        text = self._decode(ids)
        return Message(role="assistant", content=text, tool_calls=read_answer(text).calls)

    def _encode_prompt(self, messages: tuple[Message, ...]) -> Int32Array:
        return self._encode(self._template.text(messages))

    def _encode_tail(
        self,
        messages: tuple[Message, ...],
        tools: tuple[ToolSpec, ...],
        calls: tuple[ToolCall, ...],
    ) -> _Tail:
        return self._as_tail(self._template.tail(messages, tools, calls))

    def _as_tail(self, text: str) -> _Tail:
        """The ids of ``text``; a closing token is its first special one, unless text precedes."""
        ids = self._encode(text)
        values = ids.tolist()
        first = next((at for at, token in enumerate(values) if token in self._special), None)
        if first is None or self._decode(tuple(values[:first])).strip():
            return _Tail(ids=ids, close=None, after_close=0)
        return _Tail(ids=ids, close=values[first], after_close=first + 1)

    def _encode(self, text: str) -> Int32Array:
        ids = np.asarray(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
        ids.setflags(write=False)
        return ids

    def _decode(self, ids: tuple[int, ...]) -> str:
        text = self._tokenizer.decode(
            [number for number in ids if number not in self._unseen],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return str(text)
