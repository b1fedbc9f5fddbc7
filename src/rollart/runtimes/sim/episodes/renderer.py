"""Messages to blocks of a length, without content.

Invariant: a message of a modelled environment says how many tokens it is, and is so many; nothing
is encoded. A renderer keeps no state. What says a length is made once for each, as nobody can tell
two of one length apart.
"""

from collections.abc import Sequence
from functools import cache

from rollart.core.ports import Rendered
from rollart.core.tokens import TokenBlock, length_only
from rollart.core.types import Message

_UNIT = " tokens"
_CHARACTERS = 4
"""Characters a token, about, of any other text."""


def shown(tokens: int) -> str:
    """The content of a message that is so many tokens."""
    return f"{tokens}{_UNIT}"


def length_of(message: Message) -> int:
    """Tokens of a message, at least 1."""
    number = message.content.removesuffix(_UNIT)
    if number.isdecimal():
        return max(1, int(number))
    return 1 + len(message.content) // _CHARACTERS


@cache
def _said(tokens: int) -> Message:
    return Message(role="assistant", content=shown(tokens))


@cache
def _rendered(tokens: int) -> Rendered:
    return Rendered(tokens=length_only(tokens))


class LengthRenderer:
    """The `Renderer` port over lengths; the template's own tokens are counted in the messages."""

    async def open(self, messages: Sequence[Message]) -> Rendered:
        """A block as long as the messages together."""
        return _rendered(sum(map(length_of, messages)))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        """A block as long as the new messages together."""
        return _rendered(sum(map(length_of, messages)))

    async def parse(self, sampled: TokenBlock) -> Message:
        """A message that says how long it is."""
        return _said(len(sampled))
