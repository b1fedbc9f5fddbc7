"""Trajectories as documents: what of a trajectory a reward function is given."""

from collections.abc import Mapping, Sequence
from typing import cast

from rollart.core.scoring.document import (
    TaskDocument,
    ToolCallDocument,
    TrajectoryDocument,
    TurnDocument,
)
from rollart.core.types import JsonValue, Trajectory, Turn


def document_of(trajectory: Trajectory) -> TrajectoryDocument:
    """The document of a trajectory that ended. Raises `TypeError` for a payload that is no JSON."""
    identity, task = trajectory.id, trajectory.task
    payload = {str(key): plain(value) for key, value in task.payload.items()}
    return TrajectoryDocument(
        id=str(identity),
        run=identity.run,
        policy=trajectory.policy,
        task=TaskDocument(domain=task.domain, key=task.key, payload=payload),
        turns=tuple(map(_turn, trajectory.turns)),
        status=trajectory.status.value,
        group=identity.group,
        member=identity.member,
        attempt=identity.attempt,
        purpose=identity.purpose.value,
        start_version=trajectory.start_version,
        metrics={name: float(value) for name, value in trajectory.metrics},
        prompt_tokens=trajectory.tokens - trajectory.sampled_tokens,
        sampled_tokens=trajectory.sampled_tokens,
        elapsed_s=trajectory.ended_at - trajectory.started_at,
        reset_s=trajectory.reset_s,
    )


def plain(value: object) -> JsonValue:
    """A JSON value in plain lists and dicts, whatever mappings and sequences it was made of.

    Raises `TypeError` naming the type of a value that JSON cannot express.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(key): plain(item) for key, item in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in cast("Sequence[object]", value)]
    raise TypeError(
        f"{type(value).__name__} is no JSON value; use None, bool, int, float, str, "
        "lists and dicts of them"
    )


def _turn(turn: Turn) -> TurnDocument:
    return TurnDocument(
        observation=turn.observation,
        action=turn.action,
        tool_calls=tuple(
            ToolCallDocument(id=call.id, name=call.name, arguments=call.arguments)
            for call in turn.tool_calls
        ),
        stop=turn.stop.value,
        reward=turn.reward,
        prompt_tokens=turn.cost.cached_tokens + turn.cost.prefill_tokens,
        sampled_tokens=turn.end - turn.start,
        env_s=turn.env_s,
    )
