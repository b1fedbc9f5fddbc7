"""Modelled rewards: their contract, queues, cold starts, scaling, and how well they are used."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollart.core.errors import FailureKind
from rollart.core.events import DeviceBusy, DeviceReserved
from rollart.core.ports import Reward
from rollart.core.types import Trajectory
from rollart.observe.intervals import total
from rollart.runtimes.sim.episodes.reward_pools import (
    Anywhere,
    Dedicated,
    RewardPool,
    Scaling,
    Serverless,
)
from rollart.runtimes.sim.episodes.rewards import ModelledReward, make_pool
from rollart.runtimes.sim.episodes.workload import DrawnDomain, Span
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.world.file import presets
from rollart.runtimes.sim.world.sections import DomainSection, RewardSection
from rollart.testing.conformance import RewardTrial, check_reward
from rollart.testing.parts import EventRecorder
from rollart.testing.samples import sample_trajectory

FAST = Scaling(cold_start_s=2.0, keep_s=10.0, limit=3, burst=300, growth_per_min=300)


class ToldByTask(DrawnDomain):
    """A domain in which two tasks are scored badly."""

    def scoring(self, name: str) -> Span:
        if "/hangs/" in name:
            return Span(seconds=1e9)
        return Span(seconds=0.5, fails="/refuses/" in name)


def domain() -> DrawnDomain:
    spec = DomainSection.model_validate(presets()["GEM-game"])
    return ToldByTask(spec, RewardSection(), seed=0)


def serverless(events: EventRecorder, scaling: Scaling = FAST, at_once: int = 1) -> Serverless:
    return Serverless("judge", hardware="H800", at_once=at_once, scaling=scaling, events=events)


def dedicated(events: EventRecorder, gpus: int = 2, at_once: int = 1) -> Dedicated:
    return Dedicated("judge", hardware="H800", gpus=gpus, at_once=at_once, events=events)


async def ends(pool: RewardPool, seconds: list[float]) -> list[float]:
    """When each of these calls, asked for at once, is over."""
    loop = asyncio.get_running_loop()

    async def one(call: float) -> float:
        await pool.compute(call)
        return loop.time()

    return await asyncio.gather(*map(one, seconds))


def reserved(events: EventRecorder) -> list[tuple[str, float, float | None]]:
    """What is told of who is there, in order."""
    return [(told.device, told.begin, told.end) for told in events.of(DeviceReserved)]


def seconds_of(events: EventRecorder) -> dict[str, float]:
    """What each device was busy for."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for busy in events.of(DeviceBusy):
        spans.setdefault(busy.device, []).append((busy.begin, busy.end))
    return {device: total(found) for device, found in spans.items()}


POOLS: dict[str, Callable[[EventRecorder], RewardPool]] = {
    "anywhere": lambda events: Anywhere(),
    "dedicated": lambda events: dedicated(events, gpus=32),
    "serverless": lambda events: serverless(events, replace(FAST, limit=32)),
}


@pytest.mark.parametrize("kind", list(POOLS))
def test_they_conform_wherever_they_are_computed(kind: str) -> None:
    async def made() -> Reward:
        return ModelledReward(domain(), POOLS[kind](EventRecorder()), limit_s=20.0)

    trial = RewardTrial(
        trajectory=sample_trajectory(),
        unscorable=sample_trajectory(key="refuses"),
        hanging=sample_trajectory(key="hangs"),
        overruns=True,
        patience_s=60.0,
    )
    run_virtual(lambda: check_reward(made, trial))


def test_a_reward_that_is_not_there_in_time_gives_no_verdict() -> None:
    async def main(trajectory: Trajectory) -> None:
        pool = dedicated(EventRecorder(), gpus=1)
        reward = ModelledReward(domain(), pool, limit_s=20.0)
        verdict = await reward.score(trajectory)
        assert verdict.score is None
        assert verdict.failure is FailureKind.REWARD_TIMEOUT
        assert asyncio.get_running_loop().time() == 20
        assert (await reward.score(sample_trajectory())).score is not None  # the place is free

    run_virtual(lambda: main(sample_trajectory(key="hangs")))


def test_dedicated_gpus_take_calls_in_order_and_tell_when_they_were_busy() -> None:
    async def main() -> None:
        events = EventRecorder()
        pool = dedicated(events)
        assert await ends(pool, [3, 5, 4, 1]) == [3, 5, 7, 6]
        assert seconds_of(events) == {"judge-0": 7, "judge-1": 6}
        assert reserved(events) == [("judge-0", 0, None), ("judge-1", 0, None)]

    run_virtual(main)


def test_a_gpu_that_takes_several_calls_is_busy_once() -> None:
    async def main() -> None:
        events = EventRecorder()
        pool = dedicated(events, gpus=2, at_once=2)
        assert await ends(pool, [3, 3, 5, 5, 1]) == [3, 3, 5, 5, 4]
        assert seconds_of(events) == {"judge-0": 5, "judge-1": 5}

    run_virtual(main)


def test_instances_come_with_the_calls_and_go_when_idle() -> None:
    async def main() -> None:
        events = EventRecorder()
        pool = serverless(events)
        assert pool.instances == 0
        assert await ends(pool, [1, 1]) == [3, 3]  # after a cold start
        assert pool.instances == 2
        assert await ends(pool, [1]) == [4]  # warm
        await asyncio.sleep(10.5)
        assert pool.instances == 0
        assert seconds_of(events) == {"judge-0": 2, "judge-1": 1}
        there = [("judge-0", 2, None), ("judge-1", 2, None), ("judge-1", 2, 13), ("judge-0", 2, 14)]
        assert reserved(events) == there
        assert await ends(pool, [1]) == [17.5]  # cold again
        assert reserved(events) == [*there, ("judge-2", 16.5, None)]
        told = len(events.events)
        await pool.close()
        assert pool.instances == 0
        assert len(events.events) == told  # the run has ended, and its log with it

    run_virtual(main)


def test_there_are_never_more_instances_than_the_limit() -> None:
    async def main() -> None:
        pool = serverless(EventRecorder())
        assert await ends(pool, [1.0] * 7) == [3, 3, 3, 4, 4, 4, 5]
        assert pool.instances == 3

    run_virtual(main)


def test_an_instance_that_takes_several_calls_is_started_for_all_of_them() -> None:
    async def main() -> None:
        pool = serverless(EventRecorder(), at_once=4)
        assert await ends(pool, [1.0] * 5) == [3, 3, 3, 3, 3]
        assert pool.instances == 2

    run_virtual(main)


def test_after_a_burst_instances_come_at_the_platforms_pace() -> None:
    async def main() -> None:
        scaling = Scaling(cold_start_s=1.0, keep_s=99.0, limit=9, burst=2, growth_per_min=6)
        pool = serverless(EventRecorder(), scaling)
        assert await ends(pool, [100.0] * 4) == pytest.approx([101, 101, 111, 121])

    run_virtual(main)


@pytest.mark.parametrize("kind", ["dedicated", "serverless"])
def test_a_call_that_is_given_up_leaves_its_place_to_the_next(kind: str) -> None:
    async def main() -> None:
        events = EventRecorder()
        limit = replace(FAST, limit=1)
        pool = dedicated(events, 1) if kind == "dedicated" else serverless(events, limit)
        calls = [asyncio.ensure_future(pool.compute(50)) for _ in range(3)]
        last = asyncio.ensure_future(pool.compute(1))
        await asyncio.sleep(5)
        for call in calls:  # one that runs, two that wait
            call.cancel()
        await last
        assert asyncio.get_running_loop().time() == 6
        await pool.close()

    run_virtual(main)


def test_a_place_that_comes_with_the_cancellation_is_not_lost() -> None:
    async def main() -> None:
        events = EventRecorder()
        pool = dedicated(events, 1)
        running = asyncio.ensure_future(pool.compute(5))
        waiting = asyncio.ensure_future(pool.compute(5))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)  # its place is the waiting call's now, which does not know yet
        waiting.cancel()
        await asyncio.wait([running, waiting])
        assert await ends(pool, [1]) == [1]

    run_virtual(main)


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ({}, Anywhere),
        ({"dedicated": {"hardware": "H20", "gpus": 1}}, Dedicated),
        ({"serverless": {"hardware": "H20", "cold_start_s": 30, "limit": 4}}, Serverless),
    ],
)
def test_a_world_file_says_where(spelled: dict[str, Any], kind: type[RewardPool]) -> None:
    async def main() -> None:
        pool = make_pool("judge", RewardSection.model_validate(spelled), EventRecorder())
        assert isinstance(pool, kind)
        await pool.close()

    run_virtual(main)
