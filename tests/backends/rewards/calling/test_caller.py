"""The loop of a call: what is tried again, what is final, and that only its own answer counts."""

import asyncio
from typing import Any

import pytest

from rollart.core.errors import FailureKind
from rollart.core.scoring.wire import Request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import ANSWERS, Act, Play

UNAVAILABLE = Act(fault="unavailable")
HANGS = Act(seconds=1e6)


def now() -> float:
    return asyncio.get_running_loop().time()


def in_turn(*acts: Act) -> Play:
    """The n-th request gets the n-th act, all later ones are answered."""
    return lambda n, time, request: acts[n] if n < len(acts) else ANSWERS


def test_after_503_and_503_comes_the_right_verdict(rig: Any) -> None:
    async def main() -> None:
        made = rig(in_turn(UNAVAILABLE, UNAVAILABLE))
        outcome = await made.score(value=0.75)
        assert outcome.verdict.score == 0.75
        assert outcome.tries == made.requests == 3
        assert 0 < outcome.waited_s == now()  # all of it was pauses between tries
        assert outcome.served_by == "http://here/score"
        assert outcome.instance == "scripted"

    run_virtual(main)


@pytest.mark.parametrize("fault", ["refused", "too_large", "garbled"])
def test_what_no_other_try_mends_is_tried_once_and_has_no_verdict(rig: Any, fault: str) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(fault=fault))
        outcome = await made.score()
        assert outcome.verdict.score is None
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert fault in outcome.verdict.reason
        assert made.requests == outcome.tries == 1
        assert now() == 0

    run_virtual(main)


def test_an_error_of_the_function_is_final_and_an_error(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(error="ValueError: a reward returned nan"))
        outcome = await made.score()
        assert outcome.verdict.score is None
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert "returned nan" in outcome.verdict.reason
        assert made.requests == 1

    run_virtual(main)


def test_a_verdict_of_nan_or_text_from_a_careless_function_is_an_error(rig: Any) -> None:
    wire = '{"rollart": 1, "key": "t#0123456789abcdef", "function": "m:f", "verdict": %s}'
    for said in ('"good"', "NaN", "1e999", '{"score": "1"}', "true", "[1]"):

        async def main(said: str = said) -> None:
            made = rig(lambda n, time, request: Act(data=(wire % said).encode()))
            outcome = await made.score()
            assert outcome.verdict.score is None, said
            assert outcome.verdict.failure is FailureKind.REWARD_ERROR
            assert outcome.verdict.reason
            assert made.requests == 1

        run_virtual(main)


def test_a_crash_is_tried_again_twice_and_no_more(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(fault="crashed"))
        outcome = await made.score()
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert "crashed 3 times" in outcome.verdict.reason
        assert made.requests == 3
        crash = Act(fault="crashed")
        assert (await rig(in_turn(crash, crash)).score(value=0.5)).verdict.score == 0.5

    run_virtual(main)


def lost_once(n: int, time: float, request: Request) -> Act:
    """One trajectory takes its server with it; the others are answered."""
    return Act(seconds=0.01, fault="lost") if request.key.startswith("poison") else ANSWERS


def test_no_answer_is_the_calls_own_crash_while_others_are_answered(rig: Any) -> None:
    async def main() -> None:
        for fault in ("lost", "foreign"):
            poisoned = Act(seconds=0.01, fault=fault)
            made = rig(
                lambda n, time, request, act=poisoned: (
                    act if request.key.startswith("poison") else ANSWERS
                )
            )
            call = asyncio.ensure_future(made.score("poison"))
            while not call.done():
                assert (await made.score(f"good-{now()}", value=0.5)).verdict.score == 0.5
                await asyncio.sleep(0.01)
            outcome = await call
            assert outcome.verdict.failure is FailureKind.REWARD_ERROR
            assert "3 of its tries had no answer" in outcome.verdict.reason
            assert outcome.tries == 3
            assert made.states == []

    run_virtual(main)


def test_a_call_alone_that_takes_its_server_with_it_is_told_by_the_servers_health(rig: Any) -> None:
    async def main() -> None:
        made = rig(lost_once, breaker_failures=5)
        outcome = await made.score("poison")
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert outcome.tries == 6  # five cast doubt on the platform; its health is well
        assert len(made.platform.health_times) == 1
        assert made.states == []

    run_virtual(main)


def test_of_time_outs_the_first_is_told_whose_try_had_its_whole_time(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=1e6), function_s=2.0)
        outcome = await made.score(seconds=10.0)
        assert outcome.tries > 2
        assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert "no answer within 3.5 s" in outcome.verdict.reason  # 1.25 times 2 s, and 1 s

    run_virtual(main)


def test_a_pause_that_was_asked_for_once_is_not_asked_for_again(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        first = Act(fault="timeout", retry_after_s=20.0)
        return (first, Act(seconds=1e6), ANSWERS)[min(n, 2)]

    async def main() -> None:
        made = rig(play, function_s=2.0)
        outcome = await made.score(seconds=40.0, value=0.5)  # 16 s are left for the third try
        assert (outcome.verdict.score, outcome.tries) == (0.5, 3)

    run_virtual(main)


def test_503_until_the_deadline_is_a_timeout_that_names_the_last_fault(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: UNAVAILABLE, breaker_failures=1000)
        outcome = await made.score(seconds=20.0)
        assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert "unavailable: as scripted" in outcome.verdict.reason
        assert 19.9 < now() <= 20.0
        assert made.requests > 5

    run_virtual(main)


def test_200_calls_outlast_a_storm_of_429_under_one_limiter(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        left = 90.0 - time
        if left > 0:
            return Act(seconds=0.05, fault="throttled", retry_after_s=min(left, 7.0))
        return Act(seconds=0.5)

    async def main() -> None:
        made = rig(play, concurrency=16)
        calls = (made.score(f"t{i}", 600.0, value=float(i)) for i in range(200))
        outcomes = await asyncio.gather(*calls)
        assert [outcome.verdict.score for outcome in outcomes] == [float(i) for i in range(200)]
        assert made.platform.seen.most == 16
        assert 90.0 < now() < 130.0
        # Retry-After pauses all: a storm of 90 s is asked about once in 7 s by each place.
        assert made.requests < 200 + 16 * (90 / 7 + 2)
        assert all(outcome.waited_s > 85 for outcome in outcomes)

    run_virtual(main)


def test_a_retry_after_beyond_the_deadline_ends_the_call_at_once(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(fault="throttled", retry_after_s=60.0))
        outcome = await made.score(seconds=30.0)
        assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert "asks to wait 60 s" in outcome.verdict.reason
        assert made.requests == 1
        other = await made.score("other", seconds=30.0)  # the platform is paused for all
        assert other.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert made.requests == 1
        assert now() == 0

    run_virtual(main)


def test_with_a_fallback_a_pause_beyond_the_deadline_is_not_waited_for(rig: Any) -> None:
    async def main() -> None:
        other = rig(url="local://reward:score")
        made = rig(
            lambda n, time, request: (
                Act(seconds=1.0, fault="throttled", retry_after_s=60.0) if n == 0 else ANSWERS
            ),
            concurrency=1,
            fallback=other.caller,
        )
        calls = (made.score(name, seconds=30.0, value=0.5) for name in ("first", "queued"))
        for outcome in await asyncio.gather(*calls):
            assert outcome.verdict.score == 0.5
            assert outcome.served_by == "local://reward:score"
        assert now() == 1.0  # who waited for a place has gone, too
        assert (await made.score("next", seconds=30.0)).served_by == "local://reward:score"
        patient = await made.score("patient", seconds=90.0)
        assert patient.served_by == "http://here/score"
        assert now() == 61.0
        assert made.states == []  # it is not down

    run_virtual(main)


def test_calls_after_a_pause_are_served_and_who_waited_for_a_place_hears_of_it(rig: Any) -> None:
    async def main() -> None:
        made = rig(in_turn(Act(seconds=1.0, fault="throttled", retry_after_s=300.0)), concurrency=1)
        calls = (made.score(name, seconds=30.0) for name in ("first", "queued"))
        first, queued = await asyncio.gather(*calls)
        assert "asks to wait 300 s" in first.verdict.reason
        assert "the platform asks all its callers to wait" in queued.verdict.reason
        await asyncio.sleep(301.0 - now())
        assert (await made.score("after", seconds=1.0, value=0.5)).verdict.score == 0.5

    run_virtual(main)


def test_a_try_waits_a_little_longer_than_the_function_may_take(rig: Any) -> None:
    async def main() -> None:
        made = rig(in_turn(HANGS), function_s=2.0)
        outcome = await made.score(value=0.25)
        assert outcome.verdict.score == 0.25
        assert outcome.tries == 2
        assert 3.5 <= now() < 3.7  # 2 s * 1.25 + 1 s, and a short pause

    run_virtual(main)


def test_a_late_answer_of_a_try_given_up_is_ignored(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        return Act(seconds=30.0, score=0.111, stubborn=True) if n == 0 else ANSWERS

    async def main() -> None:
        made = rig(play, function_s=2.0)
        outcome = await made.score(seconds=60.0, value=0.5)
        assert outcome.verdict.score == 0.5
        again = await made.score(seconds=60.0, value=0.5)
        assert again.verdict == outcome.verdict
        assert made.requests == 2

    run_virtual(main)


def test_a_call_ends_by_its_deadline_though_its_try_hangs(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: HANGS)
        outcome = await made.score(seconds=7.0)
        assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert outcome.tries == 1
        assert 6.9 < now() <= 7.0
        assert made.platform.seen.under_way == 0

    run_virtual(main)


def test_a_replayed_key_is_given_the_same_verdict_and_asks_nobody(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=1.0, score=float(n)))
        first = await made.score()
        again = await made.score()
        assert first.verdict == again.verdict
        assert first.verdict.score == 0.0
        assert (first.tries, again.tries) == (1, 0)
        assert made.requests == 1

    run_virtual(main)


def test_calls_of_one_key_share_the_one_under_way(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=1.0, score=float(n)))
        outcomes = await asyncio.gather(*(made.score() for _ in range(5)))
        assert {outcome.verdict.score for outcome in outcomes} == {0.0}
        assert sum(outcome.tries for outcome in outcomes) == made.requests == 1

    run_virtual(main)


def test_who_shares_a_call_that_is_cancelled_asks_anew(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=1.0))
        leads, shares = (asyncio.ensure_future(made.score(value=0.5)) for _ in range(2))
        await asyncio.sleep(0.5)
        leads.cancel()
        assert (await shares).verdict.score == 0.5
        assert now() == 1.5
        assert made.requests == 2

    run_virtual(main)


def test_who_shares_a_call_keeps_its_own_deadline(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=5.0))
        long = asyncio.ensure_future(made.score(seconds=30.0, value=0.5))
        await asyncio.sleep(0)
        short = await made.score(seconds=2.0)
        assert short.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert now() == 2.0
        assert (await long).verdict.score == 0.5

    run_virtual(main)


def test_who_outlives_the_call_it_shares_goes_on_alone(rig: Any) -> None:
    async def main() -> None:
        made = rig(in_turn(HANGS))
        short = asyncio.ensure_future(made.score(seconds=2.0))
        await asyncio.sleep(0)
        long = await made.score(seconds=30.0, value=0.5)
        assert (await short).verdict.failure is FailureKind.REWARD_TIMEOUT
        assert long.verdict.score == 0.5
        assert 1.9 < now() <= 2.0

    run_virtual(main)


def test_a_swapped_answer_is_nobodys_verdict(rig: Any) -> None:
    def swapped(n: int, time: float, request: Request) -> Act:
        other = {"a": "b", "b": "a"}[request.key.partition("#")[0]]
        return Act(seconds=0.5, key=request.key.replace(request.key[0], other, 1), score=0.9)

    async def main() -> None:
        made = rig(swapped)
        for outcome in await asyncio.gather(made.score("a"), made.score("b")):
            assert outcome.verdict.score is None
            assert outcome.verdict.failure is FailureKind.REWARD_ERROR
            assert "garbled" in outcome.verdict.reason

    run_virtual(main)


def test_an_answer_of_another_version_is_refused(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(version="feedfeedfeedfeed"))
        outcome = await made.score()
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert "feedfeedfeedfeed" in outcome.verdict.reason
        none = b'{"rollart": 1, "key": "t#0123456789abcdef", "function": "m:f", "verdict": 1}'
        outcome = await rig(lambda n, time, request: Act(data=none)).score()
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert "without version" in outcome.verdict.reason
        any_version = rig(lambda n, time, request: Act(version="feed"), function_version=None)
        assert (await any_version.score(value=0.5)).verdict.score == 0.5

    run_virtual(main)


def test_an_answer_with_neither_verdict_nor_error_is_no_zero(rig: Any) -> None:
    data = b'{"rollart": 1, "key": "t#0123456789abcdef", "function": "m:f"}'

    async def main() -> None:
        outcome = await rig(lambda n, time, request: Act(data=data)).score()
        assert outcome.verdict.score is None
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR

    run_virtual(main)


def test_a_function_that_gives_no_verdict_is_taken_at_its_word(rig: Any) -> None:
    wire = (
        b'{"rollart": 1, "key": "t#0123456789abcdef", "function": "m:f", '
        b'"version": "0123456789abcdef", '
        b'"verdict": {"score": null, "reason": "the judge is undecided"}}'
    )

    async def main() -> None:
        made = rig(lambda n, time, request: Act(data=wire))
        for tries in (1, 0):  # it is an answer: the same key has the same again
            outcome = await made.score()
            assert outcome.verdict.failure is FailureKind.REWARD_NO_VERDICT
            assert outcome.verdict.reason == "the judge is undecided"
            assert outcome.tries == tries

    run_virtual(main)


def test_a_payload_that_is_no_json_is_told_and_never_sent(rig: Any) -> None:
    async def main() -> None:
        made = rig()
        for value in (float("nan"), {1, 2}):
            outcome = await made.score(give=value)
            assert outcome.verdict.failure is FailureKind.REWARD_ERROR
            assert "no JSON" in outcome.verdict.reason
        assert made.requests == 0

    run_virtual(main)


def test_an_error_in_a_platforms_own_code_costs_one_call_and_is_told(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        raise ZeroDivisionError("in the platform's own code")

    async def main() -> None:
        outcome = await rig(play).score()
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        assert "ZeroDivisionError" in outcome.verdict.reason

    run_virtual(main)


@pytest.mark.parametrize("when", [0.5, 1.5, 2.2])
def test_a_cancelled_call_leaves_nothing_behind(rig: Any, when: float) -> None:
    """In a try; while the platform pauses it; waiting for a place."""

    def play(n: int, time: float, request: Request) -> Act:
        return Act(seconds=1.0, fault="throttled", retry_after_s=1.0) if n == 0 else HANGS

    async def main() -> None:
        made = rig(play, concurrency=1)
        calls = [asyncio.ensure_future(made.score(f"t{i}")) for i in range(3)]
        await asyncio.sleep(when)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert now() == when
        assert all(call.cancelled() for call in calls)
        assert made.platform.seen.under_way == 0
        assert made.limiter.free == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_close_ends_calls_wherever_they_wait(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: HANGS, concurrency=2)
        calls = [asyncio.ensure_future(made.score(f"t{i}")) for i in range(4)]
        await asyncio.sleep(1.0)
        await made.caller.close()
        for outcome in await asyncio.gather(*calls):
            assert outcome.verdict.failure is FailureKind.REWARD_ERROR
            assert "closed" in outcome.verdict.reason
        after = await made.score("after")
        assert after.verdict.score is None
        assert made.platform.closed
        await made.caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert now() == 1.0

    run_virtual(main)


def test_the_same_calls_take_the_same_times_again(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        return UNAVAILABLE if n % 3 else ANSWERS

    async def main() -> list[float]:
        made = rig(play, breaker_failures=1000)
        ends: list[float] = []

        async def one(i: int) -> None:
            await made.score(f"t{i}")
            ends.append(now())

        await asyncio.gather(*map(one, range(30)))
        return ends

    times = run_virtual(main)
    assert times == run_virtual(main)
    assert len(set(times)) > 10  # jitter spreads them
