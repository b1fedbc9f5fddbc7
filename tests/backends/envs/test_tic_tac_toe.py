from itertools import islice
from typing import Any

import pytest

from rollart.backends.envs.tic_tac_toe import ACTIONS, TicTacToe, vocabulary
from rollart.core.authoring import environment_misfit
from rollart.core.types import Observation, StepResult, Task


def task(order: Any = "123456789", begins: Any = "agent") -> Task:
    return Task(domain="TicTacToe", key="t", payload={"order": order, "begins": begins})


def text(observation: Observation) -> str:
    (message,) = observation.messages
    assert message.role == "user"
    return message.content


def play(game: TicTacToe, *actions: str) -> StepResult:
    for action in actions[:-1]:
        assert not game.step(action).done
    return game.step(actions[-1])


def test_it_fits_the_environment_protocol() -> None:
    assert environment_misfit(TicTacToe) is None


def test_the_agent_sees_the_cell_that_the_opponent_took() -> None:
    game = TicTacToe()
    assert text(game.reset(task("513246789"), seed=1)) == "begin"
    assert text(game.step("5").observation) == "1"
    assert text(game.step("3").observation) == "2"


def test_an_opponent_that_begins_has_moved_before_the_first_observation() -> None:
    game = TicTacToe()
    assert text(game.reset(task("912345678", "opponent"), seed=1)) == "9"


def test_a_line_wins() -> None:
    game = TicTacToe()
    game.reset(task("123456789"), seed=1)
    last = play(game, "7", "8", "9")
    assert (last.done, last.reward, text(last.observation)) == (True, 1.0, "won")
    assert dict(last.metrics) == {"success": 1.0, "draw": 0.0, "invalid": 0.0}


def test_the_opponents_line_loses() -> None:
    game = TicTacToe(loss_reward=-0.5)
    game.reset(task("123456789"), seed=1)
    last = play(game, "4", "5", "7")
    assert (last.done, last.reward, text(last.observation)) == (True, -0.5, "lost")
    assert dict(last.metrics) == {"success": 0.0, "draw": 0.0, "invalid": 0.0}


@pytest.mark.parametrize(
    ("begins", "order", "actions"),
    [("agent", "256713489", "13489"), ("opponent", "134892567", "2567")],
)
def test_a_full_board_without_a_line_is_a_draw_and_no_success(
    begins: str, order: str, actions: str
) -> None:
    game = TicTacToe(draw_reward=0.2)
    game.reset(task(order, begins), seed=1)
    last = play(game, *actions)
    assert (last.done, last.reward) == (True, 0.2)
    assert text(last.observation) == "draw"
    assert dict(last.metrics) == {"success": 0.0, "draw": 1.0, "invalid": 0.0}


@pytest.mark.parametrize("answer", ["1", "0", "10", "", "5 6", "left", "X5"])
def test_an_answer_that_is_not_one_free_cell_ends_the_game_as_lost(answer: str) -> None:
    game = TicTacToe(invalid_reward=-1.0)
    game.reset(task(), seed=1)
    game.step("9")
    last = game.step(answer)
    assert (last.done, last.reward, text(last.observation)) == (True, -1.0, "invalid")
    assert dict(last.metrics) == {"success": 0.0, "draw": 0.0, "invalid": 1.0}


def test_task_and_actions_determine_the_game_whatever_was_played_before() -> None:
    def episode(game: TicTacToe, seed: int) -> list[object]:
        return [game.reset(task("928374615"), seed=seed), *map(game.step, ("5", "1", "3"))]

    used = TicTacToe()
    used.reset(task("987654321", "opponent"), seed=9)
    used.step("4")
    assert TicTacToe.replayable
    assert episode(used, 1) == episode(TicTacToe(), 2)


@pytest.mark.parametrize(
    ("order", "begins"),
    [(None, "agent"), ("12345678", "agent"), ("112345678", "agent"), ("123456789", "either")],
)
def test_a_task_without_a_game_is_refused_with_an_example(order: object, begins: object) -> None:
    with pytest.raises(ValueError, match="531798264"):
        TicTacToe().reset(task(order, begins), seed=0)


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset the environment"):
        TicTacToe().step("1")


def test_an_unknown_beginner_is_refused_with_the_valid_ones() -> None:
    options: Any = {"begins": "nobody"}
    with pytest.raises(ValueError, match='"agent", "opponent" or "either"'):
        TicTacToe(**options)


def test_the_vocabulary_holds_every_word_of_every_observation() -> None:
    known = set(vocabulary())
    assert len(known) == len(vocabulary()) == 14
    assert set(ACTIONS) < known
    game = TicTacToe()
    ends: set[str] = set()
    for payload in islice(TicTacToe.train_tasks(1), 60):
        seen = [text(game.reset(Task(domain="d", key="t", payload=payload), seed=0))]
        for action in "1537946282"[len(ends) :]:
            result = game.step(action)
            seen.append(text(result.observation))
            if result.done:
                ends.add(seen[-1])
                break
        assert set(seen) <= known
    assert {"won", "lost", "invalid"} <= ends


def test_tasks_for_training_and_evaluation_share_no_order_of_the_opponent() -> None:
    held_out = TicTacToe.heldout_tasks(300, 0, draw_reward=0.2)
    trained = {str(payload["order"]) for payload in islice(TicTacToe.train_tasks(0), 2000)}
    assert len({str(payload) for payload in held_out}) == 300
    assert not trained & {str(payload["order"]) for payload in held_out}


def test_a_chosen_beginner_begins_every_task() -> None:
    tasks = [*TicTacToe.heldout_tasks(20, 0, begins="opponent")]
    tasks += islice(TicTacToe.train_tasks(0, begins="opponent"), 20)
    assert {str(payload["begins"]) for payload in tasks} == {"opponent"}
    assert {str(p["begins"]) for p in TicTacToe.heldout_tasks(20, 0)} == {"agent", "opponent"}


def test_baselines_are_named_and_scored_on_the_given_tasks() -> None:
    measured = TicTacToe.baselines(TicTacToe.heldout_tasks(400, 0), begins="either")
    assert set(measured) == {"random free cell", "win or block if possible, else random"}
    assert 0.4 < measured["random free cell"] < 0.48
    assert 0.74 < measured["win or block if possible, else random"] < 0.83
