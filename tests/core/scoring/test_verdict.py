import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.scoring.verdict import Verdict, as_verdict, verdict_from_json, verdict_to_json

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(1), np.array(0.5)])
def test_any_number_is_a_score(value: object) -> None:
    assert as_verdict(value) == Verdict(score=float(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1", b"1", None, True, [1.0], object(), {"score": 1}])
def test_what_is_no_number_is_refused_and_never_a_zero(value: object) -> None:
    with pytest.raises(TypeError, match="return a float or a rollart Verdict"):
        as_verdict(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), 10**400])
def test_what_is_not_finite_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="return a finite number"):
        as_verdict(value)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(score=math.nan),
        Verdict(score=1.0, components=(("part", math.inf),)),
        Verdict(score=1.0, turns=(math.nan,)),
    ],
)
def test_a_verdict_of_numbers_that_are_none_is_refused(verdict: Verdict) -> None:
    with pytest.raises(ValueError, match="finite"):
        as_verdict(verdict)


def test_rewards_of_turns_are_summed_where_there_is_no_score() -> None:
    assert as_verdict(Verdict(score=None, turns=(0.5, 0.25))).score == 0.75
    assert as_verdict(Verdict(score=2.0, turns=(0.5, 0.25))).score == 2.0


def test_a_reason_without_a_score_stays_no_verdict_whatever_the_turns_say() -> None:
    declined = Verdict(score=None, turns=(0.5,), reason="the judge was silent")
    assert as_verdict(declined) == declined


def test_numbers_of_numpy_within_a_verdict_become_json_too() -> None:
    half = np.float32(0.5)
    given = Verdict(score=half, components=(("part", half),), turns=(half,))  # type: ignore[arg-type]
    assert json.loads(json.dumps(verdict_to_json(as_verdict(given))))["turns"] == [0.5]


def test_components_may_be_given_as_a_table() -> None:
    given = Verdict(score=1.0, components={"ab": 1})  # type: ignore[arg-type]
    assert as_verdict(given).components == (("ab", 1.0),)


def test_a_reason_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a reason is text"):
        as_verdict(Verdict(score=None, reason=b"bytes"))  # type: ignore[arg-type]


@given(
    st.builds(
        Verdict,
        score=st.none() | finite,
        components=st.dictionaries(st.text(), finite).map(lambda parts: tuple(parts.items())),
        turns=st.lists(finite).map(tuple),
        reason=st.text(min_size=1),
    )
)
def test_a_verdict_comes_back_from_json_as_it_was(verdict: Verdict) -> None:
    assert verdict_from_json(verdict_to_json(verdict)) == verdict


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": "high"},
        {"score": 1.0, "scores": 2},
        {"score": 1.0, "components": [1]},
        {"score": 1.0, "components": {"a": "b"}},
        {"score": 1.0, "turns": "12"},
        {"score": 1.0, "reason": 3},
        {"score": 10**400},
        "0.5",
        None,
    ],
)
def test_json_that_is_no_verdict_is_refused(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        verdict_from_json(wrong)


def test_a_function_in_any_language_may_answer_a_number() -> None:
    assert verdict_from_json(0.25) == Verdict(score=0.25)
