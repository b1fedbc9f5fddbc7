"""One request as a modelled batch sees it, and the idle prefixes that requests leave behind."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum

from rollart.core.types import RequestCost


class Stage(IntEnum):
    """Where a sequence is: it waits, is prefilled, decodes, is whole, or was dropped."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    DONE = 3
    GONE = 4


@dataclass(slots=True, eq=False, kw_only=True)
class Seq:
    """A request's lengths (tokens), place and costs (tokens, seconds).

    Attributes:
        wanted: tokens to sample.
        share: part of the session's idle prefix, if there is one, that a cache would still have.
        ready: its KV is here already, so that it decodes without prefill.
        sampled: tokens sampled when it last changed its stage; a clock says how many by now.
        held: tokens of its sequence so far, as of then.
        entered, ends: iteration counts at which it began to decode and will have all it wants.
        left: tokens yet to be prefilled.
        rebuilds: what is left to prefill had been computed before.
        kv_version: oldest policy version that wrote KV it attends to.
        mark, stopped_mark: up to when its seconds are accounted for (see `StepClock`).
    """

    name: str
    session: str
    prompt: int
    wanted: int
    share: float = 1.0
    ready: bool = False
    stage: Stage = Stage.WAITING
    sampled: int = 0
    entered: int = 0
    ends: int = 0
    left: int = 0
    rebuilds: bool = False
    kv_version: int = -1
    cached: int = 0
    prefilled: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mark: float = 0.0
    stopped_mark: float = 0.0
    held: int = field(init=False)

    def __post_init__(self) -> None:
        self.held = self.prompt + self.sampled

    def grow(self, tokens: int) -> None:
        """So many more are sampled."""
        self.sampled += tokens
        self.held += tokens

    @property
    def decodes(self) -> bool:
        return self.stage is Stage.DECODE

    def cost(self) -> RequestCost:
        """What it cost, once it is done."""
        return RequestCost(
            cached_tokens=self.cached,
            prefill_tokens=self.prefilled,
            decode_tokens=self.sampled,
            queued_s=self.queued_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )


@dataclass(slots=True)
class _Prefix:
    tokens: int
    version: int


class Prefixes:
    """KV of sessions between their turns, which goes when room is needed, oldest use first.

    Invariant: `tokens` is the sum over all. What is oldest loses tokens from its end, not all at
    once: caches give back blocks.
    """

    __slots__ = ("_held", "tokens")

    def __init__(self) -> None:
        self._held: OrderedDict[str, _Prefix] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._held)

    def of(self, session: str) -> int:
        """Tokens held of a session."""
        prefix = self._held.get(session)
        return prefix.tokens if prefix is not None else 0

    def put(self, session: str, tokens: int, version: int) -> None:
        """Keep a prefix written under `version`, as the most recently used one."""
        self.take(session)
        self._held[session] = _Prefix(tokens, version)
        self.tokens += tokens

    def take(self, session: str) -> tuple[int, int]:
        """Remove and return a session's (tokens, version); (0, -1) if there is none."""
        prefix = self._held.pop(session, None)
        if prefix is None:
            return 0, -1
        self.tokens -= prefix.tokens
        return prefix.tokens, prefix.version

    def trim(self, most: int) -> None:
        """Give up what is over `most` tokens."""
        excess = self.tokens - max(0, most)
        while excess > 0:
            session, oldest = next(iter(self._held.items()))
            given = min(excess, oldest.tokens)
            oldest.tokens -= given
            self.tokens -= given
            excess -= given
            if not oldest.tokens:
                del self._held[session]

    def clear(self) -> None:
        self._held.clear()
        self.tokens = 0
