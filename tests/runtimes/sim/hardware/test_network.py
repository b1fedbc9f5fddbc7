"""Fluid links: fair shares, exact times, and what a cancelled transfer leaves behind."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import LinkClass
from rollart.runtimes.sim.hardware.network import Network, Transfer
from rollart.runtimes.sim.loop import run_virtual

GB = 1e9
SLOW = LinkClass(name="slow", latency_s=0.0, gb_s=1.0)
LATE = LinkClass(name="late", latency_s=2.0, gb_s=1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


def end_times(plan: list[tuple[float, float]], link: LinkClass = SLOW) -> list[float]:
    """When transfers end that begin at (seconds) with (GB), on one link."""

    async def main() -> list[float]:
        network = Network({"link": link})
        ends = [0.0] * len(plan)

        async def one(index: int, begin: float, size: float) -> None:
            await asyncio.sleep(begin)
            await network.transfer("link", size * GB)
            ends[index] = now()

        async with asyncio.TaskGroup() as group:
            for index, (begin, size) in enumerate(plan):
                group.create_task(one(index, begin, size))
        return ends

    return run_virtual(main)


def stepped_end_times(plan: list[tuple[float, float]]) -> list[float]:
    """The same by going from change to change, with no shared count."""
    left = [size for _, size in plan]
    ends = [-1.0] * len(plan)
    time = 0.0
    while min(ends) < 0:
        active = [i for i, (begin, _) in enumerate(plan) if begin <= time and ends[i] < 0]
        coming = [begin for begin, _ in plan if begin > time]
        span = min((left[i] * len(active) for i in active), default=float("inf"))
        until = min([time + span, *coming])
        for i in active:
            left[i] -= (until - time) / len(active)
        time = until
        for i in active:
            if left[i] <= 1e-12:
                ends[i] = time
    return ends


def test_a_transfer_alone_takes_its_bytes_over_the_rate() -> None:
    assert end_times([(0.0, 3.0)]) == [pytest.approx(3.0)]
    assert end_times([(0.0, 3.0)], LATE) == [pytest.approx(5.0)]


def test_two_at_once_take_twice_as_long_and_the_first_to_end_frees_its_half() -> None:
    assert end_times([(0.0, 1.0), (0.0, 1.0)]) == pytest.approx([2.0, 2.0])
    assert end_times([(0.0, 1.0), (0.0, 3.0)]) == pytest.approx([2.0, 4.0])
    assert end_times([(0.0, 2.0), (1.0, 2.0)]) == pytest.approx([3.0, 4.0])


def test_who_waits_out_the_latency_is_not_on_the_link_yet() -> None:
    assert end_times([(0.0, 2.0), (1.0, 1.0)], LATE) == pytest.approx([5.0, 5.0])
    assert end_times([(0.0, 1.0), (1.0, 1.0)], LATE) == pytest.approx([3.0, 4.0])


plans = st.lists(
    st.tuples(st.integers(0, 20).map(lambda n: n / 2), st.integers(1, 40).map(lambda n: n / 8)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_times_are_those_of_going_from_change_to_change(plan: list[tuple[float, float]]) -> None:
    assert end_times(plan) == pytest.approx(stepped_end_times(plan), rel=1e-9, abs=1e-9)


def test_transfers_that_end_at_once_end_in_the_order_they_began() -> None:
    async def main() -> list[int]:
        network = Network({"link": SLOW})
        order: list[int] = []
        async with asyncio.TaskGroup() as group:

            async def one(index: int) -> None:
                await network.transfer("link", GB / 3)
                order.append(index)

            for index in range(7):
                group.create_task(one(index))
        return order

    assert run_virtual(main) == list(range(7))


@pytest.mark.parametrize("at", [0.5, 2.5], ids=["in the latency", "on the link"])
def test_a_cancelled_transfer_leaves_its_share_to_the_others(at: float) -> None:
    async def main() -> float:
        network = Network({"link": LATE})
        loser = asyncio.ensure_future(network.transfer("link", 100 * GB))
        keeper = asyncio.ensure_future(network.transfer("link", 2 * GB))
        await asyncio.sleep(at)
        loser.cancel()
        await keeper
        assert loser.cancelled()
        return now()

    shared = max(at - 2.0, 0.0)
    assert run_virtual(main) == pytest.approx(2.0 + shared + (2.0 - shared / 2))


def test_an_end_that_cancels_another_of_the_same_instant_is_obeyed() -> None:
    async def main() -> None:
        network = Network({"link": SLOW})
        told: list[str] = []
        second: list[Transfer] = []

        def first_done() -> None:
            told.append("first")
            second[0].cancel()

        network.start("link", GB, first_done)
        second.append(network.start("link", GB, lambda: told.append("second")))
        await asyncio.sleep(3)
        assert told == ["first"]
        await network.transfer("link", GB)
        assert now() == pytest.approx(4.0)  # a link that miscounted would still share

    run_virtual(main)


def test_what_follows_on_a_transfer_pays_no_latency_again() -> None:
    async def main() -> float:
        network = Network({"link": LATE})
        ended = asyncio.Event()
        network.start("link", GB, ended.set, follows=True)
        await ended.wait()
        return now()

    assert run_virtual(main) == pytest.approx(1.0)


def test_links_do_not_disturb_each_other() -> None:
    async def main() -> None:
        network, ends = Network({"a": SLOW, "b": SLOW}), list[float]()
        async with asyncio.TaskGroup() as group:
            alone = group.create_task(network.transfer("a", 2 * GB))
            alone.add_done_callback(lambda _: ends.append(now()))
            group.create_task(network.transfer("b", 2 * GB))
            group.create_task(network.transfer("b", 2 * GB))
        assert ends == [pytest.approx(2.0)]
        assert now() == pytest.approx(4.0)

    run_virtual(main)


def test_nothing_is_there_at_once_but_takes_no_time() -> None:
    assert end_times([(1.0, 0.0), (1.0, 0.0)]) == [1.0, 1.0]


def test_impossible_links_and_transfers_are_refused() -> None:
    with pytest.raises(ConfigError, match="a rate above 0"):
        Network({"link": LinkClass(name="dead", latency_s=0.0, gb_s=0.0)})
    with pytest.raises(ConfigError, match="latency of 0 or more"):
        Network({"link": LinkClass(name="early", latency_s=-1.0, gb_s=1.0)})
    network = Network({"link": SLOW})
    network.add("link", SLOW)
    with pytest.raises(ConfigError, match="already"):
        network.add("link", LATE)

    async def main() -> None:
        with pytest.raises(ConfigError, match="no link 'lnik'; there are link"):
            await network.transfer("lnik", 1.0)
        for size in (-1.0, float("nan")):
            with pytest.raises(ConfigError, match="0 or more"):
                await network.transfer("link", size)

    run_virtual(main)
