"""Packing plans: every token once, under the budget, joined by key."""

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollart.algorithms.packing import (
    PADDING,
    Layout,
    MicroBatch,
    Place,
    block_causal_mask,
    plan_micro_batches,
)

STRIDE = 1000  # tokens of sequence k are k·STRIDE, k·STRIDE + 1, ...

batches = st.dictionaries(st.integers(0, 500), st.integers(1, 40), max_size=30)
layouts: st.SearchStrategy[Layout] = st.sampled_from(["packed", "padded"])

Join = Callable[[Mapping[int, int], tuple[MicroBatch[int], ...]], Mapping[int, NDArray[np.int64]]]


def tokens_of(lengths: Mapping[int, int]) -> dict[int, NDArray[np.int64]]:
    return {
        key: key * STRIDE + np.arange(length, dtype=np.int64) for key, length in lengths.items()
    }


@given(batches, layouts, st.integers(40, 200), st.none() | st.just(40))
def test_every_token_has_exactly_one_place_and_no_micro_batch_exceeds_the_budget(
    lengths: dict[int, int], layout: Layout, budget: int, row_tokens: int | None
) -> None:
    plan = plan_micro_batches(lengths, token_budget=budget, layout=layout, row_tokens=row_tokens)
    tokens = tokens_of(lengths)
    placed: list[int] = []
    for batch in plan:
        assert batch.shape[0] * batch.shape[1] <= budget
        packed = batch.pack(tokens, fill=PADDING)
        assert packed.shape == batch.shape
        assert ((packed == PADDING) == (batch.segment_ids() == PADDING)).all()
        placed.extend(packed[packed != PADDING].tolist())
    everything = np.concatenate([*tokens.values(), np.array([], dtype=int)])
    assert sorted(placed) == sorted(everything.tolist())


@given(batches, layouts)
def test_positions_count_from_the_start_of_each_sequence(
    lengths: dict[int, int], layout: Layout
) -> None:
    tokens = tokens_of(lengths)
    for batch in plan_micro_batches(lengths, token_budget=80, layout=layout):
        packed = batch.pack(tokens, fill=0)
        real = batch.segment_ids() != PADDING
        assert (batch.position_ids()[real] == packed[real] % STRIDE).all()
        assert (batch.position_ids()[~real] == 0).all()


@given(batches, layouts)
def test_a_token_attends_to_the_earlier_tokens_of_its_sequence_and_no_others(
    lengths: dict[int, int], layout: Layout
) -> None:
    tokens = tokens_of(lengths)
    for batch in plan_micro_batches(lengths, token_budget=80, layout=layout):
        packed = batch.pack(tokens, fill=PADDING)
        allowed = block_causal_mask(batch.segment_ids())
        assert allowed.any(axis=-1).all(), "a query without a key gives NaN"
        for row, query in zip(*np.nonzero(packed != PADDING), strict=True):
            seen = packed[row][allowed[row, query]]
            own = packed[row, query]
            assert seen.tolist() == list(range(own // STRIDE * STRIDE, own + 1))


def test_the_block_causal_mask_of_two_sequences_and_padding_is_as_drawn() -> None:
    mask = block_causal_mask(np.array([[0, 0, 1, PADDING, PADDING]]))
    drawn = """
        x....
        xx...
        ..x..
        ...x.
        ...xx
    """
    assert ["".join("x" if cell else "." for cell in line) for line in mask[0]] == drawn.split()


def join_by_key(
    lengths: Mapping[int, int], plan: tuple[MicroBatch[int], ...]
) -> dict[int, NDArray[np.int64]]:
    return {
        key: values
        for batch in plan
        for key, values in batch.unpack(batch.pack(tokens_of(lengths), fill=0)).items()
    }


def join_by_position(
    lengths: Mapping[int, int], plan: tuple[MicroBatch[int], ...]
) -> dict[int, NDArray[np.int64]]:
    """The planted bug: the plan's order is taken for the batch's order."""
    return dict(zip(lengths, join_by_key(lengths, plan).values(), strict=True))


def assert_tokens_rewards_and_masks_agree(join: Join, seed: int, layout: Layout) -> None:
    """The key is written into tokens and reward, its parity into the mask; all must meet again."""
    rng = random.Random(seed)
    keys = list(range(1, 33))
    rng.shuffle(keys)
    lengths = {key: rng.randint(1, 20) for key in keys}
    masks = {key: (np.arange(length) + key) % 2 == 0 for key, length in lengths.items()}
    rewards = {key: float(key) for key in lengths}
    plan = plan_micro_batches(lengths, token_budget=64, layout=layout, row_tokens=32)
    joined_masks = {
        key: values
        for batch in plan
        for key, values in batch.unpack(batch.pack(masks, fill=False)).items()
    }
    joined_tokens = join(lengths, plan)
    assert set(joined_tokens) == set(joined_masks) == set(lengths)
    for key, ids in joined_tokens.items():
        assert (ids // STRIDE == rewards[key]).all()
        assert len(ids) == lengths[key]
        assert (joined_masks[key] == ((ids % STRIDE + ids // STRIDE) % 2 == 0)).all()


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("seed", range(5))
def test_identity_survives_shuffle_pack_and_unpack(seed: int, layout: Layout) -> None:
    assert_tokens_rewards_and_masks_agree(join_by_key, seed, layout)
    with pytest.raises(AssertionError):
        assert_tokens_rewards_and_masks_agree(join_by_position, seed, layout)


def test_first_fit_decreasing_gives_the_plan_worked_out_by_hand() -> None:
    # Rows of 10, longest first: f7 opens row 0; b5 row 1; d5 fits row 1 (full); a3 fits row 0
    # (full); c2 and e1 open row 2. Two rows of width 10 fit a budget of 20, the row of 3 is next.
    lengths = {"a": 3, "b": 5, "c": 2, "d": 5, "e": 1, "f": 7}
    plan = plan_micro_batches(lengths, token_budget=20, layout="packed", row_tokens=10)
    assert plan == (
        MicroBatch(
            rows=(
                (Place(key="f", start=0, length=7), Place(key="a", start=7, length=3)),
                (Place(key="b", start=0, length=5), Place(key="d", start=5, length=5)),
            ),
            width=10,
        ),
        MicroBatch(
            rows=((Place(key="c", start=0, length=2), Place(key="e", start=2, length=1)),),
            width=3,
        ),
    )


def test_padding_puts_sequences_of_similar_length_together() -> None:
    # Width 4: two rows fit 8 places; then width 2 for c and b, 4 places.
    plan = plan_micro_batches({"a": 4, "b": 1, "c": 2, "d": 3}, token_budget=8, layout="padded")
    assert [batch.keys() for batch in plan] == [("a", "d"), ("c", "b")]
    assert [batch.shape for batch in plan] == [(2, 4), (2, 2)]
    assert plan[0].segment_ids().tolist() == [[0, 0, 0, 0], [0, 0, 0, PADDING]]


@given(st.dictionaries(st.integers(), st.integers(1, 40), min_size=1), st.integers(40, 90))
def test_at_most_one_packed_row_is_half_empty(lengths: dict[int, int], budget: int) -> None:
    plan = plan_micro_batches(lengths, token_budget=budget, layout="packed")
    used = [sum(place.length for place in row) for batch in plan for row in batch.rows]
    assert sum(tokens <= budget / 2 for tokens in used) <= 1


def test_equal_lengths_keep_the_order_given() -> None:
    plan = plan_micro_batches(dict.fromkeys("dacb", 2), token_budget=4, layout="packed")
    assert [batch.keys() for batch in plan] == [("d", "a"), ("c", "b")]


def test_an_empty_batch_has_no_micro_batches() -> None:
    assert plan_micro_batches({}, token_budget=8, layout="packed") == ()


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_sequence_longer_than_the_budget_is_refused_with_both_lengths(layout: Layout) -> None:
    with pytest.raises(ValueError, match=r"'long' has 9 tokens, more than the 8 a row may hold"):
        plan_micro_batches({"short": 1, "long": 9}, token_budget=8, layout=layout)


def test_a_sequence_longer_than_a_packed_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'x' has 5 tokens, more than the 4 a row may hold"):
        plan_micro_batches({"x": 5}, token_budget=8, layout="packed", row_tokens=4)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' has 0 tokens"):
        plan_micro_batches({"x": 0}, token_budget=8, layout="packed")


@pytest.mark.parametrize(("budget", "row"), [(0, None), (8, 0), (8, 9)])
def test_impossible_sizes_are_refused(budget: int, row: int | None) -> None:
    with pytest.raises(ValueError, match="use "):
        plan_micro_batches({"x": 1}, token_budget=budget, layout="packed", row_tokens=row)


def test_values_of_another_length_than_planned_are_refused() -> None:
    (batch,) = plan_micro_batches({"x": 3}, token_budget=8, layout="packed")
    with pytest.raises(ValueError, match=r"'x' was planned with 3 tokens .* shape \(1,\)"):
        batch.pack({"x": np.array([1])}, fill=0)


def test_an_array_of_another_micro_batch_is_refused() -> None:
    (batch,) = plan_micro_batches({"x": 3}, token_budget=8, layout="packed")
    with pytest.raises(ValueError, match="unpack with the micro-batch that packed it"):
        batch.unpack(np.zeros((1, 4)))
