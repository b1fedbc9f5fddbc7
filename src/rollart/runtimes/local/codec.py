"""Core records as msgpack values, and back: the only language spoken with child processes.

Invariant: every record is spelled out field by field, as an array in a fixed order, so nothing
that a child sends can become anything but these records. Token blocks travel as raw bytes (int32
ids, float32 log-probs) or, without content, as their length.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollart.core.documents import plain
from rollart.core.errors import FailureKind
from rollart.core.identity import Purpose, TrajectoryId
from rollart.core.tokens import (
    LengthOnly,
    TokenBlock,
    VersionRuns,
    ids_array,
    logprobs_array,
)
from rollart.core.types import (
    Group,
    LogprobGap,
    Message,
    Observation,
    Piece,
    RequestCost,
    Segment,
    Status,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    ToolSpec,
    TrainBatch,
    TrainStats,
    Trajectory,
    Turn,
    Verdict,
)

Packed = Any
"""Numbers, text, bytes, and lists or maps of them: what msgpack can express."""


def pack_task(task: Task) -> Packed:
    return (task.domain, task.key, plain(task.payload))


def unpack_task(packed: Packed) -> Task:
    domain, key, payload = packed
    return Task(domain=domain, key=key, payload=payload)


def pack_observation(observation: Observation) -> Packed:
    """Raises `TypeError` when a message holds something other than text."""
    return (tuple(map(pack_message, observation.messages)), tuple(observation.attachments))


def unpack_observation(packed: Packed) -> Observation:
    messages, attachments = packed
    return Observation(
        messages=tuple(map(unpack_message, messages)), attachments=tuple(attachments)
    )


def pack_message(message: Message) -> Packed:
    """Raises `TypeError` when it is no message or its content is no text."""
    if not isinstance(message, Message):
        raise TypeError(f"a message is {type(message).__name__}; use a rollart Message")
    if not isinstance(message.content, str):
        raise TypeError(f"a message's content is {type(message.content).__name__}; use str")
    return (
        message.role,
        message.content,
        _pack_tool_calls(message.tool_calls),
        message.tool_call_id,
        tuple((tool.name, tool.description, tool.parameters) for tool in message.tools),
    )


def unpack_message(packed: Packed) -> Message:
    role, content, tool_calls, tool_call_id, tools = packed
    return Message(
        role=role,
        content=content,
        tool_calls=_unpack_tool_calls(tool_calls),
        tool_call_id=tool_call_id,
        tools=tuple(
            ToolSpec(name=name, description=text, parameters=schema) for name, text, schema in tools
        ),
    )


def _pack_tool_calls(calls: tuple[ToolCall, ...]) -> Packed:
    return tuple((call.id, call.name, call.arguments) for call in calls)


def _unpack_tool_calls(packed: Packed) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=i, name=name, arguments=text) for i, name, text in packed)


def pack_step_result(result: StepResult) -> Packed:
    """Raises `TypeError` naming the field that a user filled with something unfit."""
    if not isinstance(result, StepResult):
        raise TypeError(
            f"step returned {type(result).__name__}; "
            "return StepResult(observation=..., reward=..., done=...)"
        )
    reward = None if result.reward is None else float(result.reward)
    return (
        pack_observation(result.observation),
        reward,
        bool(result.done),
        _pack_named_numbers(result.metrics),
    )


def unpack_step_result(packed: Packed) -> StepResult:
    observation, reward, done, metrics = packed
    return StepResult(
        observation=unpack_observation(observation),
        reward=reward,
        done=done,
        metrics=_unpack_named_numbers(metrics),
    )


def _pack_named_numbers(numbers: Sequence[tuple[str, float]]) -> Packed:
    return tuple((str(name), float(value)) for name, value in numbers)


def _unpack_named_numbers(packed: Packed) -> tuple[tuple[str, float], ...]:
    return tuple((name, value) for name, value in packed)


def pack_verdict(verdict: Verdict) -> Packed:
    score = None if verdict.score is None else float(verdict.score)
    failure = None if verdict.failure is None else verdict.failure.value
    parts = _pack_named_numbers(verdict.components)
    return (score, parts, verdict.reason, failure, tuple(map(float, verdict.turns)))


def unpack_verdict(packed: Packed) -> Verdict:
    score, components, reason, failure, turns = packed
    return Verdict(
        score=score,
        components=_unpack_named_numbers(components),
        reason=reason,
        failure=None if failure is None else FailureKind(failure),
        turns=tuple(turns),
    )


def pack_ids(block: TokenBlock) -> bytes | int:
    """Ids as int32 bytes, or their number where that is all there is."""
    if isinstance(block, LengthOnly):
        return len(block)
    return ids_array(block).tobytes()


def pack_logprobs(block: TokenBlock) -> bytes | int:
    """Log-probs as float32 bytes, or their number."""
    if isinstance(block, LengthOnly):
        return len(block)
    return logprobs_array(block).tobytes()


def unpack_ids(packed: bytes | int) -> TokenBlock:
    return LengthOnly(packed) if isinstance(packed, int) else np.frombuffer(packed, np.int32)


def unpack_logprobs(packed: bytes | int) -> TokenBlock:
    return LengthOnly(packed) if isinstance(packed, int) else np.frombuffer(packed, np.float32)


def pack_cost(cost: RequestCost) -> Packed:
    return (
        cost.cached_tokens,
        cost.prefill_tokens,
        cost.decode_tokens,
        cost.queued_s,
        cost.prefill_s,
        cost.decode_s,
    )


def unpack_cost(packed: Packed) -> RequestCost:
    cached, prefill, decode, queued_s, prefill_s, decode_s = packed
    return RequestCost(
        cached_tokens=cached,
        prefill_tokens=prefill,
        decode_tokens=decode,
        queued_s=queued_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )


def _pack_trajectory_id(identity: TrajectoryId) -> Packed:
    return (
        identity.run,
        identity.domain,
        identity.task,
        identity.group,
        identity.member,
        identity.attempt,
        identity.purpose.value,
    )


def _unpack_trajectory_id(packed: Packed) -> TrajectoryId:
    run, domain, task, group, member, attempt, purpose = packed
    return TrajectoryId(
        run=run,
        domain=domain,
        task=task,
        group=group,
        member=member,
        attempt=attempt,
        purpose=Purpose(purpose),
    )


def _pack_piece(piece: Piece) -> Packed:
    return (
        pack_ids(piece.ids),
        pack_logprobs(piece.logprobs),
        piece.versions.runs,
    )


def _unpack_piece(packed: Packed) -> Piece:
    ids, logprobs, runs = packed
    return Piece(
        ids=unpack_ids(ids),
        logprobs=unpack_logprobs(logprobs),
        versions=VersionRuns(tuple((version, count) for version, count in runs)),
    )


def _pack_segment(segment: Segment) -> Packed:
    return (tuple(map(_pack_piece, segment.pieces)), segment.attachments)


def _unpack_segment(packed: Packed) -> Segment:
    pieces, attachments = packed
    return Segment(pieces=tuple(map(_unpack_piece, pieces)), attachments=tuple(attachments))


def _pack_turn(turn: Turn) -> Packed:
    return (
        turn.segment,
        turn.start,
        turn.end,
        turn.observation,
        turn.action,
        _pack_tool_calls(turn.tool_calls),
        turn.stop.value,
        turn.engine,
        turn.reward,
        pack_cost(turn.cost),
        turn.proxy_queued_s,
        turn.env_s,
    )


def _unpack_turn(packed: Packed) -> Turn:
    segment, start, end, observation, action, calls, stop, engine, reward, cost, queued_s, env_s = (
        packed
    )
    return Turn(
        segment=segment,
        start=start,
        end=end,
        observation=observation,
        action=action,
        tool_calls=_unpack_tool_calls(calls),
        stop=StopReason(stop),
        engine=engine,
        reward=reward,
        cost=unpack_cost(cost),
        proxy_queued_s=queued_s,
        env_s=env_s,
    )


def pack_trajectory(trajectory: Trajectory) -> Packed:
    """A whole trajectory."""
    verdict, failure = trajectory.verdict, trajectory.failure
    return (
        _pack_trajectory_id(trajectory.id),
        trajectory.policy,
        pack_task(trajectory.task),
        tuple(map(_pack_segment, trajectory.segments)),
        tuple(map(_pack_turn, trajectory.turns)),
        trajectory.start_version,
        trajectory.status.value,
        None if failure is None else failure.value,
        trajectory.detail,
        None if verdict is None else pack_verdict(verdict),
        _pack_named_numbers(trajectory.metrics),
        trajectory.started_at,
        trajectory.ended_at,
        trajectory.reset_s,
        trajectory.reward_s,
    )


def unpack_trajectory(packed: Packed) -> Trajectory:
    (
        identity,
        policy,
        task,
        segments,
        turns,
        start_version,
        status,
        failure,
        detail,
        verdict,
        metrics,
        started_at,
        ended_at,
        reset_s,
        reward_s,
    ) = packed
    return Trajectory(
        id=_unpack_trajectory_id(identity),
        policy=policy,
        task=unpack_task(task),
        segments=tuple(map(_unpack_segment, segments)),
        turns=tuple(map(_unpack_turn, turns)),
        start_version=start_version,
        status=Status(status),
        failure=None if failure is None else FailureKind(failure),
        detail=detail,
        verdict=None if verdict is None else unpack_verdict(verdict),
        metrics=_unpack_named_numbers(metrics),
        started_at=started_at,
        ended_at=ended_at,
        reset_s=reset_s,
        reward_s=reward_s,
    )


def unpack_batch(packed: Packed) -> TrainBatch:
    """A batch from (step, packed groups, progress)."""
    step, groups, progress = packed
    return TrainBatch(step=step, groups=tuple(map(_unpack_group, groups)), progress=progress)


def pack_group(group: Group) -> Packed:
    """A group with its tokens."""
    return (
        group.id,
        pack_task(group.task),
        tuple(map(pack_trajectory, group.members)),
        group.start_version,
    )


def _unpack_group(packed: Packed) -> Group:
    identity, task, members, start_version = packed
    return Group(
        id=identity,
        task=unpack_task(task),
        members=tuple(map(unpack_trajectory, members)),
        start_version=start_version,
    )


_STATS_FIELDS = tuple(TrainStats.__dataclass_fields__)


def pack_stats(stats: TrainStats) -> Packed:
    return tuple(getattr(stats, name) for name in _STATS_FIELDS)


def unpack_stats(packed: Packed) -> TrainStats:
    return TrainStats(**dict(zip(_STATS_FIELDS, packed, strict=True)))


def pack_gap(gap: LogprobGap) -> Packed:
    return (gap.tokens, gap.maximum, gap.mean)


def unpack_gap(packed: Packed) -> LogprobGap:
    tokens, maximum, mean = packed
    return LogprobGap(tokens=tokens, maximum=maximum, mean=mean)
