"""A cluster over workers in this process: where calls go, and what becomes of the dead."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollart as ra
from rollart.core.errors import ConfigError, WorkerFailed
from rollart.data.cluster import Cluster
from rollart.data.dispatch import Candidate, choose_worker
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.workers import ScriptedWorkers


class Generator(ra.ActorGen):
    """Says where it is; `slow` takes a second."""

    def __init__(self, *, greeting: str = "") -> None:
        self.greeting = greeting

    @ra.register(mode="execute_all")
    async def load(self, weights: str) -> str:
        return f"{self.worker} has {weights}"

    @ra.hw_mapping(hw_affinity={"Lake": "H800", "default": "H20"})
    async def place(self, request: str, tag_name: str = "default") -> str:
        return self.hardware

    async def slow(self) -> str:
        await asyncio.sleep(1.0)
        return self.worker

    async def greet(self) -> str:
        return self.greeting

    @ra.register()
    async def stumble(self, who: str) -> None:
        if self.worker in who:
            raise ValueError("stumbled")


def in_cluster(
    use: Callable[[Any, ScriptedWorkers, ra.ResourceManager], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        pools = ra.ResourceManager({"H800": range(4), "H20": range(4, 8)})
        workers = ScriptedWorkers()
        async with Cluster(pools, Generator, workers=workers, **options) as cluster:
            await use(cluster, workers, pools)
        assert pools.bindings == ()

    run_virtual(main)


def test_a_registered_method_reaches_every_worker_and_gathers_in_their_order() -> None:
    async def use(cluster: Any, *_: object) -> None:
        assert await cluster.load("v7") == [f"Generator-{n} has v7" for n in range(3)]

    in_cluster(use, size=3)


def test_a_call_goes_only_to_the_class_of_its_tag() -> None:
    async def use(cluster: Any, *_: object) -> None:
        for tag, hardware in (("Lake", "H800"), ("Pond", "H20"), ("default", "H20")):
            found = {await cluster.place("x", tag_name=tag) for _ in range(4)}
            assert found == {hardware}
        assert await cluster.place("x") == "H20"

    in_cluster(use, size=4)


def test_another_class_serves_when_the_wanted_one_has_no_living_worker() -> None:
    async def use(cluster: Any, workers: ScriptedWorkers, pools: ra.ResourceManager) -> None:
        assert await cluster.place("x", tag_name="Lake") == "H800"
        workers.started["Generator-0"].die("burnt out")
        await asyncio.sleep(0.01)
        assert await cluster.place("x", tag_name="Lake") == "H20"
        assert cluster.workers == ("Generator-1",)
        assert pools.free("H800") == (0, 1, 2, 3), "its slot is free again"

    in_cluster(use, size=2)


def test_calls_are_spread_over_workers_that_are_free() -> None:
    async def use(cluster: Any, *_: object) -> None:
        assert len(set(await asyncio.gather(*(cluster.slow() for _ in range(3))))) == 3

    in_cluster(use, size=3)


def test_failed_workers_are_reported_by_name() -> None:
    async def use(cluster: Any, workers: ScriptedWorkers, *_: object) -> None:
        with pytest.raises(WorkerFailed, match=r"worker Generator-1: stumble raised ValueError"):
            await cluster.stumble("Generator-1")
        with pytest.raises(WorkerFailed, match=r"worker Generator-0, Generator-2: "):
            await cluster.stumble("Generator-0 and Generator-2")
        workers.started["Generator-1"].die("burnt out")
        await asyncio.sleep(0.01)
        with pytest.raises(WorkerFailed, match="worker Generator-1: burnt out"):
            await cluster.load("v8")
        for worker in workers.started.values():
            worker.die("flood")
        await asyncio.sleep(0.01)
        with pytest.raises(WorkerFailed, match=r"nobody is left .*Generator-2: flood"):
            await cluster.greet()

    in_cluster(use, size=3)


def test_options_reach_the_constructor() -> None:
    async def use(cluster: Any, *_: object) -> None:
        assert await cluster.greet() == "hello"

    in_cluster(use, size=2, options={"greeting": "hello"})


def test_what_the_class_does_not_have_the_cluster_does_not_have() -> None:
    async def use(cluster: Any, *_: object) -> None:
        assert not hasattr(cluster, "no_such")
        assert not hasattr(cluster, "_engines")

    in_cluster(use, size=2)


def test_a_worker_that_cannot_start_undoes_the_others() -> None:
    async def main() -> None:
        pools = ra.ResourceManager({"H20": range(8)})
        workers = ScriptedWorkers(refuse=["Generator-1"])
        with pytest.raises(WorkerFailed, match="worker Generator-1: scripted"):
            async with Cluster(pools, Generator, workers=workers, size=3):
                pass
        assert pools.bindings == ()
        for worker in workers.started.values():
            assert await worker.wait_dead() == "closed"

    run_virtual(main)


class NeedsTag(ra.ActorGen):
    @ra.hw_mapping({"default": "H20"})
    async def place(self, request: str) -> None: ...


class Both(ra.ActorGen):
    @ra.register()
    @ra.hw_mapping({"default": "H20"})
    async def place(self, tag_name: str = "default") -> None: ...


class Outside(ra.Reward):
    @ra.register_serverless("proxy", "local://a:b")
    async def compute_rewards(self, trajectory: object) -> float:
        return 0.0


class Shadow(ra.ActorGen):
    def workers(self) -> None: ...


class Plain(ra.Worker):
    def work(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (NeedsTag, {}, 'hw_mapping needs a parameter tag_name="default"'),
        (Both, {}, "leave one out"),
        (Outside, {}, "register_serverless works for a Reward given to"),
        (Shadow, {}, "a cluster has a 'workers' of its own"),
        (Plain, {}, "is none of the four roles; say role= one of training"),
        (Generator, {"size": 1}, "use size = 2 or more"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused_with_a_remedy(
    kind: type[ra.Worker], options: dict[str, Any], told: str
) -> None:
    pools = ra.ResourceManager({"H20": range(8)})
    with pytest.raises(ConfigError, match=told):
        Cluster(pools, kind, workers=ScriptedWorkers(), **options)


def test_a_worker_of_no_role_is_placed_by_the_role_it_is_given() -> None:
    async def main() -> None:
        pools = ra.ResourceManager({"H800": range(2), "H20": range(2, 4)})
        async with Cluster(pools, Plain, workers=ScriptedWorkers(), role="training"):
            assert [one.pool for one in pools.bindings] == ["H800"]

    run_virtual(main)


@given(
    st.lists(st.tuples(st.sampled_from(["H800", "H20"]), st.integers(0, 3)), max_size=6),
    st.sampled_from(["H800", "H20", "H100", None]),
)
def test_the_chosen_worker_is_the_least_busy_of_the_wanted_class_if_that_has_any(
    living: list[tuple[str, int]], wanted: str | None
) -> None:
    candidates = [
        Candidate(worker=str(n), hardware=hardware, calls=calls)
        for n, (hardware, calls) in enumerate(living)
    ]
    chosen = choose_worker(candidates, wanted)
    if chosen is None:
        assert not candidates
        return
    one = candidates[int(chosen)]
    same = [other for other in candidates if wanted in (None, other.hardware)]
    assert one in (same or candidates)
    assert one.calls == min(other.calls for other in same or candidates)
