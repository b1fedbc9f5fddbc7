"""Replay: a recorded run comes out again, and a control plane that decides otherwise is found."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart.cli.replay import replay
from rollart.control.admission import Credits
from rollart.control.assembly import STANDARD, ControlParts, assemble
from rollart.control.controller import Controller
from rollart.control.flight import LiveGroup
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler
from rollart.core.config import JobConfig
from rollart.core.errors import RollartError
from rollart.core.events import Admitted, DeviceBusy, Disposed, RunEnded, Stamped, Warned
from rollart.core.ports import Affinity
from rollart.core.types import Disposition, Group
from rollart.job import JOB_FILE, run_started, write_job
from rollart.observe.eventlog import EVENTS_FILE, EventLog, read_events
from rollart.plan import in_force, placed
from rollart.resource.placement import Wishes
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.replay.record import ReplayError
from rollart.runtimes.sim.replay.run import replay_events
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.parts import EventRecorder, ScriptedLauncher
from rollart.testing.script import Script

Meddle = Callable[[Controller, ScriptedLauncher], None]

ROUGH = Script(
    turns=(1, 8),
    tokens_per_turn=(5, 20),
    token_s=(0.05, 0.4),
    train_s=(2.0, 4.0),
    update_s=(2.0, 4.0),
)
"""Trajectories that outlast a step: updates find them in flight, and some become stale."""

TWO_DOMAINS = [
    {"tag": "lake", "environment": "none:None", "max_turns": 8, "weight": 2.0},
    {"tag": "math", "environment": "none:None", "max_turns": 1},
]
JOB = scripted_job(
    run__steps=8,
    rollout__engines=2,
    rollout__batch_groups=2,
    protocol__alpha=1,
    domains=TWO_DOMAINS,
)


def record(
    job: JobConfig, script: Script, *, tasks: int | None = None, meddle: Meddle | None = None
) -> list[Stamped]:
    """The log of a scripted run, as its recorder would have stamped it."""
    run = run_scripted(job, script, tasks=tasks, meddle=meddle, max_virtual_time=20_000.0)
    events = [(0.0, run_started(job, "run", "sim")), *run.events.events]
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(events)
    ]


def after(seconds: float, act: Callable[[Controller, ScriptedLauncher], None]) -> Meddle:
    def meddle(controller: Controller, launcher: ScriptedLauncher) -> None:
        asyncio.get_running_loop().call_later(seconds, act, controller, launcher)

    return meddle


@st.composite
def cases(draw: st.DrawFn) -> tuple[JobConfig, Script, int | None]:
    """A job of any protocol that lets trajectories run apart, and what goes wrong in it.

    Resets take time: within one instant a log does not tell how far each one had come.
    """
    rng = random.Random(draw(st.integers(0, 10_000)))
    protocol = rng.choice(["rollart", "rollart", "areal", "one_off", "sync_plus"])
    alpha = {"protocol__alpha": rng.choice([1, 2])} if protocol == "areal" else {}
    if protocol == "rollart":
        alpha = {"protocol__alpha": rng.choice([0, 1, 2])}
    spare = {"members": 1, "groups": 1, "mode": rng.choice(["race", "unbiased", "adaptive"])}
    job = scripted_job(
        run__steps=3,
        rollout__engines=rng.choice([1, 2, 3]),
        rollout__group_size=rng.choice([2, 3]),
        rollout__batch_groups=2,
        protocol__name=protocol,
        **alpha,
        **({"domains": TWO_DOMAINS} if rng.random() < 0.5 else {}),
        **({"redundancy": spare} if rng.random() < 0.3 else {}),
        **({"eval": {"tasks": 3, "every": rng.choice([0, 1])}} if rng.random() < 0.3 else {}),
    )
    script = replace(
        rng.choice([Script(), ROUGH]),
        seed=rng.randrange(1_000_000),
        reset_fails=rng.choice([0.0, 0.1]),
        step_hangs=rng.choice([0.0, 0.03]),
        step_fails=rng.choice([0.0, 0.05]),
        reward_hangs=rng.choice([0.0, 0.05]),
        reward_refuses=rng.choice([0.0, 0.1]),
        equal_scores=rng.choice([0.0, 0.2]),
        engine_deaths=rng.choice([(), (("engine-0", rng.randrange(2, 120)),)]),
        update_failures=rng.choice([(), (("engine-0", rng.randrange(1, 4)),)]),
    )
    return job, script, rng.choice([None, None, 7])


@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases())
def test_whatever_happened_under_virtual_time_happens_again(case):
    job, script, tasks = case
    log = record(job, script, tasks=tasks)
    report = replay_events(job, log)
    assert report.equal, str(report)
    assert report.foreign == 0
    assert report.comparison.events == len(log) - 1
    assert report.comparison.apart_s < 1e-6


def test_a_lockstep_run_happens_again():
    job = scripted_job(protocol__name="sync", rollout__engines=2, run__steps=3)
    report = replay_events(job, record(job, Script(seed=3)))
    assert report.equal, str(report)


@pytest.mark.parametrize(
    "meddle",
    [
        after(11.0, lambda controller, _: controller.stop("stopped by SIGINT")),
        after(12.0, lambda _, launcher: launcher.trainers[0].die("killed")),
    ],
    ids=["a stop", "the trainer's death"],
)
def test_an_end_from_outside_happens_again(meddle):
    log = record(JOB, ROUGH, meddle=meddle)
    assert isinstance(log[-1].event, RunEnded)
    assert log[-1].event.steps < 8
    report = replay_events(JOB, log)
    assert report.equal, str(report)


# -- planted bugs ----------------------------------------------------------------------------


class LeavesOneUnused(Credits):
    """Admits as if there were one credit fewer."""

    def take(self) -> None:
        super().take()
        if self.outstanding == self.capacity - 1:
            self._free.clear()


class NewestFirst(SampleBuffer):
    """Trains on the groups that arrived last."""

    def take(self, count: int, *, in_order: bool = False) -> tuple[Group, ...]:
        self._groups = dict(reversed(self._groups.items()))
        return super().take(count, in_order=in_order)


class LetsTheStaleGoOn(RolloutScheduler):
    """Aborts nothing."""

    async def abort_stale(self, version: int) -> int:
        return 0

    def _may_go_on(self, group: LiveGroup) -> bool:
        return group.doom is None


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (replace(STANDARD, credits=LeavesOneUnused), "Admitted was recorded"),
        (replace(STANDARD, buffer=NewestFirst), "TRAINED"),
        (replace(STANDARD, scheduler=LetsTheStaleGoOn), "ABORT_STALE"),
    ],
    ids=["admission", "order of batches", "staleness"],
)
def test_a_changed_decision_is_found_where_it_first_tells(parts: ControlParts, told: str):
    log = record(JOB, ROUGH)
    left = [s.event for s in log if isinstance(s.event, Disposed)]
    assert any(event.disposition is Disposition.STALE for event in left)
    report = replay_events(JOB, log, parts=parts)
    difference = report.comparison.difference
    assert difference is not None
    assert difference.recorded is not None
    assert report.comparison.events == difference.position > 5
    assert told in str(difference), str(difference)


def test_a_record_that_was_tampered_with_is_found():
    log = record(JOB, Script())
    at = [n for n, s in enumerate(log) if isinstance(s.event, Admitted)][5]
    event = log[at].event
    assert isinstance(event, Admitted)
    log[at] = replace(log[at], event=replace(event, outstanding=event.outstanding + 1))
    difference = replay_events(JOB, log).comparison.difference
    assert difference is not None
    assert difference.position == at - 1
    assert "outstanding" in difference.why


# -- what a log may hold and lack ------------------------------------------------------------


def test_what_others_than_control_told_is_not_compared():
    log = record(JOB, Script())
    busy = DeviceBusy(device="gpu", hardware="virtual", work="decode", begin=0.0, end=1.0)
    for at, event in ((40, busy), (80, Warned(message="the disk is slow"))):
        log.insert(at, replace(log[at], event=event))
    report = replay_events(JOB, [replace(s, seq=seq) for seq, s in enumerate(log)])
    assert report.equal, str(report)
    assert (report.outside, report.foreign) == (2, 1)


def test_a_log_that_breaks_off_is_equal_as_far_as_it_goes():
    log = record(JOB, Script())[:300]
    report = replay_events(JOB, log)
    assert report.equal
    assert not report.complete
    assert report.comparison.events == 299


def test_a_log_with_a_gap_is_refused():
    log = record(JOB, Script())
    with pytest.raises(ReplayError, match="event 100 is missing"):
        replay_events(JOB, log[:100] + log[101:])


def test_a_restarted_run_is_refused():
    log = [replace(stamped, incarnation=1) for stamped in record(JOB, Script())]
    with pytest.raises(ReplayError, match="restarted"):
        replay_events(JOB, log)


# -- the command -----------------------------------------------------------------------------


def written(directory: Path, job: JobConfig, log: list[Stamped]) -> Path:
    write_job(job, directory / JOB_FILE)
    file = EventLog(directory / EVENTS_FILE)
    for stamped in log:
        file.append(stamped)
    file.close()
    return directory


def test_the_command_says_how_many_events_are_equal(tmp_path):
    log = record(JOB, ROUGH)
    code, said = replay(written(tmp_path, JOB, log))
    assert code == 0
    assert said.startswith(f"equal: {len(log) - 1} events")
    assert [s.event for s in read_events(tmp_path / EVENTS_FILE)] == [s.event for s in log]


def test_a_run_whose_affinity_was_declared_in_code_is_replayed_from_what_it_left(tmp_path):
    declared = Wishes(generation=Affinity(by_domain={"lake": "H800"}, default="H20"))

    job = scripted_job(run__steps=3, rollout__engines=2)

    async def main() -> list[Stamped]:
        events = EventRecorder()
        controller = await assemble(
            job,
            ScriptedLauncher(ROUGH),
            run_id="run",
            placement=placement,
            save_to="weights",
            events=events,
        )
        assert (await controller.run()).ok
        told = [(0.0, run_started(job, "run", "sim")), *events.events]
        return [
            Stamped(time=time, seq=seq, incarnation=0, event=event)
            for seq, (time, event) in enumerate(told)
        ]

    with placed(job, None, declared) as (placement, _):
        log = run_virtual(main)
    code, said = replay(written(tmp_path, in_force(job, placement), log))
    assert code == 0, said
    assert not replay_events(job, log).equal, "the affinity is what makes it so"


def test_the_command_shows_the_first_difference(tmp_path):
    log = record(JOB, ROUGH)
    code, said = replay(written(tmp_path, scripted_job(run__steps=2), log))
    assert code == 1
    assert "first difference at event" in said
    assert "recorded:" in said
    assert "replayed:" in said


def test_the_command_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RollartError):
        replay(tmp_path)
    with pytest.raises(ReplayError, match="no engine ever came up"):
        replay(written(tmp_path, JOB, record(JOB, Script())[:1]))
