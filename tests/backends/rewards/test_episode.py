"""The default reward adds up what the environment gave."""

import pytest

from rollart.backends.rewards.episode import episode_return
from rollart.core.identity import TrajectoryId
from rollart.core.types import Status, Task, Trajectory, Turn


def trajectory(*rewards: float | None) -> Trajectory:
    return Trajectory(
        id=TrajectoryId(run="r", domain="d", task="t", group=0, member=0),
        policy="policy",
        task=Task(domain="d", key="t"),
        segments=(),
        turns=tuple(
            Turn(segment=0, start=0, end=0, observation="", action="", reward=reward)
            for reward in rewards
        ),
        start_version=0,
        status=Status.FINISHED,
    )


def test_rewards_of_all_turns_are_added_and_missing_ones_count_nothing():
    assert episode_return(trajectory(0.5, None, -0.25)) == pytest.approx(0.25)


def test_an_episode_without_turns_returns_zero_as_a_float():
    assert repr(episode_return(trajectory())) == "0.0"
