"""What a modelled engine needs from others, and what it may be made of.

Who waits on whom: an engine waits for nobody but the source of weights, in `update`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from rollart.core.errors import ConfigError
from rollart.core.tokens import TokenBlock, length_only
from rollart.core.types import GenerateRequest
from rollart.runtimes.sim.engines.seq import Seq


class Workload(Protocol):
    """What the model would say; pure in its arguments."""

    def answer_tokens(self, session: str, seed: int) -> int:
        """Tokens of one turn's whole answer."""
        ...

    def cached_share(self, session: str) -> float:
        """Share of the session's earlier context that a cache still has when it comes back."""
        ...


class WeightSource(Protocol):
    """Where engines get versions from. Engines are known by id."""

    def attach(self, engine: str) -> None:
        """Pull what will be published in the background."""
        ...

    def detach(self, engine: str) -> None:
        """The engine is gone, and what it had pulled. Idempotent."""
        ...

    async def pulled(self, engine: str, version: int) -> object:
        """Returns when the engine has the version in its GPUs; raises if it cannot have it."""
        ...


class Machine(Protocol):
    """What computes: one batch, or a group of them. Pure; see `StepClock` for the contract."""

    @property
    def capacity(self) -> int:
        """Tokens that one sequence may have in all."""
        ...

    @property
    def next_event_at(self) -> float: ...

    @property
    def stopped(self) -> bool: ...

    def add(self, seq: Seq, now: float) -> None: ...

    def abort(self, names: Iterable[str], now: float) -> float: ...

    def release(self, session: str) -> None: ...

    def stop(self, now: float) -> float: ...

    def start(self, now: float) -> None: ...

    def renew(self, version: int, now: float, *, keep: bool) -> int: ...

    def set_pace(self, pace: float, now: float) -> None: ...

    def advance(self, to: float) -> list[Seq]: ...

    def sampled(self, seq: Seq, now: float) -> int: ...

    def close(self, now: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine batches and reports.

    Attributes:
        step_tokens: tokens an iteration computes at most (vLLM's default on large GPUs, 8192).
        most_running: sequences in a batch at most (vLLM's default, 256).
        keep_kv: use KV of older versions on, where otherwise it is computed anew.
        heartbeat_s: with requests under way, some delta comes at least so often.
        install_s: how long the GPUs are at work at the end of an update, loading weights.
    """

    step_tokens: int = 8192
    most_running: int = 256
    keep_kv: bool = False
    heartbeat_s: float = 20.0
    install_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what no engine can do."""
        if not 0 < self.most_running < self.step_tokens:
            raise ConfigError(
                f"most_running = {self.most_running}, step_tokens = {self.step_tokens}: each "
                "sequence takes a token an iteration and prefill needs some; use 256 and 8192"
            )
        if not (self.heartbeat_s > 0 and self.install_s >= 0):
            raise ConfigError(
                f"heartbeat_s = {self.heartbeat_s:g}, install_s = {self.install_s:g}: the first "
                "must be above 0, the second 0 or more; use 20 and 0"
            )


DEFAULT_SETTINGS = EngineSettings()

Sampled = Callable[[GenerateRequest, int, int, int], tuple[TokenBlock, TokenBlock]]
"""Makes ids and log-probs of tokens.

Takes the request, how many of its tokens came before, how many there are, and the oldest version
that wrote KV which they attend to.
"""


def without_content(
    request: GenerateRequest, before: int, count: int, kv_version: int
) -> tuple[TokenBlock, TokenBlock]:
    """Blocks that have a length and nothing else."""
    block = length_only(count)
    return block, block
