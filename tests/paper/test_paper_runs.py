"""What is measured of a run, and what a task's own pace does to it."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollart.core.errors import RollartError
from rollart.core.events import BatchTaken, DeviceBusy, DeviceReserved, Phase, PhaseBegan, Work
from rollart.core.identity import TrajectoryId
from rollart.paper.arms import Arm, Cluster, arm
from rollart.paper.measure import REWARD_POOL, TRAINER_POOL, Measured, Watch
from rollart.paper.parameters import NO_TRAINING
from rollart.paper.run import run_arm
from rollart.paper.spread import TaskSpread
from rollart.runtimes.sim.episodes.workload import DrawnDomain
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.world.file import presets
from rollart.runtimes.sim.world.sections import DomainSection, RewardSection

KEYS = {
    "turns": {"uniform": [2, 5]},
    "first_tokens": 300,
    "observation_tokens": 100,
    "answer_tokens": {"exponential": 80},
    "step_s": {"exponential": 2.0},
}


def small(protocol: str = "rollart", *, name: str = "small", **training: float | bool) -> Arm:
    return arm(
        name,
        Cluster(
            model="Qwen3-8B", engines={"H800": 2, "H20": 2}, trainer=4, training=dict(training)
        ),
        domains={"Short": KEYS},
        groups=4,
        group_size=4,
        steps=4,
        skip=1,
        protocol=protocol,
    )


@pytest.fixture(scope="module")
def overlapped() -> Measured:
    return run_arm(small(), 0)


def test_shares_are_shares_and_a_trainer_that_paces_a_run_works_most(
    overlapped: Measured,
) -> None:
    assert {pool for pool, _ in overlapped.busy} == {"H800", "H20", TRAINER_POOL}
    assert all(0 < share <= 1.0 for _, share in overlapped.busy)
    assert overlapped.use(TRAINER_POOL) > 0.5 > overlapped.use("H800")
    assert overlapped.use("L40S") == 0.0


def test_a_step_is_rollout_and_training_where_they_take_turns(overlapped: Measured) -> None:
    apart = run_arm(small("sync_plus"), 0)
    assert apart.step_s > apart.rollout_s + 50.0
    assert overlapped.step_s < apart.step_s
    assert apart.lag == 0.0
    assert overlapped.lag > 0.0
    assert overlapped.throughput == pytest.approx(overlapped.tokens / overlapped.step_s)


def test_next_to_no_training_leaves_the_rollout() -> None:
    alone = run_arm(small("sync_plus", name="alone", **NO_TRAINING), 0)
    assert alone.step_s < 1.6 * alone.rollout_s + 45.0  # and a push
    assert alone.use(TRAINER_POOL) < 0.05


def test_equal_arms_and_seeds_measure_the_same(overlapped: Measured) -> None:
    assert run_arm(small(), 0) == overlapped
    assert run_arm(small(), 1) != overlapped


def test_a_run_that_does_not_reach_its_end_is_an_error() -> None:
    whole = small()
    domains = {"Short": whole.world.domains["Short"].model_copy(update={"tasks": 3})}
    ends = whole.world.model_copy(update={"domains": domains})
    with pytest.raises(RollartError, match="arm small, seed 0"):
        run_arm(Arm(name="small", job=whole.job, world=ends), 0)


@pytest.mark.real
def test_the_processes_end_with_the_one_that_began_them() -> None:
    command = [sys.executable, "-m", "rollart", "paper", "--quick", "--rows", "m-weights"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as began:
        assert began.stderr is not None
        began.stderr.readline()  # a first run is over, so they are there
        children = Path(f"/proc/{began.pid}/task/{began.pid}/children").read_text().split()
        assert len(children) >= 2
        began.kill()
        began.stderr.read()  # open until the last of them is gone
    ends = time.monotonic() + 10.0
    while any(map(_lives, children)) and time.monotonic() < ends:
        time.sleep(0.05)  # what keeps count of semaphores closes its end first
    assert not [pid for pid in children if _lives(pid)]


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_more_steps_skipped_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"0 batches and the first 2 .* give it more steps"):
        Watch().measured(skip=2)


@pytest.mark.parametrize(("kept", "use"), [((), 0.75), ((0, 1, 2, 3), 0.125)])
def test_rewards_are_used_as_much_of_the_time_as_their_gpus_were_there(
    kept: tuple[int, ...], use: float
) -> None:
    """Five busy seconds, of 6.67 that instances were there, or of four GPUs for 10 s."""

    async def main() -> Measured:
        watch = Watch()
        watch.emit(PhaseBegan(step=0, phase=Phase.GET_BATCH))
        spans = [(0.0, 1.0), (2.0, 4.0), (8.0, 10.0)]
        for begin, end in spans:
            watch.emit(_busy("judge-0", "reward", begin, end))
        for place in kept:
            watch.emit(_reserved(f"kept-{place}", 0.0, None))
        if not kept:
            watch.emit(_reserved("judge-0", 0.0, None))
            watch.emit(_reserved("judge-0", 0.0, 4.0 + 2 / 3))
            watch.emit(_reserved("judge-1", 8.0, None))
        await asyncio.sleep(10.0)
        watch.emit(_taken())
        return watch.measured(skip=0)

    found = run_virtual(main)
    assert found.use(REWARD_POOL) == pytest.approx(use)
    assert found.throughput == pytest.approx(10.0)


def test_pools_are_in_use_while_they_compute_and_not_while_weights_are_moved() -> None:
    async def main() -> Measured:
        watch = Watch()
        watch.emit(PhaseBegan(step=0, phase=Phase.GET_BATCH))
        for number, work in enumerate(Work):
            watch.emit(_busy("trainer" if work is Work.TRAIN else "e", work, number, number + 1))
        await asyncio.sleep(10.0)
        watch.emit(_taken())
        return watch.measured(skip=0)

    found = run_virtual(main)
    assert len(Work) == 10
    assert found.use(TRAINER_POOL) == pytest.approx(0.1)
    assert found.use("H800") == pytest.approx(0.6)  # all but train, reward, update, publish


def _taken() -> BatchTaken:
    return BatchTaken(
        step=0,
        groups=1,
        trajectories=1,
        tokens=100,
        start_lag_max=0,
        score_mean=None,
        success_mean=None,
    )


def _busy(device: str, work: str, begin: float, end: float) -> DeviceBusy:
    return DeviceBusy(device=device, hardware="H800", work=work, begin=begin, end=end)


def _reserved(device: str, begin: float, end: float | None) -> DeviceReserved:
    return DeviceReserved(device=device, hardware="H800", begin=begin, end=end)


def test_trajectories_of_a_task_share_its_pace_and_tasks_differ() -> None:
    spec = DomainSection.model_validate({**presets()["FrozenLake"], "step_s": 1.0})
    inner = DrawnDomain(spec, RewardSection(), seed=3)
    spread = TaskSpread(inner, sigma=0.5, seed=3)

    def paced(task: str, member: int) -> float:
        ident = TrajectoryId(run="r", domain="FrozenLake", task=task, group=0, member=member)
        return spread.step(str(ident), 0).seconds

    assert paced("t1", 0) == paced("t1", 1) != paced("t2", 0)
    plain = TaskSpread(inner, sigma=0.0, seed=3)
    assert plain.step("FrozenLake/t1/g0.0.0", 0) == inner.step("FrozenLake/t1/g0.0.0", 0)
    assert plain.turns("FrozenLake/t1/g0.0.0") == inner.turns("FrozenLake/t1/g0.0.0")
