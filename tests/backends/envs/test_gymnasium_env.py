from pathlib import Path
from typing import Any

import pytest

from rollart.backends.envs.gymnasium_env import GymnasiumEnvironment, default_format
from rollart.core.authoring import environment_misfit
from rollart.core.types import StepResult, Task

TASK = Task(domain="d", key="t")
LAKE: dict[str, Any] = {"env": "FrozenLake-v1", "kwargs": {"is_slippery": False}}
MOVES = ["left", "down", "right", "up"]


def shown(result: StepResult) -> str:
    return result.observation.messages[0].content


def test_it_fits_the_environment_protocol() -> None:
    assert environment_misfit(GymnasiumEnvironment) is None


def test_a_highlighted_place_becomes_brackets_and_other_colours_go() -> None:
    coloured = "\n\x1b[41mS\x1b[0mF\n\x1b[34;1mB\x1b[0m\x1b[1mxy\x1b[0m\n"
    assert default_format(3, coloured) == "[S]F\n[B]xy\nobservation: 3"
    assert default_format(3, None) == "observation: 3"


def test_frozen_lake_is_played_to_its_goal_by_named_actions() -> None:
    env = GymnasiumEnvironment(**LAKE, actions=MOVES)
    first = env.reset(TASK, seed=2**62).messages[0].content
    assert "[S]FFF" in first
    assert first.endswith("Answer with one action: left, down, right, up.")
    for action in ("down", " Down ", "right", "right", "down"):
        assert not env.step(action).done
    last = env.step("right")
    assert (last.done, last.reward) == (True, 1.0)
    assert dict(last.metrics) == {"return": 1.0, "steps": 6.0, "invalid": 0.0, "success": 1.0}
    env.close()


def test_an_episode_starts_afresh_at_each_reset() -> None:
    env = GymnasiumEnvironment(**LAKE, actions=MOVES)
    first = env.reset(TASK, seed=3)
    env.step("down")
    env.step("nonsense")
    assert env.reset(TASK, seed=3) == first
    assert dict(env.step("down").metrics) == {
        "return": 0.0,
        "steps": 1.0,
        "invalid": 0.0,
        "success": 0.0,
    }


def test_cliff_walking_reports_its_return_and_no_success_it_does_not_define() -> None:
    env = GymnasiumEnvironment(env="CliffWalking-v1", max_steps=3)
    assert "[" not in env.reset(TASK, seed=0).messages[0].content
    fallen = env.step("1")
    assert (fallen.reward, fallen.done) == (-100.0, False)
    env.step("0")
    last = env.step("0")
    assert last.done
    assert dict(last.metrics) == {"return": -102.0, "steps": 3.0, "invalid": 0.0}


def test_success_can_be_defined_as_a_return() -> None:
    env = GymnasiumEnvironment(env="CliffWalking-v1", max_steps=2, success_return=-2)
    env.reset(TASK, seed=0)
    env.step("0")
    assert dict(env.step("0").metrics)["success"] == 1.0


def test_taxi_keeps_its_own_limit_of_200_steps() -> None:
    env = GymnasiumEnvironment(env="Taxi-v4")
    assert "|" in env.reset(TASK, seed=0).messages[0].content
    results = [env.step("4") for _ in range(200)]
    assert [result.done for result in results] == [False] * 199 + [True]


def test_an_environment_that_cannot_render_text_shows_its_observation() -> None:
    env = GymnasiumEnvironment(env="Blackjack-v1", actions=["stick", "hit"])
    seen = env.reset(TASK, seed=0).messages[0].content
    assert seen.startswith("observation: (")
    assert env.step("stick").done


def test_by_default_an_invalid_answer_ends_the_episode() -> None:
    env = GymnasiumEnvironment(**LAKE, actions=MOVES, invalid_reward=-0.5)
    env.reset(TASK, seed=0)
    last = env.step("fly" * 40)
    assert (last.done, last.reward, dict(last.metrics)["invalid"]) == (True, -0.5, 1.0)
    assert len(shown(last)) < 120


def test_with_retry_an_invalid_answer_moves_nothing_and_names_the_actions() -> None:
    env = GymnasiumEnvironment(**LAKE, actions=MOVES, invalid="retry", max_steps=3)
    env.reset(TASK, seed=0)
    refused = env.step("fly")
    assert not refused.done
    assert "left, down, right, up" in shown(refused)
    assert "[F]HFH" in shown(env.step("down"))
    assert env.step("fly").done


@pytest.fixture
def words_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module that is importable during the test."""
    (tmp_path / "lake_words.py").write_text(
        "def count(text):\n    return len(text.split()) % 4 if text else None\n\n"
        "def state(observation, rendering):\n    return f'state {observation}'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "lake_words"


def test_parser_and_formatter_come_from_import_paths(words_module: str) -> None:
    env = GymnasiumEnvironment(
        **LAKE, action_parser=f"{words_module}:count", formatter=f"{words_module}:state"
    )
    assert env.reset(TASK, seed=0).messages[0].content == "state 0"
    assert shown(env.step("one")) == "state 4"
    assert env.step("").done


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"actions": ["left", "right"]}, "has 4 actions"),
        ({"actions": ["a", "a", "b", "c"]}, "different names"),
        ({"invalid": "ignore"}, "'end' or 'retry'"),
        ({"max_steps": 0}, "at least 1"),
        ({"formatter": "json:nothing"}, "no function"),
        ({"formatter": "json"}, "no function"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GymnasiumEnvironment(**LAKE, **options)


def test_other_action_spaces_ask_for_a_parser() -> None:
    with pytest.raises(ValueError, match="give action_parser"):
        GymnasiumEnvironment(env="Pendulum-v1")
