"""The weight of a token in the loss of its batch, under both aggregations."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.algorithms.losses import AGGREGATIONS, Aggregation, token_weight

Weigh = Callable[[Sequence[int], int], Sequence[float]]
"""From tokens of a trajectory's segments and trajectories of the batch to weights per token."""


def weigh_the_trajectory(segments: Sequence[int], trajectories: int) -> list[float]:
    weight = token_weight(
        "sequence_mean",
        trajectory_tokens=sum(segments),
        batch_tokens=sum(segments) + 100,
        batch_trajectories=trajectories,
    )
    return [weight] * len(segments)


def weigh_each_segment(segments: Sequence[int], trajectories: int) -> list[float]:
    """The planted bug: every segment counts as a trajectory."""
    return [1.0 / (trajectories * tokens) for tokens in segments]


def assert_a_trajectory_weighs_the_same_in_any_number_of_segments(weigh: Weigh) -> None:
    for segments in ([12], [4, 8], [1, 2, 3, 6]):
        weights = weigh(segments, 5)
        total = sum(n * weight for n, weight in zip(segments, weights, strict=True))
        assert total == pytest.approx(1 / 5)


def test_the_sequence_mean_counts_trajectories_not_segments() -> None:
    assert_a_trajectory_weighs_the_same_in_any_number_of_segments(weigh_the_trajectory)
    with pytest.raises(AssertionError):
        assert_a_trajectory_weighs_the_same_in_any_number_of_segments(weigh_each_segment)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.sampled_from(AGGREGATIONS),
)
def test_the_weights_of_a_batch_add_up_to_one(trained: list[int], aggregation: Aggregation) -> None:
    total = sum(
        tokens
        * token_weight(
            aggregation,
            trajectory_tokens=tokens,
            batch_tokens=sum(trained),
            batch_trajectories=sum(n > 0 for n in trained),
        )
        for tokens in trained
    )
    assert total == pytest.approx(1.0 if any(trained) else 0.0)


def test_counts_of_one_rank_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="count all three over the whole batch"):
        token_weight("token_mean", trajectory_tokens=5, batch_tokens=4, batch_trajectories=1)


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of token_mean, sequence_mean"):
        token_weight(
            "mean",  # pyright: ignore[reportArgumentType]
            trajectory_tokens=1,
            batch_tokens=1,
            batch_trajectories=1,
        )
