"""The idle account of whole runs of the control plane over scripted parts."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from rollart.core.config import JobConfig
from rollart.core.events import (
    DeviceBusy,
    DeviceReserved,
    Phase,
    PhaseEnded,
    RequestDropped,
    RunStarted,
    Stamped,
    TurnEnded,
    WorkerBound,
)
from rollart.observe.history import gather
from rollart.observe.idle import DeviceAccount, account
from rollart.observe.intervals import Interval, merged
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world.sections import World
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import EventRecorder
from rollart.testing.script import Script
from rollart.testing.worlds import TAG, small_job, small_world

PROTOCOLS = ("sync", "sync_plus", "one_off", "areal", "rollart")


def run(
    protocol: str = "rollart", script: Script | None = None, **overrides: object
) -> ScriptedRun:
    job = scripted_job(run__steps=8, protocol__name=protocol, rollout__engines=2, **overrides)
    return run_scripted(job, script or Script())


def told(found: ScriptedRun, silent: str = "") -> list[Stamped]:
    """The run's events with what its devices were busy with, which scripted ones do not say.

    An engine generates while it holds a request and is not suspended; `silent` says nothing.
    """
    events = found.events.events
    last = events[-1][0]
    busy: dict[tuple[str, str], list[Interval]] = {}
    suspended: list[Interval] = []
    suspended_at = 0.0
    for time, event in events:
        match event:
            case TurnEnded(asked_at=float() as asked, answered_at=float() as answered):
                spans = busy.setdefault((event.engine, "decode"), [])
                spans.append((asked + event.proxy_queued_s, answered))
            case RequestDropped(asked_at=float() as asked) if event.engine:
                busy.setdefault((event.engine, "decode"), []).append((asked, time))
            case PhaseEnded(phase=Phase.TRAIN_STEP):
                busy.setdefault(("trainer", "train"), []).append((time - event.seconds, time))
            case PhaseEnded(phase=Phase.PUBLISH):
                busy.setdefault(("trainer", "publish"), []).append((time - event.seconds, time))
            case PhaseEnded(phase=Phase.SUSPEND):
                suspended_at = time
            case PhaseEnded(phase=Phase.RESUME):
                suspended.append((suspended_at, time))
            case _:
                pass
    stamped = [(time, event) for time, event in events if not isinstance(event, RunStarted)]
    start = RunStarted(
        schema=1, run="run", runtime="sim", protocol=found.job.protocol.name, alpha=1, seed=0,
        steps=8, batch_groups=4, group_size=4, domains=("lake",), config="",
    )  # fmt: skip
    notes = [
        DeviceBusy(device=device, hardware="virtual", work=work, begin=begin, end=end)
        for (device, work), spans in busy.items()
        if device != silent
        for begin, end in (outside(spans, suspended) if work == "decode" else merged(spans))
    ]
    everything = [(0.0, start), *stamped, *((last, note) for note in notes)]
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(everything)
    ]


def outside(spans: list[Interval], holes: list[Interval]) -> list[Interval]:
    """The union of `spans` without `holes`."""
    cuts = [(-math.inf, -math.inf), *merged(holes), (math.inf, math.inf)]
    gaps = [(one[1], other[0]) for one, other in pairwise(cuts)]
    return [
        (max(begin, left), min(end, right))
        for begin, end in merged(spans)
        for left, right in gaps
        if min(end, right) > max(begin, left)
    ]


def devices(events: list[Stamped]) -> dict[str, DeviceAccount]:
    history = gather(events)
    found = account(history.idle, history.busy, history.training_window)
    return {one.device: one for one in found.devices}


def share(device: DeviceAccount, *causes: str) -> float:
    return sum(dict(device.shares)[cause] for cause in causes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_second_of_every_device_has_a_cause_under_every_protocol(protocol: str) -> None:
    found = devices(told(run(protocol)))
    assert set(found) == {"engine-0", "engine-1", "trainer"}
    for device in found.values():
        assert math.fsum(value for _, value in device.shares) == pytest.approx(1.0, abs=1e-12)
        assert min(value for _, value in device.shares) >= 0
        assert share(device, "busy") > 0
        assert share(device, "unknown") <= 0.05, (device.device, dict(device.shares))


def test_an_engine_that_keeps_silent_about_its_work_is_found_out() -> None:
    events = told(run(), silent="engine-1")
    assert share(devices(events)["engine-1"], "unknown") > 0.05


def test_slow_environments_make_engines_and_trainer_wait_for_environments() -> None:
    quick = devices(told(run(script=Script(step_s=(0.01, 0.02)))))
    slow = devices(told(run(script=Script(step_s=(0.8, 1.6)))))
    for name in ("engine-0", "engine-1", "trainer"):
        assert share(slow[name], "environment") > 0.2 + share(quick[name], "environment")


def test_slow_verdicts_make_engines_and_trainer_wait_for_rewards() -> None:
    quick = devices(told(run("sync_plus", Script(reward_s=(0.0, 0.01)))))
    slow = devices(told(run("sync_plus", Script(reward_s=(1.5, 1.9)))))
    for name in ("engine-0", "engine-1", "trainer"):
        assert share(slow[name], "reward") > 0.1 + share(quick[name], "reward")


@pytest.mark.parametrize("protocol", ["sync_plus", "rollart"])
def test_a_slow_trainer_holds_engines_back(protocol: str) -> None:
    quick = devices(told(run(protocol, Script(train_s=(0.0, 0.1)))))
    slow = devices(told(run(protocol, Script(train_s=(5.0, 6.0)))))
    for name in ("engine-0", "engine-1"):
        assert share(slow[name], "admission") > 0.5 + share(quick[name], "admission")
    assert share(slow["trainer"], "busy") > 0.5 + share(quick["trainer"], "busy")


def simulated(job: JobConfig, world: World) -> tuple[EventRecorder, dict[str, DeviceAccount]]:
    """A simulated run's events and its account."""
    events = EventRecorder()
    result = simulate(job, world, events=events)
    assert result.ok, result.reason
    stamped = [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(events.events)
    ]
    return events, devices(stamped)


def test_the_account_has_every_slot_that_was_bound_whatever_the_class_is_called() -> None:
    pair = {
        "prefill": {"hardware": "H800", "gpus": 1, "count": 2},
        "decode": {"hardware": "H20", "gpus": 1, "count": 3},
    }
    events, found = simulated(
        small_job(rollout__engines={"local": 2, "pair": 1}, rollout__affinity={}),
        small_world(
            pools={"H800": 18, "H20": 3},
            engines={"local": {"hardware": "H800", "gpus": 4}, "pair": pair},
        ),
    )
    bound: Counter[tuple[str, str]] = Counter()
    for one in events.of(WorkerBound):
        bound[one.worker, one.hardware] += len(one.slots)
    counted: dict[tuple[str, str], float] = {}
    for device in found.values():
        place = device.device.partition("/")[0], device.hardware
        counted[place] = counted.get(place, 0.0) + device.slots
    assert counted == bound
    assert counted["engine-0", "H800"] == 4


def test_every_gpu_that_is_kept_for_rewards_has_an_account_also_if_it_never_works() -> None:
    """Calls go to the least busy one, the first of equals, so most never get any."""
    rewards = {"seconds": 0.1, "dedicated": {"hardware": "L40S", "gpus": 16}}
    events, found = simulated(
        small_job(), small_world(pools__L40S=16, **{f"rewards__{TAG}": rewards})
    )
    (bound,) = (one for one in events.of(WorkerBound) if one.role == "reward")
    kept = [device for device in found.values() if device.role == "reward"]
    assert sum(device.slots for device in kept) == len(bound.slots) == 16
    assert {device.hardware for device in kept} == {"L40S"}
    assert any(share(device, "busy") == 0 for device in kept)
    assert any(share(device, "busy") > 0 for device in kept)


def test_instances_are_devices_by_their_own_name_only() -> None:
    rewards = {"seconds": 0.1, "serverless": {"hardware": "L40S", "keep_s": 5.0}}
    events, found = simulated(small_job(), small_world(**{f"rewards__{TAG}": rewards}))
    names = {one.device for one in events.of(DeviceReserved)}
    assert names >= {one.device for one in events.of(DeviceBusy) if one.work == "reward"}
    assert {device.device for device in found.values()} - names == {
        "trainer", *(f"engine-{number}" for number in range(8)),
    }  # fmt: skip
