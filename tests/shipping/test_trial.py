import pytest

from rollart.core.errors import FailureKind
from rollart.core.scoring.verdict import Verdict
from rollart.shipping.trial import Trial, Tried, difference

GOOD = Verdict(score=0.5)
BROKEN = Verdict(score=None, failure=FailureKind.REWARD_ERROR, reason="ValueError: no")
LATE = Verdict(score=None, failure=FailureKind.REWARD_TIMEOUT, reason="no answer")
DECLINED = Verdict(score=None, failure=FailureKind.REWARD_NO_VERDICT, reason="silent")


def tried(
    verdict: Verdict = GOOD,
    here: Verdict | None = None,
    *,
    seconds: float = 0.1,
    cold: bool = False,
) -> Tried:
    answered = verdict.failure is not FailureKind.REWARD_TIMEOUT
    return Tried(
        sample="s",
        verdict=verdict,
        seconds=seconds,
        function_s=seconds / 2 if answered else None,
        tries=1,
        cold=cold,
        here=here,
    )


def trial(*all_tried: Tried, version: str = "v1", here: str = "") -> Trial:
    return Trial(
        url="u",
        function="m:f",
        version=version,
        here=here,
        here_version="v1" if here else "",
        seconds=1.0,
        tried=all_tried,
    )


def test_a_trial_is_fine_where_all_agree() -> None:
    assert trial(tried(here=GOOD), tried(DECLINED, DECLINED), here="m:f").ok
    assert trial(tried(), tried(DECLINED)).ok


@pytest.mark.parametrize("wrong", [BROKEN, LATE])
def test_an_error_is_counted_by_its_kind_and_never_fine(wrong: Verdict) -> None:
    one = trial(tried(), tried(wrong), tried(wrong, wrong))
    assert not one.ok
    assert one.errors == {str(wrong.failure): 2}


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (Verdict(score=0.5 + 1e-8), GOOD, "score is"),
        (Verdict(score=None, failure=FailureKind.REWARD_NO_VERDICT), GOOD, "no verdict"),
        (BROKEN, DECLINED, "no verdict"),
        (Verdict(score=0.0), DECLINED, "score 0.0 there, no verdict"),
        (
            Verdict(score=0.5, components=(("a", 1.0),)),
            Verdict(score=0.5, components=(("a", 2.0),)),
            "a is 1.0 there, 2.0 here",
        ),
        (Verdict(score=0.5, components=(("a", 1.0),)), GOOD, "other components"),
        (Verdict(score=0.5, turns=(0.5,)), GOOD, "other components or turns"),
        (Verdict(score=0.5, turns=(0.5,)), Verdict(score=0.5, turns=(0.25,)), "turn 0 is"),
    ],
)
def test_verdicts_that_differ_are_told_apart(there: Verdict, here: Verdict, said: str) -> None:
    assert said in difference(there, here)
    assert not trial(tried(there, here), here="m:f").ok


def test_rounding_in_the_last_digits_is_no_difference() -> None:
    assert difference(Verdict(score=0.1 + 0.2), Verdict(score=0.3)) == ""
    assert difference(Verdict(score=1e12 + 1e-4), Verdict(score=1e12)) == ""


def test_another_version_is_not_fine_though_the_verdicts_agree() -> None:
    one = trial(tried(here=GOOD), version="v2", here="m:f")
    assert not one.same_version
    assert not one.ok


def test_latency_is_of_warm_calls_that_were_answered() -> None:
    warm = [tried(seconds=number / 100) for number in range(1, 101)]
    one = trial(*warm, tried(seconds=9.0, cold=True), tried(LATE, seconds=30.0))
    assert (one.latency_s(0.5), one.latency_s(0.99)) == (0.5, 0.99)
    assert one.cold_s == [9.0]
    assert trial(tried(seconds=9.0, cold=True)).latency_s(0.5) == 9.0
    assert trial().latency_s(0.5) is None
