"""Which engine serves a request: a pure function of what is known about the engines.

Order of reasons: the hardware class that the domain wants, or any other when none of it is
routable; then the engine that holds the trajectory's prefix; then the least loaded, the earliest
attached among equals.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar


class EngineView(Protocol):
    """What routing may know of an engine. `load` counts its requests in flight."""

    @property
    def hardware(self) -> str: ...

    @property
    def load(self) -> int: ...


E = TypeVar("E", bound=EngineView)


def choose_engine(engines: Mapping[str, E], *, wanted: str | None, holder: str | None) -> E | None:
    """The engine to use, or None when there is none.

    Args:
        engines: the routable ones by id, in order of attachment.
        wanted: hardware class the domain prefers, if any.
        holder: id of the engine that holds the trajectory's prefix, if any.
    """
    held = engines.get(holder) if holder is not None else None
    if held is not None and wanted in (None, held.hardware):
        return held
    preferred = [engine for engine in engines.values() if engine.hardware == wanted]
    if held is not None and not preferred:
        return held
    return min(preferred or engines.values(), key=lambda engine: engine.load, default=None)


def token_budget(*, max_tokens: int, prompt_tokens: int, sampled_tokens: int, context: int) -> int:
    """Tokens that may still be sampled in this turn; 0 or less means none.

    `prompt_tokens` excludes the `sampled_tokens` of this turn, which count once against the turn's
    own limit and once against the context.
    """
    return min(max_tokens - sampled_tokens, context - prompt_tokens - sampled_tokens)
