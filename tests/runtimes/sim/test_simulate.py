"""Whole simulated runs: promises hold, the seed decides, and every decision is control's."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from rollart.control.admission import Credits
from rollart.control.assembly import STANDARD, ControlParts
from rollart.control.controller import RunResult
from rollart.control.fleet import EngineSlot, Fleet
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.events import (
    Committed,
    DeviceBusy,
    Disposed,
    EngineAcknowledged,
    EngineDown,
    EngineUp,
    Event,
    LedgerClosed,
    Phase,
    PhaseEnded,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    WorkerBound,
)
from rollart.core.ports import Launcher
from rollart.runtimes.sim.chaos.driver import FaultDriver
from rollart.runtimes.sim.chaos.evidence import EngineSeen, Evidence
from rollart.runtimes.sim.chaos.faulty_launcher import FaultyLauncher
from rollart.runtimes.sim.chaos.invariants import broken_invariants
from rollart.runtimes.sim.chaos.port_invariants import broken_at_ports
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world.sections import World
from rollart.testing.parts import EventRecorder
from rollart.testing.scheduling_plants import CreditsAtGetBatch
from rollart.testing.worlds import TAG, small_job, small_world

PROTOCOLS = ("sync", "sync_plus", "one_off", "areal", "rollart")


def run(
    job: JobConfig | None = None,
    world: World | None = None,
    *,
    parts: ControlParts = STANDARD,
    seed: int = 0,
    **options: Any,
) -> tuple[RunResult, EventRecorder]:
    events = EventRecorder()
    result = simulate(
        job or small_job(),
        world or small_world(),
        seed=seed,
        events=events,
        parts=parts,
        max_virtual_time=1e6,
        **options,
    )
    return result, events


def seconds(events: EventRecorder) -> float:
    return events.events[-1][0]


def told(events: EventRecorder) -> Sequence[tuple[float, Event]]:
    return events.events


def judged(job: JobConfig, world: World, **options: Any) -> tuple[EventRecorder, list[str]]:
    """Events of a run that ends well, and the promises that it broke."""
    driver = FaultDriver(())
    watched: list[FaultyLauncher] = []

    def around(launcher: SimLauncher) -> Launcher:
        watched.append(FaultyLauncher(launcher, driver))
        return watched[0]

    result = simulate(job, world, seed=0, events=driver, around=around, **options)
    assert result.ok, result.reason
    assert result.steps == job.run.steps
    evidence = Evidence(
        job=job,
        steps=result.steps,
        events=driver.events,
        batches=[batch for trainer in watched[0].trainers for batch in trainer.batches],
        engines=[
            EngineSeen(id=engine.id, calls=engine.calls, dispatches=engine.dispatches)
            for engine in watched[0].engines
        ],
    )
    broken = [
        *broken_invariants(evidence),
        *broken_at_ports(evidence, result, driver, watched[0]),
    ]
    return EventRecorder(events=list(driver.events)), broken


LONG_TAILS = small_world(
    trainer__fixed_s=60.0,
    **{
        f"domains__{TAG}__turns": {"uniform": [2, 20], "tail": {"chance": 0.05, "up_to": 3}},
        f"domains__{TAG}__reset_failure": {"chance": 0.05, "seconds": 100},
        f"domains__{TAG}__reset_hang": {"chance": 0.05, "seconds": {"uniform": [60, 240]}},
        f"domains__{TAG}__step_failure": {"chance": 0.002, "seconds": 5},
        f"domains__{TAG}__image": {"hit": 0.5, "pull_s": {"exponential": 10}},
        f"rewards__{TAG}": {
            "seconds": {"exponential": 2},
            "failure": 0.02,
            "serverless": {"limit": 4, "cold_start_s": 5},
        },
        "registry__pulls_at_once": 2,
    },
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_keeps_its_promises(protocol: str) -> None:
    job = small_job(run__steps=5, protocol__name=protocol)
    events, broken = judged(job, small_world())
    assert broken == []
    assert all(balance.balanced for balance in events.of(LedgerClosed))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_keeps_its_promises_under_long_tails_and_a_death(protocol: str) -> None:
    spares = {} if protocol.startswith("sync") else {"redundancy__members": 1}
    job = small_job(run__steps=5, protocol__name=protocol, rollout__affinity={}, **spares)
    events, broken = judged(job, LONG_TAILS, meddle=kill_one)
    assert len(events.of(EngineDown)) == 1
    assert broken == []
    dispositions = Counter(event.disposition.value for event in events.of(Disposed))
    assert dispositions["failed"] > 0


def kill_one(controller: object, launcher: SimLauncher) -> None:
    """An engine dies after a minute."""
    asyncio.get_running_loop().call_later(60, lambda: launcher.engines[3].die("as told"))


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    job = small_job(protocol__alpha=2, redundancy__members=1)
    assert told(run(job)[1]) == told(run(job)[1])
    assert told(run(job, seed=1)[1]) != told(run(job)[1])


def test_faster_hardware_makes_a_faster_run_and_prefix_hits_save_prefill() -> None:
    plain = seconds(run()[1])
    slow_trainer = seconds(run(world=small_world(trainer__fixed_s=200.0))[1])
    assert slow_trainer > plain + 300
    cached = run(world=small_world(**{f"domains__{TAG}__prefix_hit": 1.0}))[1]

    def prefilled(events: EventRecorder) -> int:
        return sum(turn.cost.prefill_tokens for turn in events.of(TurnEnded))

    assert prefilled(cached) < 0.8 * prefilled(run()[1])


def test_where_a_domain_is_served_is_the_jobs_affinity() -> None:
    def served(**overrides: Any) -> tuple[set[str], float]:
        events = run(small_job(**overrides))[1]
        kinds = {up.engine: up.hardware for up in events.of(EngineUp)}
        return {kinds[turn.engine] for turn in events.of(TurnEnded)}, seconds(events)

    kinds, took = served(rollout__affinity={"default": "H20"})
    assert kinds == {"H20"}
    others, took_there = served(rollout__affinity={"default": "H800"})
    assert others == {"H800"}
    assert served(rollout__affinity={})[0] == {"H20", "H800"}
    assert took != took_there


class OnlyTheFirst(Fleet):
    """Another routing: one engine gets everything."""

    def routable(self) -> Mapping[str, EngineSlot]:
        return dict(list(super().routable().items())[:1])


def test_another_routing_changes_the_simulated_run() -> None:
    standard, alone = run()[1], run(parts=ControlParts(fleet=OnlyTheFirst))[1]
    assert len({turn.engine for turn in standard.of(TurnEnded)}) == 6
    assert {turn.engine for turn in alone.of(TurnEnded)} == {"engine-0"}

    def generated_s(events: EventRecorder) -> float:
        return sum(turn.cost.decode_s for turn in events.of(TurnEnded))

    assert generated_s(alone) != generated_s(standard)


def test_credits_that_come_back_too_early_are_found_out() -> None:
    job = small_job(run__steps=5)
    world = small_world(trainer__fixed_s=60.0)
    _, kept = judged(job, world)
    _, broken = judged(job, world, parts=ControlParts(scheduler=CreditsAtGetBatch))
    assert kept == []
    assert any(sentence.startswith("admission") for sentence in broken)


class HalfTheCredits(Credits):
    """Another admission: half as much may be outstanding."""

    def __init__(self, capacity: int) -> None:
        super().__init__(max(1, capacity // 2))


def test_another_admission_policy_changes_the_simulated_run() -> None:
    job = small_job(run__steps=4)
    standard, halved = run(job), run(job, parts=ControlParts(credits=HalfTheCredits))
    assert halved[0].ok

    def most_at_once(events: EventRecorder) -> int:
        now = most = 0
        for _, event in told(events):
            now += isinstance(event, TrajectoryStarted)
            now -= isinstance(event, TrajectoryEnded)
            most = max(most, now)
        return most

    assert most_at_once(halved[1]) <= 16 < most_at_once(standard[1])
    assert seconds(halved[1]) > seconds(standard[1])


def test_another_protocol_changes_the_simulated_run_in_the_papers_order() -> None:
    """Training takes longer than a rollout here, so overlapping the two is what counts."""
    world = small_world(trainer__fixed_s=60.0)
    took = {
        name: seconds(run(small_job(run__steps=5, protocol__name=name), world)[1])
        for name in PROTOCOLS
    }
    assert took["sync"] > took["sync_plus"] > took["one_off"]
    assert took["one_off"] >= took["areal"]
    assert took["sync_plus"] > took["rollart"]


def test_weights_that_block_are_waited_for_and_those_in_the_background_are_not() -> None:
    def updates(mode: str) -> float:
        events = run(world=small_world(weights={"mode": mode}))[1]
        return sum(ended.seconds for ended in events.of(PhaseEnded) if ended.phase is Phase.UPDATE)

    assert updates("blocking") > 3 * updates("async")


def test_an_engine_that_dies_comes_back_on_its_binding_and_the_run_goes_on() -> None:
    result, events = run(small_job(run__steps=4), meddle=kill_one)
    assert result.ok, result.reason
    assert [down.engine for down in events.of(EngineDown)] == ["engine-3"]
    ups = [up.engine for up in events.of(EngineUp)]
    assert ups.count("engine-3") == 2
    died = next(at for at, event in told(events) if isinstance(event, EngineDown))
    assert any(
        isinstance(event, EngineAcknowledged) and event.engine == "engine-3" and at > died
        for at, event in told(events)
    )


def test_devices_are_never_busy_twice_at_once_and_are_those_that_were_bound() -> None:
    events = run()[1]
    spans: dict[str, list[tuple[float, float]]] = {}
    for busy in events.of(DeviceBusy):
        spans.setdefault(busy.device, []).append((busy.begin, busy.end))
    bound = {one.worker for one in events.of(WorkerBound)}
    assert set(spans) <= bound
    assert {"trainer", "engine-2"} <= set(spans)
    for device, busy in spans.items():
        busy.sort()
        assert all(b >= a - 1e-6 for (_, a), (b, _) in pairwise(busy)), device


def test_what_devices_do_is_booked_on_the_hardware_that_they_were_bound_to() -> None:
    """Also where the job's class of engines is not named after a GPU."""
    part = {"hardware": "H20", "gpus": 1, "count": 2}
    events = run(
        small_job(rollout__engines={"local": 2, "pair": 1}, rollout__affinity={}),
        small_world(
            pools={"H800": 16, "H20": 2},
            engines={
                "local": {"hardware": "H800", "gpus": 2},
                "pair": {"prefill": {"hardware": "H800", "gpus": 1, "count": 2}, "decode": part},
            },
        ),
    )[1]
    bound: dict[str, set[str]] = {}
    for one in events.of(WorkerBound):
        bound.setdefault(one.worker, set()).add(one.hardware)
    assert bound["engine-2"] == {"H800", "H20"}
    told_of: dict[str, set[str]] = {}
    for busy in events.of(DeviceBusy):
        told_of.setdefault(busy.device.partition("/")[0], set()).add(busy.hardware)
    assert told_of == bound


def test_tasks_that_end_end_the_run() -> None:
    world = small_world(**{f"domains__{TAG}__tasks": 6})
    result, events = run(small_job(run__steps=9), world)
    assert result.ok, result.reason
    assert "task" in result.reason
    assert 1 <= result.steps < 9
    assert len({event.task for event in events.of(TrajectoryStarted)}) == 6


def test_failed_resets_cost_attempts_and_are_booked_as_failed() -> None:
    world = small_world(**{f"domains__{TAG}__reset_failure": {"chance": 0.2, "seconds": 100}})
    result, events = run(world=world)
    assert result.ok, result.reason
    assert any(event.disposition.value == "failed" for event in events.of(Disposed))
    assert all(balance.balanced for balance in events.of(LedgerClosed))


def test_a_world_that_does_not_fit_is_refused_before_anything_happens() -> None:
    events = EventRecorder()
    with pytest.raises(ConfigError, match=r"pools\.H20 = 5"):
        simulate(small_job(), small_world(pools__H20=5), events=events)
    assert events.events == []


def test_held_out_tasks_are_played_before_and_after() -> None:
    result, events = run(small_job(eval__tasks=4))
    assert result.ok, result.reason
    purposes = Counter(event.purpose for event in events.of(TrajectoryStarted))
    assert purposes["eval"] == 16  # sampled and greedily, before and after
    assert {event.version for event in events.of(Committed)} == {0, 1, 2, 3}
