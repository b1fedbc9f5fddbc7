"""A second request for the slow twentieth: the first good answer wins, the other is gone."""

import asyncio
from typing import Any

from rollart.core.errors import FailureKind
from rollart.core.scoring.wire import Request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import Act

WARM = 40  # calls before, so that durations are known and two may be hedged


def now() -> float:
    return asyncio.get_running_loop().time()


async def warmed(rig: Any, *later: Act, **options: Any) -> Any:
    """A caller that has seen 95 % of answers come within 1 s; then `later` is what comes."""

    def play(n: int, time: float, request: Request) -> Act:
        if n < WARM:
            return Act(seconds=1.0 if n < 2 else 0.5)
        return later[n - WARM] if n - WARM < len(later) else Act(seconds=0.5)

    made = rig(play, hedge=True, **options)
    for i in range(WARM):
        assert not (await made.score(f"warm-{i}")).hedged
    return made


def test_a_slow_try_is_hedged_and_the_sooner_answer_counts(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=20.0, score=0.1), Act(seconds=0.5, score=0.2))
        begin = now()
        outcome = await made.score()
        assert outcome.verdict.score == 0.2
        assert (outcome.hedged, outcome.tries) == (True, 2)
        assert now() - begin == 1.5
        assert outcome.waited_s == 0
        assert made.platform.seen.cancelled == 1
        assert made.platform.seen.under_way == 0
        assert made.limiter.free == 64
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_the_first_try_may_still_win(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=2.0, score=0.1), Act(seconds=9.0, score=0.2))
        assert (await made.score()).verdict.score == 0.1

    run_virtual(main)


def test_a_fault_does_not_win_over_an_answer(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(
            rig, Act(seconds=2.0, fault="refused"), Act(seconds=9.0, score=0.2), breaker_failures=1
        )
        assert (await made.score()).verdict.score == 0.2
        both = await warmed(rig, Act(seconds=2.0, fault="refused"), Act(fault="unavailable"))
        outcome = await both.score()
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR

    run_virtual(main)


def test_an_answer_that_comes_with_the_winner_is_ignored(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=2.0, score=0.1), Act(seconds=1.0, score=0.2))
        outcome = await made.score()
        assert outcome.verdict.score == 0.1
        stubborn = Act(seconds=9.0, score=0.2, stubborn=True)
        made = await warmed(rig, stubborn, Act(seconds=0.5, score=0.3))
        assert (await made.score()).verdict.score == 0.3

    run_virtual(main)


def test_hedges_are_at_most_one_call_in_twenty(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, *(Act(seconds=1.0 + i / 1000) for i in range(1000)))
        outcomes = [await made.score(f"t{i}") for i in range(400)]
        assert 10 < sum(outcome.hedged for outcome in outcomes) <= 440 / 20

    run_virtual(main)


def test_a_hedge_takes_no_place_that_another_waits_for(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=5.0), concurrency=1)
        slow = asyncio.ensure_future(made.score("slow"))
        waits = asyncio.ensure_future(made.score("waits"))
        assert not (await slow).hedged
        assert (await waits).verdict.score is not None
        assert made.platform.seen.most == 1

    run_virtual(main)


def test_a_hedged_call_that_is_cancelled_leaves_nothing_behind(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=50.0), Act(seconds=50.0))
        call = asyncio.ensure_future(made.score())
        await asyncio.sleep(3.0)
        assert made.platform.seen.under_way == 2
        call.cancel()
        await asyncio.wait((call,))
        assert made.platform.seen.under_way == 0
        assert made.limiter.free == 64
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_a_cancelled_hedge_frees_its_place_only_when_it_has_let_go(rig: Any) -> None:
    async def main() -> None:
        made = await warmed(rig, Act(seconds=50.0), Act(seconds=50.0), concurrency=2)
        call = asyncio.ensure_future(made.score())
        await asyncio.sleep(3.0)
        place, beside = made.limiter.ask(), list[int]()
        place.granted.add_done_callback(lambda granted: beside.append(made.platform.seen.under_way))
        call.cancel()
        await asyncio.wait((call, place.granted))
        assert beside[0] < 2
        made.limiter.leave(place)

    run_virtual(main)
