"""Which engine serves a request: a pure function of what is known about the engines.

Order of reasons: the hardware class that the domain wants, or any other when none of it is
routable; then the engine that holds the trajectory's prefix; then the least loaded, the earliest
attached among equals.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What routing may know of an engine. `load` counts its requests in flight."""

    id: str
    hardware: str
    load: int


def choose_engine(
    engines: Sequence[EngineView], *, wanted: str | None, holder: str | None
) -> str | None:
    """The id of the engine to use, or None when there is none.

    Args:
        engines: the routable ones, in order of attachment.
        wanted: hardware class the domain prefers, if any.
        holder: engine that holds the trajectory's prefix, if any.
    """
    preferred = [engine for engine in engines if engine.hardware == wanted]
    candidates = preferred or list(engines)
    for engine in candidates:
        if engine.id == holder:
            return engine.id
    return min(candidates, key=lambda engine: engine.load).id if candidates else None


def token_budget(*, max_tokens: int, prompt_tokens: int, sampled_tokens: int, context: int) -> int:
    """Tokens that may still be sampled in this turn; 0 or less means none.

    `prompt_tokens` excludes the `sampled_tokens` of this turn, which count once against the turn's
    own limit and once against the context.
    """
    return min(max_tokens - sampled_tokens, context - prompt_tokens - sampled_tokens)
