"""Conformance of a `Renderer`: append-only tokens, nothing encoded twice, no state."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rollart.core.ports import Rendered, Renderer
from rollart.core.tokens import Int32Array, TokenBlock, ids_array
from rollart.core.types import Message
from rollart.testing.conformance.contract import Contract

MakeRenderer = Callable[[], Awaitable[Renderer]]

OPENING = (Message(role="user", content="Where are you?"),)
REPLY = (Message(role="user", content="And now?"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererTrial:
    """What the suite may assume about the renderer it is given.

    Attributes:
        sampled: ids as an engine returns them for one assistant turn, its end token included.
        opening, reply: what the environment says first, and after that turn.
        whole: ids of the template's full render of a conversation, up to where the agent speaks;
            without it, that the parts add up to the whole is not checked.
    """

    sampled: TokenBlock
    opening: Sequence[Message] = OPENING
    reply: Sequence[Message] = REPLY
    whole: Callable[[Sequence[Message]], Int32Array] | None = None
    patience_s: float = 30.0


async def check_renderer(make: MakeRenderer, trial: RendererTrial) -> None:
    """Every clause of the `Renderer` port; raises `ConformanceError` at the first broken one."""
    contract = Contract("Renderer", trial.patience_s)
    renderer = await contract.soon(make(), "a renderer can be made")
    first = await contract.soon(renderer.open(trial.opening), "open returns")
    prompt = _ids(contract, first)
    before = ids_array(trial.sampled).copy()
    message = await contract.soon(renderer.parse(trial.sampled), "parse returns")
    contract.require(
        message.role == "assistant", "sampled ids are an assistant's message", f"{message}"
    )
    history = [*trial.opening, message]
    given = list(history)

    async def extend() -> Rendered:
        return await renderer.extend(history, trial.sampled, trial.reply)

    more = await contract.soon(extend(), "extend returns")
    contract.require(history == given, "history is only read", f"{history}")
    contract.require(
        np.array_equal(ids_array(trial.sampled), before), "sampled ids are kept as they are", ""
    )
    others = await asyncio.gather(*(extend() for _ in range(8)), renderer.open(trial.opening))
    for other in others[:-1]:
        contract.require(_equal(other, more), "a renderer keeps no state", f"{other}, {more}")
    contract.require(_equal(others[-1], first), "a renderer keeps no state", f"{others[-1]}")
    _adds_up(contract, trial, prompt, message, more)
    empty = await contract.soon(renderer.parse(np.zeros(0, np.int32)), "parse returns")
    contract.require(empty.role == "assistant", "no ids are an empty message", f"{empty}")


def _ids(contract: Contract, rendered: Rendered) -> Int32Array:
    ids = ids_array(rendered.tokens)
    good = len(ids) > 0 and bool((ids >= 0).all())
    contract.require(good, "messages become ids, 0 or more each", f"{ids.tolist()}")
    return ids


def _equal(one: Rendered, other: Rendered) -> bool:
    return one.restarts == other.restarts and np.array_equal(
        ids_array(one.tokens), ids_array(other.tokens)
    )


def _adds_up(
    contract: Contract, trial: RendererTrial, prompt: Int32Array, message: Message, more: Rendered
) -> None:
    """Prompt, sampled ids and continuation are the full render, token for token."""
    ids = _ids(contract, more)
    if trial.whole is None:
        return
    opening = trial.whole(trial.opening)
    contract.require(
        np.array_equal(prompt, opening), "open is the template's prompt", f"{prompt.tolist()}"
    )
    whole = trial.whole([*trial.opening, message, *trial.reply])
    parts = ids if more.restarts else np.concatenate([prompt, ids_array(trial.sampled), ids])
    contract.require(
        np.array_equal(parts, whole),
        "the parts add up to the template's full render",
        f"{parts.tolist()} for {whole.tolist()}",
    )
