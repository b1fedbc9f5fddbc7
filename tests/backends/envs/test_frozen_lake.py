from collections import deque
from itertools import islice
from typing import Any

import pytest

from rollart.backends.envs.frozen_lake import ACTIONS, FrozenLake, vocabulary
from rollart.backends.envs.frozen_lake_maps import neighbour
from rollart.core.authoring import environment_misfit
from rollart.core.types import Observation, StepResult, Task

LAKE = "SFFF/FHFH/FFFH/HFFG"


def task(lake: Any = LAKE) -> Task:
    return Task(domain="FrozenLake", key="t", payload={"map": lake})


def text(observation: Observation) -> str:
    (message,) = observation.messages
    assert message.role == "user"
    return message.content


def play(lake: FrozenLake, *actions: str) -> StepResult:
    for action in actions[:-1]:
        assert not lake.step(action).done
    return lake.step(actions[-1])


def test_it_fits_the_environment_protocol() -> None:
    assert environment_misfit(FrozenLake) is None


def test_the_first_observation_tells_the_map_and_later_ones_only_what_is_near() -> None:
    lake = FrozenLake()
    first = text(lake.reset(task(), seed=1))
    assert first == (
        "00S 01F 02F 03F 10F 11H 12F 13H 20F 21F 22F 23H 30H 31F 32F 33G "
        "@00 left:# down:F right:F up:#"
    )
    assert text(lake.step("down").observation) == "@10 left:# down:F right:H up:S"


def test_reaching_the_goal_pays_one_less_the_cost_of_each_step() -> None:
    lake = FrozenLake(step_cost=0.02)
    lake.reset(task(), seed=1)
    last = play(lake, "down", "down", "right", "right", "down", "right")
    assert last.done
    assert last.reward == pytest.approx(1 - 0.02 * 6)
    assert dict(last.metrics) == {"success": 1.0, "steps": 6.0, "invalid": 0.0}


def test_a_hole_ends_the_episode_without_reward() -> None:
    lake = FrozenLake()
    lake.reset(task(), seed=1)
    last = play(lake, "right", "down")
    assert (last.done, last.reward) == (True, 0.0)
    assert dict(last.metrics)["success"] == 0.0


@pytest.mark.parametrize(
    ("actions", "made"),
    [
        (("right", "down"), 1 - 5 / 6),  # the start lies 6 moves from the goal, 01 lies 5
        (("down", "down", "down"), 1 - 4 / 6),
        (("down", "down", "right", "right", "right"), 1 - 2 / 6),
    ],
)
def test_who_fails_is_paid_for_the_way_that_the_last_safe_cell_has_made(
    actions: tuple[str, ...], made: float
) -> None:
    lake = FrozenLake(progress=0.3)
    lake.reset(task(), seed=1)
    last = play(lake, *actions)
    assert last.done
    assert last.reward == pytest.approx(0.3 * made)


def test_out_of_steps_the_way_made_is_that_of_the_cell_it_stands_on() -> None:
    lake = FrozenLake(progress=0.3, max_steps=2)
    lake.reset(task(), seed=1)
    assert play(lake, "down", "down").reward == pytest.approx(0.3 * 2 / 6)


def test_failing_is_never_paid_as_much_as_the_latest_success() -> None:
    with pytest.raises(ValueError, match=r"progress = 0.6: 0, or above 0 and below the 0.6"):
        FrozenLake(progress=0.6)
    FrozenLake(max_steps=100)


@pytest.mark.parametrize("answer", ["jump", "", "left left", "left down", "<|end|>"])
def test_an_answer_that_is_not_one_action_ends_the_episode_at_a_price(answer: str) -> None:
    lake = FrozenLake(invalid_reward=-0.5)
    lake.reset(task(), seed=1)
    last = lake.step(answer)
    assert (last.done, last.reward) == (True, -0.5)
    assert dict(last.metrics) == {"success": 0.0, "steps": 1.0, "invalid": 1.0}


def test_walking_into_the_edge_stays_and_costs_a_step_until_the_limit() -> None:
    lake = FrozenLake(max_steps=3)
    lake.reset(task(), seed=1)
    last = play(lake, "left", "left", "left")
    assert (last.done, last.reward) == (True, 0.0)
    assert text(last.observation).startswith("@00")


def test_task_seed_and_actions_determine_the_episode() -> None:
    def episode(lake: FrozenLake) -> list[object]:
        return [lake.reset(task(), seed=5), *map(lake.step, ("down", "down", "right"))]

    used = FrozenLake()
    used.reset(task("SFFF/FFFF/FFFF/FFFG"), seed=9)
    used.step("down")
    fresh = episode(FrozenLake())
    assert FrozenLake.replayable
    assert episode(used) == fresh
    assert episode(used) == fresh


def shortest_solution(lake: str) -> list[str]:
    rows, paths = lake.split("/"), deque([((0, 0), list[str]())])
    while True:
        (row, column), actions = paths.popleft()
        if rows[row][column] == "G":
            return actions
        for action in ACTIONS:
            there = neighbour(row, column, action)
            if there and rows[there[0]][there[1]] != "H" and len(actions) < 14:
                paths.append((there, [*actions, action]))


def test_every_map_that_training_draws_can_be_played_to_its_goal() -> None:
    lake = FrozenLake()
    for payload in islice(FrozenLake.train_tasks(0), 20):
        lake.reset(task(payload["map"]), seed=0)
        assert dict(play(lake, *shortest_solution(str(payload["map"]))).metrics)["success"] == 1.0


@pytest.mark.parametrize("lake", [None, 3, "SF/FG", "SFFF"])
def test_a_task_without_a_four_by_four_map_is_refused_with_an_example(lake: object) -> None:
    with pytest.raises(ValueError, match="SFFF/FHFH/FFFH/HFFG"):
        FrozenLake().reset(task(lake), seed=0)


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset the environment"):
        FrozenLake().step("left")


@pytest.mark.parametrize("options", [{"frozen": 0.0}, {"frozen": 1.5}, {"max_steps": 0}])
def test_impossible_options_are_refused_with_a_valid_value(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for example"):
        FrozenLake(**options)


def test_a_closed_lake_can_be_used_again() -> None:
    lake = FrozenLake()
    before = lake.reset(task(), seed=1)
    lake.close()
    assert lake.reset(task(), seed=1) == before


def test_the_vocabulary_holds_every_word_of_every_observation() -> None:
    known = set(vocabulary())
    assert len(known) == len(vocabulary())
    lake = FrozenLake(max_steps=8)
    for payload in islice(FrozenLake.train_tasks(1), 30):
        seen = lake.reset(Task(domain="FrozenLake", key="t", payload=payload), seed=0)
        assert set(text(seen).split()) <= known
        for action in ACTIONS * 2:
            result = lake.step(action)
            assert set(text(result.observation).split()) <= known
            if result.done:
                break


def test_tasks_for_training_and_evaluation_share_no_map() -> None:
    held_out = [str(payload["map"]) for payload in FrozenLake.heldout_tasks(300, 0, max_steps=20)]
    trained = {
        str(payload["map"]) for payload in islice(FrozenLake.train_tasks(0, frozen=0.7), 500)
    }
    assert len(set(held_out)) == 300
    assert not trained & set(held_out)


def test_baselines_are_named_and_scored_on_the_given_tasks() -> None:
    free = [{"map": "SFFF/FFFF/FFFF/FFFG"}]
    closed = [{"map": "SFFH/FFHF/FFFF/FFFG"}]
    names = {"best fixed action sequence", "right if free, else down"}
    assert FrozenLake.baselines(free, max_steps=20) == dict.fromkeys(names, 1.0)
    assert FrozenLake.baselines(closed)["right if free, else down"] in (0.0, 1.0)
