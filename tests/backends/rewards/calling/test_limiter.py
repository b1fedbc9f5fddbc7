"""The limiter: places in order, an even rate, pauses, and nothing lost to the cancelled."""

import asyncio
import random

from rollart.backends.rewards.calling.limiter import BURST_S, Limiter, Place
from rollart.runtimes.sim.loop import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


async def hold(limiter: Limiter, seconds: float, began: list[float]) -> None:
    with limiter.ask() as place:
        await place.granted
        began.append(now())
        await asyncio.sleep(seconds)


def test_no_more_than_its_places_are_held_and_each_is_used() -> None:
    async def main() -> None:
        limiter, began = Limiter(3), list[float]()
        await asyncio.gather(*(hold(limiter, 1.0, began) for _ in range(9)))
        assert began == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
        assert limiter.free == 3

    run_virtual(main)


def test_places_are_given_in_the_order_of_asking() -> None:
    async def main() -> None:
        limiter = Limiter(1)
        places = [limiter.ask() for _ in range(4)]
        for place in places:
            assert [other.holds for other in places] == [other is place for other in places]
            limiter.leave(place)

    run_virtual(main)


def test_a_rate_is_kept_in_every_window() -> None:
    async def main() -> None:
        rate = 50.0
        limiter, began = Limiter(1000, rate_per_s=rate), list[float]()
        await asyncio.gather(*(hold(limiter, 0.0, began) for _ in range(200)))
        await asyncio.sleep(3.0)
        await asyncio.gather(*(hold(limiter, 0.0, began) for _ in range(200)))
        for window in (0.1, 0.5, 1.0):
            most = max(sum(start <= t < start + window for t in began) for start in began)
            assert most <= rate * (window + BURST_S) + 1
        assert began[199] < 200 / rate  # and it is used

    run_virtual(main)


def test_a_pause_holds_all_back_and_the_longest_counts() -> None:
    async def main() -> None:
        limiter, began = Limiter(2), list[float]()
        limiter.pause(5.0)
        limiter.pause(1.0)
        calls = asyncio.gather(*(hold(limiter, 0.5, began) for _ in range(3)))
        await asyncio.sleep(3.0)
        limiter.pause(4.0)
        assert limiter.ask_now() is None
        await calls
        assert began == [7.0, 7.0, 7.5]

    run_virtual(main)


def test_the_cancelled_give_way_wherever_they_are() -> None:
    async def main() -> None:
        draw = random.Random(3)
        limiter, held = Limiter(4, rate_per_s=200.0), 0

        async def one() -> None:
            nonlocal held
            with limiter.ask() as place:
                await place.granted
                held += 1
                assert held <= 4
                try:
                    await asyncio.sleep(draw.uniform(0.0, 0.1))
                finally:
                    held -= 1

        calls = [asyncio.ensure_future(one()) for _ in range(300)]
        for call in calls:
            if draw.random() < 0.5:
                asyncio.get_running_loop().call_later(draw.uniform(0.0, 1.0), call.cancel)
        await asyncio.wait(calls)
        assert all(call.cancelled() or call.exception() is None for call in calls)
        assert limiter.free == 4
        places: list[Place] = [limiter.ask() for _ in range(4)]
        await asyncio.wait([place.granted for place in places])

    run_virtual(main)


def test_a_place_granted_to_one_cancelled_in_the_same_instant_goes_on() -> None:
    async def main() -> None:
        limiter, began = Limiter(1), list[float]()
        first = limiter.ask()
        doomed = asyncio.ensure_future(hold(limiter, 9.0, began))
        after = asyncio.ensure_future(hold(limiter, 0.0, began))
        await asyncio.sleep(1.0)
        limiter.leave(first)  # grants it to the doomed one, which has not run yet
        doomed.cancel()
        await after
        assert began == [1.0]
        assert limiter.free == 1

    run_virtual(main)


def test_leaving_twice_gives_one_place_back() -> None:
    async def main() -> None:
        limiter = Limiter(1)
        with limiter.ask() as place:
            limiter.leave(place)
        assert limiter.free == 1

    run_virtual(main)


def test_who_asks_for_now_never_passes_one_who_waits() -> None:
    async def main() -> None:
        limiter = Limiter(1, rate_per_s=1.0)
        first = limiter.ask()
        waits = limiter.ask()
        assert limiter.ask_now() is None
        limiter.leave(first)
        assert limiter.ask_now() is None  # the rate holds the one who waits back
        await waits.granted
        limiter.leave(waits)
        await asyncio.sleep(1.0)
        now_one = limiter.ask_now()
        assert now_one is not None
        assert now_one.holds

    run_virtual(main)
