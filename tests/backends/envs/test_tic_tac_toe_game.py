import random
from collections import Counter
from itertools import islice, permutations

import pytest

from rollart.backends.envs.tic_tac_toe_game import (
    AGENT,
    CELLS,
    FREE,
    OPPONENT,
    Opening,
    free_cells,
    heldout_openings,
    placed,
    random_player,
    rule_player,
    training_openings,
    win_rate,
    wins,
)


def test_a_whole_line_wins_and_two_of_three_do_not() -> None:
    won = ("XXX......", "..X..X..X", "X...X...X", "..X.X.X..")
    assert all(wins(board, AGENT) for board in won)
    assert not any(wins(board, OPPONENT) for board in won)
    assert not wins("XX.......", AGENT)
    assert not wins("..XX.....", AGENT)


def test_over_all_orders_the_opponent_takes_every_free_cell_equally_often() -> None:
    """Also where it has moved before: what it has shown tells nothing of what comes next."""
    board = placed(FREE * 9, 4, AGENT)
    replies: Counter[int] = Counter()
    for order in permutations(CELLS):
        opening = Opening(begins="agent", order="".join(order))
        first = opening.reply(board)
        if first == 0:
            seen = placed(placed(board, first, OPPONENT), 8, AGENT)
            replies[opening.reply(seen)] += 1
    assert len(replies) == 6
    assert len(set(replies.values())) == 1


def test_training_openings_are_the_same_for_one_seed_and_differ_for_another() -> None:
    first = list(islice(training_openings(3), 20))
    assert first == list(islice(training_openings(3), 20))
    assert first != list(islice(training_openings(4), 20))


def test_more_heldout_games_than_can_be_found_quickly_are_refused_with_a_valid_number() -> None:
    with pytest.raises(ValueError, match="use 10000 "):
        heldout_openings(10_001, 0)


def test_the_rule_player_wins_before_it_blocks_and_blocks_before_it_guesses() -> None:
    rng = random.Random(0)
    assert rule_player("XX.OO....", rng) == 2
    assert rule_player("X..OO....", rng) == 5
    seen = {rule_player(FREE * 9, rng) for _ in range(200)}
    assert seen == set(range(9))


def test_players_choose_free_cells_only() -> None:
    rng = random.Random(0)
    for board in ("XO.......", "XOXOX.O.O", "........X"):
        for player in (random_player, rule_player):
            assert {player(board, rng) for _ in range(50)} <= set(free_cells(board))


def test_the_player_at_random_wins_as_often_as_is_known_of_the_game() -> None:
    """Of random games the first player wins 58.5 %, the second 28.8 %."""
    first = win_rate(heldout_openings(2000, 0, begins="agent"), random_player, rounds=2)
    second = win_rate(heldout_openings(2000, 0, begins="opponent"), random_player, rounds=2)
    assert first == pytest.approx(0.585, abs=0.03)
    assert second == pytest.approx(0.288, abs=0.03)


def test_a_win_rate_over_no_games_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one game"):
        win_rate([], random_player, rounds=1)
