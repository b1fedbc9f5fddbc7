"""GEM's environments behind the adapter, and what is said where GEM is missing."""

import importlib.util
import random
import subprocess
import sys
from itertools import islice
from typing import Any

import pytest

from rollart.core.authoring import environment_misfit
from rollart.core.types import StepResult, Task

real = [
    pytest.mark.real,
    pytest.mark.skipif(
        importlib.util.find_spec("gem") is None, reason="pip install --no-deps gem-llm==0.1.0"
    ),
]
GUESS = "game:GuessTheNumber-v0-easy"


@pytest.fixture(scope="module")
def environment() -> Any:
    """The adapter's class; importing it imports GEM."""
    from rollart.backends.envs.gem import GemEnvironment

    return GemEnvironment


def task(**payload: int) -> Task:
    return Task(domain="gem", key="t", payload=payload)


def said(result: StepResult) -> str:
    return result.observation.messages[0].content


def play(guess: Any, seed: int) -> tuple[StepResult, int]:
    """Halve the interval; the last result and the number of guesses."""
    guess.reset(task(seed=seed), 0)
    low, high, guesses = 1, 10, 0
    while True:
        middle = (low + high) // 2
        result = guess.step(f"I say \\boxed{{{middle}}}")
        guesses += 1
        if result.done:
            return result, guesses
        low, high = (low, middle - 1) if "is lower" in said(result) else (middle + 1, high)


def test_without_gem_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['gem'] = None; import rollart.backends.envs.gem"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install --no-deps gem-llm==0.1.0" in done.stderr.splitlines()[-1]


class TestReal:
    """With GEM installed."""

    pytestmark = real

    def test_guess_the_number_is_won_by_halving(self, environment: Any) -> None:
        assert environment_misfit(environment) is None
        guess = environment(env=GUESS)
        assert "between 1 and 10" in guess.reset(task(seed=2), 0).messages[0].content
        for seed in range(0, 40, 2):
            result, guesses = play(guess, seed)
            assert guesses <= 4
            assert dict(result.metrics) == {"return": 1.0, "steps": guesses, "success": 1.0}
        guess.reset(task(seed=2), 0)
        bad = guess.step("seven")
        assert (bad.done, bad.reward, dict(bad.metrics)["success"]) == (True, -0.1, 0.0)

    def test_a_hint_comes_with_the_request_for_the_next_guess(self, environment: Any) -> None:
        guess = environment(env=GUESS)
        guess.reset(task(seed=2), 0)
        hints = {said(guess.step(f"\\boxed{{{number}}}")) for number in (1, 10)}
        assert all(hint.endswith("Enter your next guess.") for hint in hints)

    def test_arithmetic_is_made_from_the_seed_and_judged_in_its_box(self, environment: Any) -> None:
        sums = environment(
            env="rg:basic_arithmetic",
            kwargs={"max_terms": 2, "max_digits": 1, "operators": ["+"], "allow_negation": False},
        )
        questions = set()
        for seed in range(20):
            text = sums.reset(task(seed=seed), 5).messages[0].content
            questions.add(text)
            assert text.endswith("Put your final answer inside \\boxed{}.")
            again = environment(env="rg:basic_arithmetic", kwargs=sums._kwargs)
            assert again.reset(task(seed=seed), 6).messages[0].content == text
            right = sums._env.data["answer"]
            result = sums.step(f"It is \\boxed{{{right}}}.")
            assert (result.done, result.reward, dict(result.metrics)["success"]) == (True, 1.0, 1.0)
            wrong = again.step("\\boxed{123456}")
            assert (wrong.done, dict(wrong.metrics)["success"]) == (True, 0.0)
        assert len(questions) > 10

    def test_neighbours_in_one_process_do_not_disturb_each_others_chance(
        self, environment: Any
    ) -> None:
        def told(disturb: int) -> list[str]:
            random.seed(disturb)
            game, other = environment(env="game:Game2048-v0-easy"), environment(env=GUESS)
            texts = [game.reset(task(seed=8), 0).messages[0].content]
            for number in range(12):
                if disturb:
                    other.reset(task(seed=disturb + number), 0)
                texts.append(said(game.step(f"\\boxed{{{('up', 'left')[number % 2]}}}")))
            return texts

        assert len(set(told(0))) > 6
        assert told(0) == told(1) == told(2)
        random.seed(5)
        before = random.getstate()
        environment(env=GUESS).reset(task(seed=1), 0)
        assert random.getstate() == before

    def test_heldout_seeds_are_never_trained_on(self, environment: Any) -> None:
        training = [one["seed"] for one in islice(environment.train_tasks(1, env=GUESS), 1000)]
        heldout = [one["seed"] for one in environment.heldout_tasks(200, 1, env=GUESS)]
        assert len(set(heldout)) == 200
        assert not set(training) & set(heldout)
        assert {seed % 2 for seed in training} == {0}
        assert {seed % 2 for seed in heldout} == {1}

    def test_an_unknown_id_is_refused_with_ids_like_it(self, environment: Any) -> None:
        with pytest.raises(ValueError, match="try game:GuessTheNumber-v0-"):
            environment(env="game:GuessTheNumber")
        with pytest.raises(RuntimeError, match="step before reset"):
            environment(env=GUESS).step("\\boxed{1}")
