from itertools import islice
from typing import Any

import pytest

from rollart.backends.envs.letter_shift import LETTERS, LetterShift, shifted, vocabulary
from rollart.core.authoring import environment_misfit
from rollart.core.types import Task

MESSAGE = "ACDBBADC"
ANSWER = "b d a c c b a d"


def task(message: Any = MESSAGE) -> Task:
    return Task(domain="LetterShift", key="t", payload={"message": message})


def asked(message: str = MESSAGE, **options: Any) -> LetterShift:
    environment = LetterShift(**options)
    environment.reset(task(message), seed=0)
    return environment


def test_it_fits_the_environment_protocol() -> None:
    assert environment_misfit(LetterShift) is None


def test_the_question_is_the_message_a_word_a_letter() -> None:
    (message,) = LetterShift().reset(task(), seed=1).messages
    assert (message.role, message.content) == ("user", "A C D B B A D C")


def test_the_successor_of_every_letter_is_right_and_ends_the_episode() -> None:
    result = asked().step(ANSWER)
    assert (result.done, result.reward) == (True, 1.0)
    assert dict(result.metrics) == {"success": 1.0, "exact": 1.0, "invalid": 0.0}


def test_credit_is_the_share_of_letters_that_are_right_in_their_place() -> None:
    result = asked().step("b d a c c b d a")
    assert result.reward == 0.75
    assert dict(result.metrics) == {"success": 0.75, "exact": 0.0, "invalid": 0.0}


@pytest.mark.parametrize(
    ("answer", "misplaced"),
    [
        ("", 1.0),
        ("b d a c c b a", 1 / 8),
        (f"{ANSWER} a", 1 / 9),
        (ANSWER.upper(), 1.0),
        ("b d a c c b a 1", 1 / 8),
        ("b d a c c b a bc", 1 / 8),
        ("bdaccbad", 1.0),
    ],
)
def test_an_answer_of_another_form_has_a_price_by_the_places_without_a_letter(
    answer: str, misplaced: float
) -> None:
    result = asked(invalid_reward=-0.5).step(answer)
    assert result.done
    assert result.reward == pytest.approx(-0.5 * misplaced)
    assert dict(result.metrics) == {"success": 0.0, "exact": 0.0, "invalid": 1.0}


def test_no_valid_answer_is_shorter_than_eight_tokens() -> None:
    for payload in islice(LetterShift.train_tasks(0), 100):
        environment = asked(str(payload["message"]))
        short = " ".join(shifted(str(payload["message"]))[:7])
        assert dict(environment.step(short).metrics)["invalid"] == 1.0
        assert len(str(payload["message"])) == 8


def test_every_fixed_answer_expects_one_letter_in_four() -> None:
    messages = [str(p["message"]) for p in LetterShift.heldout_tasks(512, 0)]
    for answer in ("a a a a a a a a", "a b c d a b c d", "d d c c b b a a"):
        rewards = [asked(message).step(answer).reward or 0.0 for message in messages]
        assert sum(rewards) / len(rewards) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("message", [None, 3, "", "abcd", "ABCE"])
def test_a_task_without_a_message_is_refused_with_an_example(message: object) -> None:
    with pytest.raises(ValueError, match=MESSAGE):
        LetterShift().reset(task(message), seed=0)


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset the environment"):
        LetterShift().step(ANSWER)


def test_an_impossible_length_is_refused_with_a_valid_value() -> None:
    with pytest.raises(ValueError, match="for example 8"):
        LetterShift(length=0)


def test_the_vocabulary_holds_questions_and_answers_apart() -> None:
    assert set(vocabulary()) == {*LETTERS, *LETTERS.upper()}
    assert len(vocabulary()) == 8


def test_tasks_for_training_and_evaluation_share_no_message() -> None:
    held_out = {str(p["message"]) for p in LetterShift.heldout_tasks(300, 0, invalid_reward=-1.0)}
    trained = {str(p["message"]) for p in islice(LetterShift.train_tasks(0), 3000)}
    assert len(held_out) == 300
    assert not trained & held_out
    assert all(len(str(p["message"])) == 12 for p in LetterShift.heldout_tasks(9, 0, length=12))


def test_more_heldout_messages_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="ask for at most"):
        LetterShift.heldout_tasks(200, 0, length=2)


def test_baselines_need_no_understanding_and_score_near_chance() -> None:
    measured = LetterShift.baselines(LetterShift.heldout_tasks(512, 0), length=8)
    assert set(measured) == {"best fixed answer", "random letters", "the message copied"}
    assert measured["the message copied"] == 0.0
    assert 0.22 < measured["random letters"] < 0.28
    assert 0.25 < measured["best fixed answer"] < 0.3


def test_the_best_fixed_answer_is_exact_on_a_single_task() -> None:
    assert LetterShift.baselines([{"message": "ACDB"}])["best fixed answer"] == 1.0


def test_baselines_without_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        LetterShift.baselines([])
