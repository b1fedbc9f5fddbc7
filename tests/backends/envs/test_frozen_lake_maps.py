from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.backends.envs.frozen_lake_maps import (
    derived_rng,
    draw_map,
    heldout_maps,
    is_heldout,
    is_solvable,
    rows_of,
    training_map,
    training_maps,
)


def test_a_lake_whose_goal_is_walled_in_is_not_solvable() -> None:
    assert is_solvable("SFFF/FHFH/FFFH/HFFG")
    assert not is_solvable("SFFF/FHFH/FFHH/HFHG")
    assert not is_solvable("SHFF/HFFF/FFFF/FFFG")


@pytest.mark.parametrize("lake", ["SFFF/FHFH/FFFH", "FFFF/FFFF/FFFF/FFFG", "SF/FX", "S\nF/FG", ""])
def test_text_that_is_no_map_is_refused_with_an_example(lake: str) -> None:
    with pytest.raises(ValueError, match="SFFF/FHFH/FFFH/HFFG"):
        rows_of(lake)


@given(st.integers(0, 2**63), st.sampled_from([0.5, 0.7, 0.9]))
def test_every_drawn_map_is_a_solvable_square(seed: int, frozen: float) -> None:
    lake = draw_map(derived_rng(seed), frozen=frozen)
    assert len(rows_of(lake)) == 4
    assert is_solvable(lake)


def test_training_meets_no_heldout_map_whatever_the_seeds() -> None:
    held_out = {lake for seed in range(3) for lake in heldout_maps(300, seed)}
    for seed in (0, 1, 99):
        trained = set(islice(training_maps(seed), 2000))
        assert not trained & held_out
        assert not any(map(is_heldout, trained))


def test_a_split_by_seed_instead_of_by_hash_would_meet_heldout_maps() -> None:
    held_out = set(heldout_maps(300, 0))
    by_seed_alone = {draw_map(derived_rng("train", 0, index)) for index in range(2000)}
    assert by_seed_alone & held_out


def test_heldout_maps_are_distinct_solvable_and_the_same_each_time() -> None:
    lakes = heldout_maps(512, 7)
    assert len(lakes) == len(set(lakes)) == 512
    assert all(map(is_solvable, lakes))
    assert lakes[:256] == heldout_maps(256, 7)


def test_asking_for_more_heldout_maps_than_exist_says_how_many_there_are() -> None:
    with pytest.raises(ValueError, match=r"n = 40: only \d+ distinct"):
        heldout_maps(40, 0, frozen=0.995)


def test_the_training_sequence_can_be_entered_anywhere() -> None:
    lakes = list(islice(training_maps(3), 12))
    assert list(islice(training_maps(3, start=5), 7)) == lakes[5:]
    assert training_map(3, 11) == lakes[11]
    assert lakes != list(islice(training_maps(4), 12))
