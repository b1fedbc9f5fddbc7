"""What goes to a child comes back the same: records survive the trip through msgpack."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.errors import FailureKind
from rollart.core.identity import Purpose, TrajectoryId
from rollart.core.tokens import LengthOnly, VersionRuns, ids_array, logprobs_array
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
from rollart.runtimes.local import codec

TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
NAMED = st.tuples(TEXT, NUMBER)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(("system", "user", "assistant", "tool")),
    content=TEXT,
    tool_calls=st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT), max_size=2).map(
        tuple
    ),
    tool_call_id=st.none() | TEXT,
    tools=st.lists(
        st.builds(ToolSpec, name=TEXT, description=TEXT, parameters=TEXT), max_size=2
    ).map(tuple),
)
OBSERVATIONS = st.builds(
    Observation,
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    attachments=st.lists(TEXT, max_size=2).map(tuple),
)


def trip(packed):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(packed))


@given(
    st.builds(
        StepResult,
        observation=OBSERVATIONS,
        reward=st.none() | NUMBER,
        done=st.booleans(),
        metrics=st.lists(NAMED, max_size=3).map(tuple),
    )
)
def test_a_step_result_survives(result: StepResult):
    assert codec.unpack_step_result(trip(codec.pack_step_result(result))) == result


@given(
    st.builds(
        Verdict,
        score=st.none() | NUMBER,
        components=st.lists(NAMED, max_size=3).map(tuple),
        reason=TEXT,
        failure=st.none() | st.sampled_from(FailureKind),
    )
)
def test_a_verdict_survives(verdict: Verdict):
    assert codec.unpack_verdict(trip(codec.pack_verdict(verdict))) == verdict


@given(st.recursive(st.none() | st.booleans() | TEXT | NUMBER, st.lists))
def test_a_task_survives(value):
    task = Task(domain="lake", key="7", payload={"map": value, "nested": {"deep": [1, value]}})
    assert codec.unpack_task(trip(codec.pack_task(task))) == task


def test_a_payload_that_is_no_json_is_refused_by_its_type():
    with pytest.raises(TypeError, match="set is no JSON value; use None"):
        codec.pack_task(Task(domain="lake", key="7", payload={"map": {1, 2}}))  # pyright: ignore


def test_extreme_numbers_survive():
    verdict = Verdict(score=-0.0, components=(("tiny", 5e-324), ("big", 1.7e308)))
    back = codec.unpack_verdict(trip(codec.pack_verdict(verdict)))
    assert back == verdict
    assert back.score is not None
    assert math.copysign(1, back.score) == -1


def trajectory() -> Trajectory:
    sampled = Piece(
        ids=np.array([5, 6, 7], np.int32),
        logprobs=np.array([-0.1, -2.5, -1e-8], np.float32),
        versions=VersionRuns(((3, 2), (4, 1))),
    )
    turn = Turn(
        segment=0,
        start=2,
        end=5,
        observation="@00",
        action="left",
        tool_calls=(ToolCall(id="1", name="go", arguments="{}"),),
        stop=StopReason.LENGTH,
        engine="engine-0",
        reward=0.5,
        cost=RequestCost(cached_tokens=1, prefill_tokens=2, decode_tokens=3, decode_s=0.25),
        proxy_queued_s=0.125,
        env_s=0.0625,
    )
    return Trajectory(
        id=TrajectoryId(
            run="r",
            domain="lake",
            task="7",
            group=3,
            member=1,
            attempt=2,
            purpose=Purpose.EVAL,
        ),
        policy="agent",
        task=Task(domain="lake", key="7", payload={"map": "SFFG"}),
        segments=(
            Segment(
                pieces=(Piece(ids=np.array([1, 2], np.int32)), sampled), attachments=("a.png",)
            ),
        ),
        turns=(turn,),
        start_version=3,
        status=Status.TRUNCATED,
        failure=FailureKind.REWARD_TIMEOUT,
        detail="late",
        verdict=Verdict(score=1.0, components=(("style", 0.5),)),
        metrics=(("success", 1.0),),
        started_at=1.5,
        ended_at=2.5,
        reset_s=0.25,
        reward_s=0.5,
    )


def test_a_trajectory_survives_with_every_token():
    before = trajectory()
    after = codec.unpack_trajectory(trip(codec.pack_trajectory(before)))
    for name in Trajectory.__dataclass_fields__:
        if name != "segments":
            assert getattr(after, name) == getattr(before, name), name
    (segment,) = after.segments
    assert segment.attachments == ("a.png",)
    assert segment.ids().tolist() == [1, 2, 5, 6, 7]
    assert segment.loss_mask().tolist() == [False, False, True, True, True]
    assert np.array_equal(segment.logprobs(), before.segments[0].logprobs())
    assert segment.versions().tolist() == [-1, -1, 3, 3, 4]


def test_blocks_that_are_lengths_only_survive_as_such():
    piece = Piece(ids=LengthOnly(5), logprobs=LengthOnly(3))
    before = replace(trajectory(), segments=(Segment(pieces=(piece,)),))
    after = codec.unpack_trajectory(trip(codec.pack_trajectory(before)))
    assert after.segments == before.segments


def test_a_batch_survives():
    one = trajectory()
    group = Group(id=3, task=one.task, members=(one, one), start_version=3)
    packed = trip((7, [codec.pack_group(group)], 0.25))
    batch = codec.unpack_batch(packed)
    assert isinstance(batch, TrainBatch)
    assert (batch.step, batch.progress) == (7, 0.25)
    assert batch.groups[0].id == 3
    pieces = [piece for member in batch.trajectories for piece in member.segments[0].pieces]
    assert [ids_array(piece.ids).dtype for piece in pieces] == [np.int32] * 4
    assert logprobs_array(pieces[1].logprobs).dtype == np.float32


def test_statistics_and_gaps_survive():
    stats = TrainStats(
        version=3,
        loss=-0.5,
        grad_norm=1.25,
        trained_tokens=10,
        input_tokens=20,
        optimizer_steps=2,
        learning_rate=1e-5,
        entropy=0.5,
        clip_fraction=0.25,
        approx_kl=0.125,
        ratio_max=1.5,
        skipped=True,
        same_version_gap=1e-6,
        seconds=2.0,
    )
    gap = LogprobGap(tokens=4, maximum=1e-5, mean=1e-6)
    assert codec.unpack_stats(trip(codec.pack_stats(stats))) == stats
    assert codec.unpack_gap(trip(codec.pack_gap(gap))) == gap
