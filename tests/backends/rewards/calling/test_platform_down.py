"""A platform that is gone: calls wait or go elsewhere, and none is lost."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.watch import Watch
from rollart.backends.rewards.platform import PlatformFault
from rollart.core.errors import FailureKind
from rollart.core.scoring.wire import Request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import ANSWERS, Act, Play

GONE = Act(seconds=0.01, fault="unavailable")


def now() -> float:
    return asyncio.get_running_loop().time()


def gone_until(end: float) -> tuple[Play, Callable[[float], Act]]:
    """What scores and health calls meet."""
    return (
        lambda n, time, request: GONE if time < end else Act(seconds=0.2),
        lambda time: GONE if time < end else ANSWERS,
    )


async def arrivals(made: Any, count: int, every_s: float, seconds: float) -> list[Any]:
    """Calls that come one after another."""

    async def one(i: int) -> Any:
        await asyncio.sleep(i * every_s)
        return await made.score(f"t{i}", seconds, value=float(i))

    return await asyncio.gather(*map(one, range(count)))


def test_an_endpoint_gone_for_60_s_loses_nothing(rig: Any) -> None:
    async def main() -> None:
        play, health = gone_until(60.0)
        made = rig(play, health=health, concurrency=8)
        outcomes = await arrivals(made, 120, 0.5, 120.0)
        assert [outcome.verdict.score for outcome in outcomes] == [float(i) for i in range(120)]
        assert {outcome.served_by for outcome in outcomes} == {"http://here/score"}
        assert made.requests < 120 + 20  # who waits does not ask
        down, up = made.states
        assert (down.down, up.down) == (True, False)
        assert "unavailable" in down.reason
        assert down.fallback == ""
        assert 55.0 < up.down_s < 75.0
        asked = made.platform.health_times
        assert all(after - before > 9.9 for before, after in pairwise(asked))
        assert made.platform.seen.most <= 8
        await made.caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


class WakesNobody(Watch):
    """Forgets who waits when the platform is up again."""

    def _turns(self) -> None:
        self.turn = asyncio.get_running_loop().create_future()


class AsksOnce(Watch):
    """Gives up on a platform that is still down when it is asked for its health."""

    async def _probe(self) -> None:
        await asyncio.sleep(10.0)
        await self._probe_once(10.0)


class HasNoBreaker(Watch):
    def _goes_down(self, fault: PlatformFault) -> None:
        self._breaker.lives(now())


@pytest.mark.parametrize("kind", [WakesNobody, AsksOnce, HasNoBreaker])
def test_a_watch_with_a_planted_bug_loses_calls_or_storms(rig: Any, kind: type[Watch]) -> None:
    class Watched(Caller):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._watch.__class__ = kind

    async def main() -> None:
        play, health = gone_until(60.0)
        made = rig(play, health=health, concurrency=8, kind=Watched)
        outcomes = await arrivals(made, 120, 0.5, 120.0)
        lost = sum(outcome.verdict.score is None for outcome in outcomes)
        assert lost > 50 or made.requests > 500

    run_virtual(main)


def test_with_a_fallback_nothing_waits_for_an_endpoint_that_is_gone(rig: Any) -> None:
    async def main() -> None:
        play, health = gone_until(60.0)
        other = rig(url="local://reward:score")
        made = rig(play, health=health, fallback=other.caller)
        outcomes = await arrivals(made, 140, 0.5, 30.0)
        assert [outcome.verdict.score for outcome in outcomes] == [float(i) for i in range(140)]
        served = [outcome.served_by for outcome in outcomes]
        assert set(served) == {"http://here/score", "local://reward:score"}
        assert served[-1] == "http://here/score"  # it is back
        assert made.states[0].fallback == "local://reward:score"
        assert [state.down for state in made.states] == [True, False]
        late = max(outcome.waited_s for outcome in outcomes[10:])
        assert late < 0.1
        await made.caller.close()
        assert other.platform.closed

    run_virtual(main)


def test_calls_that_wait_for_a_place_go_to_the_fallback_at_once(rig: Any) -> None:
    async def main() -> None:
        other = rig(url="local://reward:score")
        hang = Act(seconds=1e6)
        fails = [hang, hang, GONE, GONE]
        made = rig(
            lambda n, time, request: fails[n] if n < 4 else GONE,
            health=lambda time: GONE,
            fallback=other.caller,
            concurrency=3,
            breaker_failures=2,
        )
        outcomes = await arrivals(made, 8, 0.0, 50.0)
        good = [outcome for outcome in outcomes if outcome.verdict.score is not None]
        assert len(good) == 8  # the two whose try hangs have half of their time there
        assert made.requests == 4
        await made.caller.close()

    run_virtual(main)


def test_a_platform_that_never_answers_is_down_and_loses_nothing_beside_a_fallback(
    rig: Any,
) -> None:
    async def main() -> None:
        other = rig(url="local://reward:score")
        made = rig(
            lambda n, time, request: Act(seconds=1e6),
            health=lambda time: Act(seconds=1e6),
            fallback=other.caller,
            breaker_failures=5,
        )
        outcomes = await arrivals(made, 20, 1.0, 10.0)
        assert all(outcome.verdict.score is not None for outcome in outcomes)
        assert made.requests < 20
        await made.caller.close()

    run_virtual(main)


def test_a_platform_that_never_answers_counts_as_down_without_a_fallback_too(rig: Any) -> None:
    async def main() -> None:
        made = rig(
            lambda n, time, request: Act(seconds=1e6),
            health=lambda time: Act(seconds=1e6),
            breaker_failures=5,
        )
        outcomes = await arrivals(made, 8, 0.0, 3.0)
        assert {o.verdict.failure for o in outcomes} == {FailureKind.REWARD_TIMEOUT}
        assert [state.down for state in made.states] == [True]
        await made.caller.close()

    run_virtual(main)


def test_the_figures_of_a_call_that_went_elsewhere_are_those_of_both(rig: Any) -> None:
    async def main() -> None:
        other = rig(lambda n, time, request: Act(seconds=2.0), url="local://reward:score")
        made = rig(
            lambda n, time, request: Act(seconds=1.0, fault="unavailable"),
            health=lambda time: GONE,
            fallback=other.caller,
            breaker_failures=2,
        )
        outcome = await made.score(value=0.5)
        assert outcome.verdict.score == 0.5
        assert outcome.tries == 3
        assert outcome.function_s == 2.0
        assert 0 < outcome.waited_s < 0.3
        assert now() == 1.0 + 1.0 + 2.0 + outcome.waited_s
        await made.caller.close()

    run_virtual(main)


def test_calls_that_wait_end_by_their_deadlines_and_say_why(rig: Any) -> None:
    async def main() -> None:
        play, health = gone_until(1e9)
        made = rig(play, health=health)
        outcomes = await arrivals(made, 20, 0.1, 25.0)
        for outcome in outcomes:
            assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
            assert "the platform is down" in outcome.verdict.reason
        assert now() < 19 * 0.1 + 25.0 + 1e-6
        await made.caller.close()

    run_virtual(main)


def test_one_health_call_at_a_time_is_asked_and_calls_go_on_when_it_is_answered(rig: Any) -> None:
    def health(time: float) -> Act:
        return Act(seconds=1e6) if time < 100 else ANSWERS

    async def main() -> None:
        made = rig(
            lambda n, time, request: GONE if n < 3 else ANSWERS, health=health, breaker_failures=3
        )
        for outcome in await arrivals(made, 3, 0.0, 600.0):
            assert outcome.verdict.score is not None
        # Each try at its health takes breaker_s to time out, and as long lies between.
        assert len(made.platform.health_times) == 6
        went_down = made.platform.seen.times[2] + GONE.seconds
        assert made.states[-1].down_s == now() - went_down
        gaps = [after - before for before, after in pairwise(made.platform.health_times)]
        assert gaps == pytest.approx([20.0] * 5)

    run_virtual(main)


def test_who_waited_longest_is_served_first(rig: Any) -> None:
    async def main() -> None:
        play, health = gone_until(30.0)
        made = rig(play, health=health, concurrency=1, breaker_failures=1)
        await arrivals(made, 20, 0.3, 120.0)
        served = [
            request.key.partition("#")[0]
            for request, time in zip(
                made.platform.seen.requests, made.platform.seen.times, strict=True
            )
            if time > 30.0
        ]
        waited = [name for name in served if name != "t0"]  # t0 slept through its pause
        assert waited == [f"t{i}" for i in range(1, 20)]
        await made.caller.close()

    run_virtual(main)


def test_a_platform_that_fails_again_at_once_is_down_again(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: GONE if time < 60 else ANSWERS, breaker_failures=2)
        for outcome in await arrivals(made, 2, 0.0, 200.0):  # its health is well all the time
            assert outcome.verdict.score is not None
        assert [state.down for state in made.states] == [True, False] * (len(made.states) // 2)
        assert len(made.states) >= 6
        await made.caller.close()

    run_virtual(main)


@pytest.mark.parametrize("act", [Act(seconds=0.01, fault="lost"), Act(data=b"<h1>Back soon</h1>")])
def test_who_answers_nobody_is_down_and_costs_no_verdict(rig: Any, act: Act) -> None:
    """A load balancer with nothing behind it; a proxy's page beside a status 200."""

    async def main() -> None:
        made = rig(
            lambda n, time, request: act if time < 20 else ANSWERS,
            health=lambda time: act if time < 20 else ANSWERS,
        )
        for outcome in await arrivals(made, 12, 0.01, 30.0):
            assert outcome.verdict.score is not None
        assert [state.down for state in made.states] == [True, False]
        assert made.requests < 40
        other = rig(url="local://reward:score")
        made = rig(lambda n, time, request: act, health=lambda time: act, fallback=other.caller)
        for outcome in await arrivals(made, 12, 0.0, 30.0):
            assert outcome.served_by == "local://reward:score"
        await made.caller.close()

    run_virtual(main)


@pytest.mark.parametrize("fault", ["unavailable", "lost", "foreign", "timeout"])
def test_one_poisoned_trajectory_takes_nothing_down(rig: Any, fault: str) -> None:
    """Behind `rollart rewards serve`, a crash is a 502 for its own client."""

    def play(n: int, time: float, request: Request) -> Act:
        poison = request.key.startswith("poison")
        return Act(seconds=0.01, fault=fault) if poison else Act(seconds=0.5)

    async def main() -> None:
        made = rig(play)
        poisoned = asyncio.ensure_future(made.score("poison", 20.0))
        await asyncio.sleep(15.0)  # nobody else calls, so that nothing but its health can tell
        for outcome in await arrivals(made, 20, 0.1, 5.0):
            assert outcome.verdict.score is not None
        assert (await poisoned).verdict.score is None
        assert made.states == []
        assert len(made.platform.health_times) >= 1
        await made.caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_one_call_alone_finds_out_that_its_platform_is_gone(rig: Any) -> None:
    async def main() -> None:
        other = rig(url="local://reward:score")
        made = rig(lambda *_: GONE, health=lambda time: GONE, fallback=other.caller)
        outcome = await made.score(seconds=30.0, value=0.5)
        assert (outcome.verdict.score, outcome.served_by) == (0.5, "local://reward:score")
        assert [state.down for state in made.states] == [True]
        await made.caller.close()

    run_virtual(main)


def test_a_platform_in_doubt_that_is_busy_or_paused_is_not_taken_for_silent(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        if request.key.startswith("slow"):
            return Act(seconds=50.0)
        return Act(fault="unavailable", retry_after_s=15.0 if n == 8 else None)

    async def main() -> None:
        made = rig(play, concurrency=2)
        slow = asyncio.ensure_future(made.score("slow", 100.0))
        poisoned = asyncio.ensure_future(made.score("poison", 55.0))
        await asyncio.wait((slow, poisoned))
        assert (await slow).verdict.score is not None
        assert made.states == []
        await made.caller.close()

    run_virtual(main)


def test_whoever_cannot_be_told_stops_neither_calls_nor_the_probe(rig: Any) -> None:
    heard: list[Any] = []

    class Deaf(Caller):
        """Whom it tells is gone."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            def raises(state: object) -> None:
                heard.append((state, self._watch._probing is not None))
                raise BrokenPipeError("nobody listens")

            super().__init__(*args, **{**kwargs, "on_state": raises})

    async def main() -> None:
        lost: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: lost.append(told))
        play, health = gone_until(30.0)
        made = rig(play, health=health, kind=Deaf)
        for outcome in await arrivals(made, 12, 0.0, 100.0):
            assert outcome.verdict.score is not None
        assert [(state.down, probing) for state, probing in heard] == [(True, True), (False, True)]
        assert [type(told["exception"]) for told in lost] == [BrokenPipeError] * 2

    run_virtual(main)


def test_faults_of_single_calls_do_not_take_a_platform_down(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        return Act(fault=("throttled", "crashed", "refused", "garbled")[n % 4])

    async def main() -> None:
        made = rig(play, breaker_failures=2)
        await arrivals(made, 20, 0.0, 5.0)
        assert made.states == []

    run_virtual(main)


def test_tries_cut_short_by_their_calls_deadline_do_not_take_a_platform_down(rig: Any) -> None:
    """Calls that waited for a place until nearly their end say nothing about the platform."""

    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=9.5), concurrency=4, breaker_failures=2)
        outcomes = await arrivals(made, 8, 0.0, 10.0)
        assert sum(outcome.verdict.score is not None for outcome in outcomes) == 4
        assert made.states == []

    run_virtual(main)


def test_a_platform_that_hangs_is_down(rig: Any) -> None:
    async def main() -> None:
        made = rig(
            lambda n, time, request: Act(seconds=1e6) if time < 20 else ANSWERS,
            health=lambda time: Act(seconds=1e6) if time < 20 else ANSWERS,
            function_s=2.0,
            breaker_failures=3,
        )
        assert (await made.score(seconds=120.0, value=0.5)).verdict.score == 0.5
        assert [state.down for state in made.states] == [True, False]
        await made.caller.close()

    run_virtual(main)
