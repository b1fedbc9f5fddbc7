"""The pure decisions: pauses between tries, the breaker, hedges, what is remembered, answers."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.backends.rewards.calling.answers import own_answer, score_answer, verdict_of
from rollart.backends.rewards.calling.breaker import Breaker
from rollart.backends.rewards.calling.hedging import ENOUGH, KEPT, Hedges
from rollart.backends.rewards.calling.records import Outcome
from rollart.backends.rewards.calling.remembered import Remembered
from rollart.backends.rewards.calling.retries import (
    FIRST_S,
    LEAST_S,
    LONGEST_S,
    GiveUp,
    Retries,
    try_s,
)
from rollart.backends.rewards.platform import RETRIED, Fault, PlatformFault
from rollart.core.errors import FailureKind
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, encode_answer
from rollart.runtimes.sim.loop import run_virtual

GONE = PlatformFault(Fault.UNAVAILABLE, "503")


def test_pauses_double_up_to_a_bound_and_are_jittered_from_zero() -> None:
    of_many = [Retries(f"key-{i}") for i in range(200)]
    for n in range(12):
        drawn = [retries.pause_s(GONE, 1e9) for retries in of_many]
        bound = min(LONGEST_S, FIRST_S * 2**n)
        assert 0.9 * bound < max(drawn) <= bound
        assert min(drawn) < 0.1 * bound


def test_pauses_of_a_key_are_the_same_in_every_process() -> None:
    assert Retries("t#v").pause_s(GONE, 1e9) == Retries("t#v").pause_s(GONE, 1e9)
    assert Retries("t#v").pause_s(GONE, 1e9) != Retries("t#w").pause_s(GONE, 1e9)


@given(
    asked=st.one_of(st.none(), st.floats(0, 100)),
    left=st.floats(-5, 100),
    faults=st.integers(0, 12),
    kind=st.sampled_from(sorted(Fault)),
)
def test_a_pause_is_never_below_what_was_asked_nor_beyond_the_deadline(
    asked: float | None, left: float, faults: int, kind: Fault
) -> None:
    retries = Retries("key")
    for _ in range(faults):
        retries.pause_s(GONE, 1e9)
    fault = PlatformFault(kind, "", retry_after_s=asked)
    hopeless = kind not in RETRIED
    if hopeless or left - (asked or 0.0) < LEAST_S:
        with pytest.raises(GiveUp) as caught:
            retries.pause_s(fault, left)
        assert caught.value.late == (not hopeless)
    else:
        assert (asked or 0.0) <= retries.pause_s(fault, left) < left


def test_a_try_waits_above_the_functions_own_limit_and_never_beyond_the_call() -> None:
    assert 29.9 < try_s(30.0, None) < 30.0
    assert try_s(30.0, 4.0) == 6.0
    assert 4.9 < try_s(5.0, 4.0) < 5.0


def test_a_try_leaves_time_for_a_fallback() -> None:
    assert try_s(30.0, None, fallback=True) == 15.0
    assert try_s(30.0, 4.0, fallback=True) == 6.0
    assert try_s(30.0, 20.0, fallback=True) == 20.0


def test_a_breaker_opens_after_faults_of_calls_in_a_row_and_any_sign_of_life_closes_it() -> None:
    breaker = Breaker(3)
    assert not breaker.failed("a", 1.0)
    assert not breaker.failed("b", 2.0)
    assert breaker.lives(2.5) is None
    opened = [breaker.failed(key, time) for key, time in zip("cdef", (3, 4, 5, 6), strict=True)]
    assert opened == [False, False, True, False]
    assert breaker.is_down
    assert breaker.lives(9.0) == 4.0
    assert not breaker.is_down
    assert breaker.lives(9.0) is None
    assert not breaker.failed("g", 10.0)


def test_faults_of_too_few_calls_cast_doubt_and_its_health_decides() -> None:
    breaker = Breaker(3)
    assert not breaker.silent(0.0)  # nobody doubted it
    assert [breaker.failed("a", float(time)) for time in range(9)] == [False] * 9
    assert breaker.in_doubt
    assert not breaker.is_down
    assert breaker.silent(9.0)
    assert breaker.is_down
    assert not breaker.in_doubt
    assert not breaker.silent(10.0)
    assert breaker.lives(11.0) == 2.0
    assert not breaker.failed("a", 12.0)
    assert not breaker.in_doubt


def test_no_answer_is_a_calls_own_doing_only_if_the_platform_lived_meanwhile() -> None:
    lost = PlatformFault(Fault.LOST, "closed")
    alone = Retries("key")
    for _ in range(20):
        alone.pause_s(lost, 1e9, signs=7)
    alone.was_down()
    for _ in range(3):
        alone.pause_s(lost, 1e9, signs=9)
    with pytest.raises(GiveUp, match="4 of its tries had no answer") as caught:
        alone.pause_s(lost, 1e9, signs=10)
    assert not caught.value.late


def test_hedges_wait_for_the_95th_percentile_and_are_one_call_in_twenty() -> None:
    hedges = Hedges()
    for seconds in range(ENOUGH - 1):
        hedges.answered(float(seconds))
        assert hedges.delay_s is None
    hedges.answered(19.0)
    assert hedges.delay_s == 19.0
    for seconds in range(KEPT):
        hedges.answered(float(seconds))
    assert hedges.delay_s == 190.0
    taken = 0
    for _ in range(1000):
        hedges.began()
        if hedges.left:
            hedges.took()
            taken += 1
    assert taken == 50


def test_verdicts_of_the_latest_keys_are_kept_and_those_used_last_longest() -> None:
    async def main() -> None:
        remembered = Remembered(kept=2)
        outcomes = {
            key: Outcome(verdict=Verdict(score=float(i)), served_by="here")
            for i, key in enumerate("abc")
        }
        remembered.keep("a", outcomes["a"])
        remembered.keep("b", outcomes["b"])
        assert remembered.finished("a") is outcomes["a"]
        remembered.keep("c", outcomes["c"])
        assert remembered.finished("b") is None
        assert remembered.finished("a") is outcomes["a"]

    run_virtual(main)


def test_a_call_that_leads_wakes_those_who_share_it_however_it_ends() -> None:
    async def main() -> None:
        remembered = Remembered()
        for error in (None, asyncio.CancelledError()):
            try:
                with remembered.lead("k") as own:
                    assert remembered.under_way("k") is own
                    if error is not None:
                        raise error
            except asyncio.CancelledError:
                pass
            assert own.ended.done()
            assert remembered.under_way("k") is None

    run_virtual(main)


def answer(**given: object) -> bytes:
    fields: dict[str, object] = {"key": "k", "function": "m:f", "version": "v", "instance": "i"}
    return encode_answer(Answer(**{**fields, **given}))  # type: ignore[arg-type]


def test_an_answer_is_ours_by_key_and_version_and_has_something_to_say() -> None:
    good = answer(verdict=Verdict(score=0.5))
    assert score_answer(good, key="k", version="v").verdict == Verdict(score=0.5)
    assert score_answer(good, key="k", version=None).verdict == Verdict(score=0.5)
    unversioned = answer(version="", verdict=Verdict(score=0.5))
    assert score_answer(unversioned, key="k", version=None).verdict == Verdict(score=0.5)
    for data, key, version, fault in (
        (good, "other", "v", Fault.GARBLED),
        (good, "k", "w", Fault.GARBLED),
        (unversioned, "k", "v", Fault.GARBLED),
        (answer(version="w", error="of another"), "k", "v", Fault.GARBLED),
        (answer(), "k", "v", Fault.GARBLED),
        (b'{"rollart": 1, "key": "k", "verdict": NaN}', "k", "v", Fault.GARBLED),
        (b"<html>", "k", "v", Fault.FOREIGN),
        (b"{}", "k", "v", Fault.FOREIGN),
        (good[:-2], "k", "v", Fault.FOREIGN),
    ):
        with pytest.raises(PlatformFault) as caught:
            score_answer(data, key=key, version=version)
        assert caught.value.fault is fault
    said = score_answer(answer(version="", error="from before it"), key="k", version="v")
    assert said.error == "from before it"
    with pytest.raises(PlatformFault) as caught:
        own_answer(answer(key="x" * 100_000), key="k")
    assert len(str(caught.value)) < 3_000
    with pytest.raises(PlatformFault, match="what it could not read"):
        own_answer(answer(key="", error="what it could not read"), key="k")


def test_no_verdict_is_never_a_number() -> None:
    error = score_answer(answer(error="ValueError: nan"), key="k", version="v")
    assert verdict_of(error).score is None
    assert verdict_of(error).failure is FailureKind.REWARD_ERROR
    undecided = answer(verdict=Verdict(score=None, reason="undecided"))
    given = verdict_of(score_answer(undecided, key="k", version="v"))
    assert (given.score, given.failure) == (None, FailureKind.REWARD_NO_VERDICT)
