"""The default reward adds up what the environment gave."""

import pytest

from rollart.backends.rewards.episode import episode_return
from rollart.core.scoring.document import TaskDocument, TrajectoryDocument, TurnDocument


def document(*rewards: float | None) -> TrajectoryDocument:
    return TrajectoryDocument(
        id="d/t/g0.0.0",
        run="r",
        policy="policy",
        task=TaskDocument(domain="d", key="t"),
        turns=tuple(TurnDocument(observation="", action="", reward=reward) for reward in rewards),
    )


def test_rewards_of_all_turns_are_added_and_missing_ones_count_nothing():
    assert episode_return(document(0.5, None, -0.25)) == pytest.approx(0.25)


def test_an_episode_without_turns_returns_zero_as_a_float():
    assert repr(episode_return(document())) == "0.0"
