"""Ports: what control asks of the outside. Each has a conformance suite in `rollart.testing`.

Invariant: control depends on these Protocols only; no port hands it a thread, a tensor or a
clock. Everything that can wait is `async` and is awaited under a deadline by its caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rollart.core.events import Event
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.records import record
from rollart.core.tokens import TokenBlock
from rollart.core.types import (
    GenerateRequest,
    LogprobGap,
    Message,
    Observation,
    StepResult,
    Task,
    TokenDelta,
    TrainBatch,
    TrainStats,
    Trajectory,
    Verdict,
)

DeltaSink = Callable[[TokenDelta], None]


class Engine(Protocol):
    """A generation engine (or a prefill/decode group) as control sees it.

    Between engine steps it takes commands in the order they were given. Tokens come to the sink of
    `add` in small deltas; after `abort` has returned, no delta of that request comes any more.
    """

    @property
    def id(self) -> str: ...

    @property
    def hardware(self) -> str:
        """Class of hardware it runs on, which `Affinity` names."""
        ...

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Queue a request; never blocks, never raises for the request's content."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests and their KV; returns when the engine has let go. Unknown ids are fine."""
        ...

    def release(self, session: str) -> None:
        """The trajectory is over: its idle KV prefix may go."""
        ...

    async def pause(self) -> None:
        """Returns when no step runs; requests stay where they are and may still be added."""
        ...

    async def resume(self) -> None: ...

    async def update(self, version: PolicyVersion) -> None:
        """Load this version from the weight store; returning is the acknowledgement.

        Only while paused. KV written under an older version is never attended to afterwards,
        unless the engine was told to keep it. On error the engine holds its old version, whole.
        """
        ...

    async def rebuild_kv(self) -> int:
        """Rebuild the KV of in-flight requests under the present version; tokens rebuilt."""
        ...

    async def wait_dead(self) -> str:
        """Returns the reason when the engine is gone; waits for ever while it lives."""
        ...

    async def close(self) -> None: ...


class Trainer(Protocol):
    """Holds the policy's weights and changes them, one version a train step."""

    @property
    def version(self) -> PolicyVersion: ...

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        """Train once; afterwards `version` is one higher."""
        ...

    async def publish(self) -> PolicyVersion:
        """Commit the present version to the weight store; returns when engines may read it."""
        ...

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        """Compare the recorded log-probs of tokens of the present version with one's own."""
        ...

    async def save(self, directory: str) -> None:
        """Write the weights as a directory that Hugging Face transformers loads."""
        ...

    async def wait_dead(self) -> str: ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """One episode's environment. Errors are `EnvironmentFailed`, with a kind."""

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Message) -> StepResult: ...

    def kill(self) -> None:
        """Let go at once, also in the middle of a step that hangs. Idempotent; ends `close` too."""
        ...


class Environments(Protocol):
    """Where environments come from."""

    async def open(self, trajectory: TrajectoryId) -> Environment: ...

    async def close(self) -> None: ...


class Reward(Protocol):
    """Scores a finished trajectory. Where it cannot, it returns no verdict with the reason."""

    async def score(self, trajectory: Trajectory) -> Verdict: ...

    async def close(self) -> None: ...


@record
class Rendered:
    """Tokens to put before the next generation.

    `restarts` means that the template rewrote history: `tokens` is then the whole prompt of a new
    segment, not a continuation of the old one.
    """

    tokens: TokenBlock
    restarts: bool = False


class Renderer(Protocol):
    """Messages to tokens and back. Sampled ids are kept as they are, never encoded again.

    Messages that a template cannot take may be refused with any exception: it costs the one
    trajectory, with kind `render`.
    """

    async def open(self, messages: Sequence[Message]) -> Rendered:
        """The first prompt, up to where the agent speaks."""
        ...

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        """What follows the sampled ids: the template's separator, new messages, generation prompt.

        Args:
            history: all messages up to and including the assistant's last one.
            sampled: the ids of that last assistant turn, as the engine returned them.
            messages: the new ones.
        """
        ...

    async def parse(self, sampled: TokenBlock) -> Message:
        """The assistant message in the sampled ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTensor:
    """One named tensor as bytes, in the dtype's own layout (row-major)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: npt.NDArray[np.uint8]


class WeightStore(Protocol):
    """Versioned weights between trainer and engines. Used where weights are, never by control.

    A version is readable only once committed whole; the content hash in its manifest is verified
    by readers; a version that somebody reads is never collected.
    """

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        """Write and commit. Publishing a version twice is an error."""
        ...

    def read(self, version: PolicyVersion) -> AbstractContextManager[Mapping[str, WeightTensor]]:
        """Pin and map a version; buffers are valid within the context only.

        Raises `WeightsMissing` or `WeightsCorrupt`.
        """
        ...

    def versions(self) -> tuple[PolicyVersion, ...]:
        """Committed versions, oldest first."""
        ...

    def collect(self, keep: int) -> tuple[PolicyVersion, ...]:
        """Drop all but the newest `keep` versions and those being read; returns the dropped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Hardware classes wanted for generation: by domain tag, else the default, else any."""

    by_domain: Mapping[str, str]
    default: str | None = None

    def wanted(self, domain: str) -> str | None:
        return self.by_domain.get(domain, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A worker's place: parts of (pool, phase); a prefill/decode group has two."""

    worker: str
    hardware: str
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """A pool as it is now: slots in all and slots free."""

    name: str
    hardware: str
    slots: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where workers go: one binding an engine, one for the trainer, and the wanted classes."""

    engines: tuple[Binding, ...]
    trainer: Binding
    affinity: Affinity


class Inventory(Protocol):
    """What hardware there is now."""

    async def pools(self) -> tuple[PoolState, ...]: ...


class TaskSource(Protocol):
    """Endless or finite supply of tasks of one domain, with a position that can be kept."""

    async def next(self) -> Task | None:
        """The next task; None when there are no more."""
        ...

    def snapshot(self) -> int: ...

    def restore(self, position: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPath:
    """Where another process finds a class: ``module:name``, and the folder to import it from."""

    path: str
    folder: str = ""


class WorkerHandle(Protocol):
    """A user's class at work in a process of its own."""

    @property
    def id(self) -> str: ...

    @property
    def hardware(self) -> str: ...

    async def call(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object], *, seconds: float
    ) -> object:
        """Call a method of it and return its result; both are JSON values (and bytes).

        Raises `WorkerFailed`: it is gone, its code raised, or it did not answer in time, in which
        case it is killed.
        """
        ...

    async def wait_dead(self) -> str: ...

    async def close(self) -> None: ...


class Workers(Protocol):
    """Spawns workers of users' classes."""

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        """A worker of a class, made with these keywords.

        Raises `WorkerFailed` when it cannot be started.
        """
        ...


class Launcher(Workers, Protocol):
    """Spawns a role's workers on a binding. What it spawned ends when it is closed."""

    async def engine(self, binding: Binding) -> Engine: ...

    async def trainer(self, binding: Binding) -> Trainer: ...

    async def environments(self, domain: str) -> Environments: ...

    async def tasks(self, domain: str) -> TaskSource: ...

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        """At most `count` distinct tasks that training never meets."""
        ...

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        """Success of the domain's simple policies on these tasks; empty if it names none."""
        ...

    async def reward(self, domain: str) -> Reward: ...

    async def renderer(self) -> Renderer: ...

    async def close(self) -> None: ...


TranscriptSink = Callable[[Trajectory], None]
"""Takes every trajectory that ended; must not block and must not raise."""


class EventSink(Protocol):
    """Takes events; must not block and must not raise."""

    def emit(self, event: Event) -> None: ...
