from itertools import islice, product

import pytest

from rollart.backends.envs.frozen_lake_baselines import (
    best_fixed_sequence,
    measure_baselines,
    right_else_down_succeeds,
    sequence_succeeds,
)
from rollart.backends.envs.frozen_lake_maps import MOVES, heldout_maps, training_maps


def test_a_sequence_succeeds_only_where_its_path_is_free() -> None:
    path = ("right", "right", "down", "down", "right", "down")
    assert sequence_succeeds("SFFF/FHFH/FFFF/HFFG", path)
    assert not sequence_succeeds("SFHF/FFFH/FFFF/HFFG", path)
    assert not sequence_succeeds("SFFF/FHFH/FFFF/HFFG", path[:-1])


def test_right_else_down_goes_right_first_and_falls_where_both_are_blocked() -> None:
    assert right_else_down_succeeds("SFHF/FFFH/HHFF/HFFG")
    assert not right_else_down_succeeds("SFFH/FHHF/FFFF/FFFG")


def test_no_blind_sequence_of_seven_actions_beats_the_chosen_one() -> None:
    lakes = list(islice(training_maps(0), 8))
    chosen = best_fixed_sequence(lakes)
    best = sum(sequence_succeeds(lake, chosen) for lake in lakes)
    tried = product(MOVES, repeat=7)
    assert best == max(sum(sequence_succeeds(m, actions) for m in lakes) for actions in tried)


def test_both_baselines_on_heldout_maps_leave_room_to_learn() -> None:
    measured = measure_baselines(list(islice(training_maps(0), 300)), heldout_maps(256, 0))
    assert measured.heldout_count == 256
    assert 0.1 < measured.fixed_sequence_success < 0.3
    assert 0.6 < measured.right_else_down_success < 0.75
    assert measured.best == measured.right_else_down_success


def test_baselines_without_heldout_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="heldout is empty"):
        measure_baselines(["SFFF/FHFH/FFFH/HFFG"], [])
