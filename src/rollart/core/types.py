"""Records of the data that flows: tasks, requests, turns, trajectories, groups, batches.

Invariant: every record is frozen; a trajectory's segments only ever grow by whole pieces, and the
loss mask is 1 exactly on pieces an engine returned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from rollart.core.errors import FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.records import record
from rollart.core.scoring.verdict import Verdict
from rollart.core.tokens import (
    NO_TOKENS,
    NO_VERSIONS,
    NOT_COUNTED,
    Float32Array,
    Int32Array,
    Prompt,
    TokenBlock,
    VersionRuns,
    ids_array,
    logprobs_array,
    total_length,
)

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


@record
class Task:
    """One problem of a domain. `key` identifies it; `payload` is the environment's own data."""

    domain: str
    key: str
    payload: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@record
class ToolCall:
    """A tool call as the model wrote it; `arguments` is unparsed JSON text."""

    id: str
    name: str
    arguments: str


@record
class ToolSpec:
    """A tool as it is declared to the model; `parameters` is a JSON schema as JSON text."""

    name: str
    description: str
    parameters: str


@record
class Message:
    """One message of the conversation between environment and agent.

    `content` of an assistant's message is all that it wrote, tool calls included; `tool_calls` are
    those calls, read. `tools` are declared with the message: one of the first of an episode.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tools: tuple[ToolSpec, ...] = ()


@record
class Observation:
    """What an environment shows the agent: messages, and references to attachments."""

    messages: tuple[Message, ...]
    attachments: tuple[str, ...] = ()


@record
class StepResult:
    """What a step of an environment returns.

    `reward` is the turn's reward, if the environment gives any; `metrics` are named numbers of the
    episode so far (the last ones count; `success` in 0..1 is the one every report shows).
    """

    observation: Observation
    reward: float | None = None
    done: bool = False
    metrics: tuple[tuple[str, float], ...] = ()


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context_overflow"


@record
class GenerateRequest:
    """One request to an engine.

    `prompt` is the whole sequence so far, of `prompt_tokens` tokens, which are counted where they
    are not given; `session` names the trajectory's KV prefix; `offset` is the number of tokens of
    this turn sampled before (by an engine that was lost), so that a continued request goes on in
    its own stream of random numbers.
    """

    id: str
    session: str
    prompt: Prompt
    max_tokens: int
    temperature: float
    seed: int
    offset: int = 0
    prompt_tokens: int = NOT_COUNTED

    def __post_init__(self) -> None:
        if self.prompt_tokens == NOT_COUNTED:
            object.__setattr__(self, "prompt_tokens", total_length(self.prompt))


@record
class RequestCost:
    """What a request cost an engine: tokens found in cache, prefilled, decoded; seconds each."""

    cached_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def __add__(self, other: "RequestCost") -> "RequestCost":
        return RequestCost(
            cached_tokens=self.cached_tokens + other.cached_tokens,
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            decode_tokens=self.decode_tokens + other.decode_tokens,
            queued_s=self.queued_s + other.queued_s,
            prefill_s=self.prefill_s + other.prefill_s,
            decode_s=self.decode_s + other.decode_s,
        )


NO_COST = RequestCost()


@record
class TokenDelta:
    """Tokens an engine sampled since its last delta for this request, all by one version.

    `finish` is set on the last delta, with the request's whole `cost`; `refused` instead of it
    when the engine cannot serve the request at all.
    """

    request_id: str
    ids: TokenBlock
    logprobs: TokenBlock
    version: int
    finish: StopReason | None = None
    cost: RequestCost | None = None
    refused: str | None = None


@record
class Completion:
    """All tokens of one turn: ids, log-probs after temperature, versions, of one length."""

    ids: TokenBlock
    logprobs: TokenBlock
    versions: VersionRuns
    stop: StopReason
    engine: str
    cost: RequestCost = NO_COST

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"completion of {len(self.ids)} ids, {len(self.logprobs)} log-probs and "
                f"{len(self.versions)} versions; all three must be of one length"
            )


@record
class Piece:
    """A run of tokens of a segment: observed (no log-probs, no versions) or sampled."""

    ids: TokenBlock
    logprobs: TokenBlock = NO_TOKENS
    versions: VersionRuns = NO_VERSIONS

    @property
    def sampled(self) -> bool:
        return len(self.versions) > 0


@record
class Segment:
    """An append-only token sequence, exactly as the engine saw it."""

    pieces: tuple[Piece, ...]
    attachments: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum([len(piece.ids) for piece in self.pieces])

    @property
    def sampled_tokens(self) -> int:
        return sum([len(piece.versions) for piece in self.pieces])

    def ids(self) -> Int32Array:
        """All token ids [n]."""
        parts = [ids_array(piece.ids) for piece in self.pieces]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """True exactly on the ids an engine returned [n]."""
        mask = np.zeros(len(self), np.bool_)
        at = 0
        for piece in self.pieces:
            mask[at : at + len(piece.ids)] = piece.sampled
            at += len(piece.ids)
        return mask

    def logprobs(self) -> Float32Array:
        """Behaviour log-probs [n]; 0 where the loss mask is 0."""
        values = np.zeros(len(self), np.float32)
        at = 0
        for piece in self.pieces:
            if piece.sampled:
                values[at : at + len(piece.ids)] = logprobs_array(piece.logprobs)
            at += len(piece.ids)
        return values

    def versions(self) -> Int32Array:
        """Version that sampled each token [n]; -1 where the loss mask is 0."""
        values = np.full(len(self), -1, np.int32)
        at = 0
        for piece in self.pieces:
            if piece.sampled:
                values[at : at + len(piece.ids)] = piece.versions.expand()
            at += len(piece.ids)
        return values


@record
class Turn:
    """One exchange: what the agent saw, what it sampled, what came back, and what it cost.

    `start:end` is the sampled span within segment number `segment`.
    """

    segment: int
    start: int
    end: int
    observation: str
    action: str
    tool_calls: tuple[ToolCall, ...] = ()
    stop: StopReason = StopReason.STOP
    engine: str = ""
    reward: float | None = None
    cost: RequestCost = NO_COST
    proxy_queued_s: float = 0.0
    env_s: float = 0.0


class Status(StrEnum):
    """How a trajectory ended, whatever became of it afterwards."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    INVALID = "invalid"
    FAILED = "failed"


def scores_equal(least: float, most: float) -> bool:
    """Whether scores between these two carry no signal: equal up to rounding."""
    return math.isclose(least, most, rel_tol=1e-9, abs_tol=1e-12)


class Disposition(StrEnum):
    """What became of a started trajectory. Each leaves exactly once, by exactly one of these."""

    TRAINED = "trained"
    STALE = "stale"
    SURPLUS = "surplus"
    FILTERED = "filtered"
    INCOMPLETE_GROUP = "incomplete_group"
    FAILED = "failed"
    INVALID = "invalid"
    CANCELLED = "cancelled"


@record
class Trajectory:
    """One rollout, whole. `start_version` is the version that its first token was asked of."""

    id: TrajectoryId
    policy: str
    task: Task
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    start_version: int | None
    status: Status
    failure: FailureKind | None = None
    detail: str = ""
    verdict: Verdict | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    started_at: float = 0.0
    ended_at: float = 0.0
    reset_s: float = 0.0
    reward_s: float = 0.0

    @property
    def sampled_tokens(self) -> int:
        return sum(segment.sampled_tokens for segment in self.segments)

    @property
    def tokens(self) -> int:
        """Prompt and response tokens, each counted once."""
        return sum(len(segment) for segment in self.segments)

    @property
    def score(self) -> float | None:
        return self.verdict.score if self.verdict is not None else None

    def version_runs(self) -> list[tuple[int, int]]:
        """(version, count) over all sampled tokens, in order."""
        return [
            run
            for segment in self.segments
            for piece in segment.pieces
            for run in piece.versions.runs
        ]

    def metric(self, name: str) -> float | None:
        return dict(self.metrics).get(name)


@record
class Group:
    """Finished trajectories of one task: the unit of the advantage, of staleness and of a batch."""

    id: int
    task: Task
    members: tuple[Trajectory, ...]
    start_version: int


@record
class TrainBatch:
    """What one train step trains on.

    `progress` is the share of the run that is over, in 0..1, by steps or by time, whichever is
    further: schedules follow it.
    """

    step: int
    groups: tuple[Group, ...]
    progress: float = 0.0

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(member for group in self.groups for member in group.members)


@record
class TrainStats:
    """What a train step did. `skipped` when no token carried a signal; the version still counts."""

    version: int
    loss: float
    grad_norm: float
    trained_tokens: int
    input_tokens: int
    optimizer_steps: int
    learning_rate: float
    entropy: float
    clip_fraction: float
    approx_kl: float
    ratio_max: float
    skipped: bool = False
    same_version_gap: float | None = None
    seconds: float = 0.0


@record
class LogprobGap:
    """Largest difference between engine and trainer log-probs on the same tokens and weights."""

    tokens: int
    maximum: float
    mean: float
