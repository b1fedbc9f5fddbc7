"""Weights on their way: what overlaps is hidden, what is left is waited for, nothing is leaked."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.core.errors import ConfigError, RollartError, WeightsMissing
from rollart.runtimes.sim.hardware.catalogue import LinkClass
from rollart.runtimes.sim.hardware.model_shape import ModelShape, model_shape
from rollart.runtimes.sim.hardware.network import Network
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.training.weights import (
    ModelledStore,
    PullAccount,
    WeightSettings,
    pull_end,
)

TEN_GB = ModelShape(
    name="ten",
    parameters=5e9,
    active_parameters=5e9,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
)


def rate(gb_s: float) -> LinkClass:
    return LinkClass(name=f"{gb_s} GB/s", latency_s=0.0, gb_s=gb_s)


# ten seconds over the slow link, five by an engine, one to install
SETTINGS = WeightSettings(push=rate(1.0), pull=rate(2.0), install=rate(10.0))
BLOCKING = replace(SETTINGS, mode="blocking")


def now() -> float:
    return asyncio.get_running_loop().time()


def store_of(settings: WeightSettings = SETTINGS, model: ModelShape = TEN_GB) -> ModelledStore:
    return ModelledStore(model=model, settings=settings, network=Network())


async def update_at_commit(store: ModelledStore, version: int = 0) -> PullAccount:
    """An engine that was there before the push and updates as soon as it may."""
    store.attach("e0")
    await store.push(version)
    return await store.pulled("e0", version)


buckets = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=8).map(
    sorted
)


@settings(max_examples=60, deadline=None)
@given(buckets, st.integers(0, 50))
def test_when_a_pull_ends_is_when_its_transfers_do(
    arrivals: list[tuple[int, int]], begin: int
) -> None:
    """Against an engine that awaits each bucket and then its transfer over a link of its own."""
    own = LinkClass(name="own", latency_s=0.5, gb_s=0.5)

    async def main() -> float:
        network = Network({"own": own})
        await asyncio.sleep(begin)
        for number, (arrived, size) in enumerate(arrivals):
            await asyncio.sleep(max(0.0, arrived - now()))
            there = asyncio.Event()
            network.start("own", size * 1e9, there.set, follows=number > 0)
            await there.wait()
        return now()

    reckoned = pull_end([(arrived, size * 1e9) for arrived, size in arrivals], begin, own)
    assert reckoned == pytest.approx(run_virtual(main))


def test_a_link_carries_one_version_after_another() -> None:
    async def main() -> None:
        store = store_of(replace(SETTINGS, pull=rate(0.5), keep=3))
        store.attach("e0")
        await store.push(0)  # pulled from 1 to 21
        await store.push(1)  # there at 20, pulled from 21 to 41
        assert (await store.pulled("e0", 1)).exposed_s == pytest.approx(21.0 + 1.0)

    run_virtual(main)


def test_of_a_pull_beside_the_push_only_the_last_bucket_and_the_install_are_exposed() -> None:
    async def main() -> None:
        account = await update_at_commit(store_of())
        assert account.pull_s == pytest.approx(5.0)
        assert account.exposed_s == pytest.approx(0.5 + 1.0)
        assert now() == pytest.approx(10.0 + 1.5)

    run_virtual(main)


def test_exposed_time_shrinks_with_the_time_until_the_update_and_never_below_the_install() -> None:
    async def exposed(pause: float) -> float:
        store = store_of(replace(SETTINGS, pull=rate(0.5)))
        store.attach("e0")
        await store.push(0)
        await asyncio.sleep(pause)
        return (await store.pulled("e0", 0)).exposed_s

    waited = [run_virtual(lambda pause=pause: exposed(pause)) for pause in (0.0, 4.0, 50.0)]
    assert waited == pytest.approx([12.0, 8.0, 1.0])


def test_smaller_buckets_leave_less_to_wait_for() -> None:
    def exposed(bucket: float) -> float:
        settings = replace(SETTINGS, bucket_gb=bucket)
        return run_virtual(lambda: update_at_commit(store_of(settings))).exposed_s

    assert exposed(0.5) == pytest.approx(1.25)
    assert exposed(3.0) == pytest.approx(1.0 + 1.0)  # half of the third, and the fourth of 1 GB
    assert exposed(10.0) == exposed(99.0) == pytest.approx(5.0 + 1.0)


def test_an_engine_that_was_not_there_for_the_push_waits_for_the_whole_pull() -> None:
    async def main() -> None:
        store = store_of()
        await store.push(0)
        late = await store.pulled("late", 0)
        assert late.exposed_s == pytest.approx(5.0 + 1.0)
        await store.push(1)
        again = await store.pulled("late", 1)
        assert again.exposed_s == pytest.approx(1.5)  # attached by then

    run_virtual(main)


def test_engines_pull_over_their_own_links() -> None:
    async def main() -> None:
        store = store_of()
        await store.push(0)
        async with asyncio.TaskGroup() as group:
            for index in range(8):
                group.create_task(store.pulled(f"e{index}", 0))
        assert now() == pytest.approx(16.0)

    run_virtual(main)


def test_blocking_pays_push_and_pull_at_the_update_once_for_all_engines() -> None:
    async def main() -> None:
        store = store_of(BLOCKING)
        for engine in ("e0", "e1"):
            store.attach(engine)
        await store.push(0)
        assert now() == 0.0
        await asyncio.sleep(100.0)  # nothing goes on in the background
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(store.pulled(engine, 0)) for engine in ("e0", "e1")]
        assert [one.result().exposed_s for one in both] == pytest.approx([16.0, 16.0])
        assert [one.result().pull_s for one in both] == pytest.approx([5.0, 5.0])
        restarted = await store.pulled("e2", 0)
        assert restarted.exposed_s == pytest.approx(6.0)  # the slow link was crossed before

    run_virtual(main)


@pytest.mark.parametrize("settings", [SETTINGS, BLOCKING], ids=["async", "blocking"])
def test_the_slow_link_s_time_is_told_once(settings: WeightSettings) -> None:
    async def main() -> None:
        spans: list[tuple[float, float]] = []
        store = store_of(settings)
        await asyncio.sleep(3.0)
        await store.push(0, lambda begin, end: spans.append((begin, end)))
        await store.pulled("e0", 0)
        assert spans == [pytest.approx((3.0, 13.0))]

    run_virtual(main)


@pytest.mark.parametrize(
    ("name", "push_s", "pull_s", "naive_s"),
    [
        ("Qwen3-8B", 32.4, 6.2, 38.6),
        ("Qwen3-14B", 67.8, 16.3, 84.1),
        ("Qwen3-32B", 127.3, 29.7, 157.0),
    ],
)
def test_with_the_catalogue_s_links_times_are_near_the_paper_s(
    name, push_s, pull_s, naive_s
) -> None:
    """Rates are one number for three models, so the paper's rows scatter around them by 20 %."""

    async def main(settings: WeightSettings) -> tuple[float, PullAccount]:
        store = store_of(settings, model_shape(name))
        store.attach("e0")
        began = now()
        await store.push(0)
        pushed = now() - began
        return pushed, await store.pulled("e0", 0)

    pushed, account = run_virtual(lambda: main(WeightSettings()))
    assert pushed == pytest.approx(push_s, rel=0.2)
    assert account.pull_s == pytest.approx(pull_s, rel=0.21)
    assert account.exposed_s <= account.pull_s / 3
    _, naive = run_virtual(lambda: main(WeightSettings(mode="blocking")))
    assert naive.exposed_s == pytest.approx(naive_s, rel=0.2)


def test_a_version_that_is_not_there_is_missing() -> None:
    async def main() -> None:
        store = store_of()
        with pytest.raises(WeightsMissing, match="version 0 are not here"):
            await store.pulled("e0", 0)
        pushing = asyncio.ensure_future(store.push(0))
        await asyncio.sleep(9.0)
        assert store.versions() == ()
        with pytest.raises(WeightsMissing, match="version 0 are not here"):
            await store.pulled("e0", 0)
        await pushing
        assert store.versions() == (0,)
        with pytest.raises(RollartError, match="here already"):
            await store.push(0)

    run_virtual(main)


@pytest.mark.parametrize("settings", [SETTINGS, BLOCKING], ids=["async", "blocking"])
def test_old_versions_are_collected_so_that_memory_stays_bounded(settings: WeightSettings) -> None:
    async def main() -> None:
        store = store_of(settings)
        for version in range(12):
            await update_at_commit(store, version)
            assert len(store.versions()) <= 2
            assert store.held_bytes <= 2 * 10e9
        assert store.versions() == (10, 11)

    run_virtual(main)


def test_a_version_that_an_engine_waits_for_is_not_collected() -> None:
    async def main() -> None:
        store = store_of(replace(SETTINGS, push=rate(100.0), keep=1))
        await store.push(0)
        slow = asyncio.ensure_future(store.pulled("slow", 0))
        await asyncio.sleep(0.5)
        for version in (1, 2, 3):
            await store.push(version)
        assert store.versions() == (0, 3)
        assert (await slow).version == 0
        assert store.versions() == (3,)

    run_virtual(main)


def test_a_push_that_is_cancelled_or_abandoned_leaves_nothing_behind() -> None:
    async def main() -> None:
        store = store_of()
        store.attach("e0")
        cancelled = asyncio.ensure_future(store.push(0))
        await asyncio.sleep(4.0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert store.held_bytes == 0.0
        abandoned = asyncio.ensure_future(store.push(0))
        await asyncio.sleep(4.0)
        store.abandon(0, "the trainer died")
        with pytest.raises(WeightsMissing, match="the trainer died"):
            await abandoned
        began = now()
        await store.push(0)
        assert now() - began == pytest.approx(10.0)  # the slow link is its own again
        store.abandon(0, "too late")
        assert store.versions() == (0,)

    run_virtual(main)


def test_a_cancelled_update_goes_on_in_the_background() -> None:
    async def main() -> None:
        store = store_of()
        await store.push(0)
        update = asyncio.ensure_future(store.pulled("e0", 0))
        await asyncio.sleep(3.0)
        update.cancel()
        await asyncio.sleep(1.0)
        assert (await store.pulled("e0", 0)).exposed_s == pytest.approx(1.0 + 1.0)

    run_virtual(main)


def test_an_engine_that_left_has_to_pull_again() -> None:
    async def main() -> None:
        store = store_of()
        store.attach("e0")
        await store.push(0)
        await asyncio.sleep(5.0)
        store.detach("e0")
        assert (await store.pulled("e0", 0)).exposed_s == pytest.approx(6.0)
        store.detach("e0")
        store.detach("e0")

    run_virtual(main)


def test_an_engine_that_leaves_in_an_update_is_told() -> None:
    async def main() -> None:
        store = store_of()
        await store.push(0)
        update = asyncio.ensure_future(store.pulled("e0", 0))
        await asyncio.sleep(2.0)
        store.detach("e0")
        with pytest.raises(WeightsMissing, match="e0 left"):
            await update

    run_virtual(main)


def test_empty_buckets_and_an_empty_store_are_refused() -> None:
    with pytest.raises(ConfigError, match="bucket_gb = 0"):
        WeightSettings(bucket_gb=0.0)
    with pytest.raises(ConfigError, match="keep = 0"):
        WeightSettings(keep=0)
