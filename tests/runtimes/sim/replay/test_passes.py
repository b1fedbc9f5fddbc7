"""Replay by passes: a run whose loop was late comes out again, answer for answer."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart.control.admission import Credits
from rollart.control.assembly import STANDARD, assemble, declared_placement
from rollart.control.controller import Controller
from rollart.control.door import STOP, OpenDoor
from rollart.control.doorway import Doorway
from rollart.core.config import JobConfig
from rollart.core.events import Admitted, Answered, Event, RunEnded, Stamped, TrajectoryEnded
from rollart.job import run_started
from rollart.runtimes.sim.loop import VirtualLoop
from rollart.runtimes.sim.replay.run import replay_events
from rollart.testing.harness import scripted_job
from rollart.testing.parts import EventRecorder, ScriptedLauncher
from rollart.testing.script import Script

STALL_S = 0.25
TWO_DOMAINS = [
    {"tag": "lake", "environment": "none:None", "max_turns": 8, "weight": 2.0},
    {"tag": "math", "environment": "none:None", "max_turns": 1},
]
JOB = scripted_job(
    run__steps=4,
    rollout__engines=2,
    rollout__batch_groups=2,
    protocol__alpha=1,
    domains=TWO_DOMAINS,
)


class LateLoop(VirtualLoop):
    """A loop that is late: whatever falls due in a quarter of a second is found at its end."""

    def _advance(self) -> None:
        super()._advance()
        due = -(-self._now // STALL_S) * STALL_S
        self._now = max(self._now, due)
        self._take_due_timers()


Meddle = Callable[[Controller, OpenDoor], None]


def record(
    job: JobConfig,
    script: Script,
    *,
    tasks: int | None = None,
    meddle: Meddle = lambda controller, door: None,
) -> list[Stamped]:
    """The log of a scripted run whose answers come in by a door, on a loop that is late."""
    loop = LateLoop(max_virtual_time=20_000.0)

    async def main() -> list[tuple[float, Event]]:
        events = EventRecorder()
        door = OpenDoor(loop, events)
        controller = await assemble(
            job,
            Doorway(ScriptedLauncher(script, tasks=tasks), door, run_id="run"),
            run_id="run",
            placement=declared_placement(job),
            save_to="weights",
            events=events,
        )
        meddle(controller, door)
        await controller.run()
        return [(0.0, run_started(job, "run", "sim")), *events.events]

    try:
        told = loop.run_until_complete(main())
    finally:
        loop.close()
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(told)
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[JobConfig, Script, int | None]:
    """A job of any protocol, and what goes wrong in it."""
    rng = random.Random(draw(st.integers(0, 10_000)))
    protocol = rng.choice(["rollart", "rollart", "areal", "one_off", "sync_plus", "sync"])
    spare = {"members": 1, "groups": 1, "mode": rng.choice(["race", "unbiased", "adaptive"])}
    job = scripted_job(
        run__steps=3,
        rollout__engines=rng.choice([1, 2, 3]),
        rollout__group_size=rng.choice([2, 3]),
        rollout__batch_groups=2,
        protocol__name=protocol,
        **({"protocol__alpha": rng.choice([0, 1, 2])} if protocol == "rollart" else {}),
        **({"domains": TWO_DOMAINS} if rng.random() < 0.5 else {}),
        **({"redundancy": spare} if rng.random() < 0.4 else {}),
        **({"eval": {"tasks": 3, "every": rng.choice([0, 1])}} if rng.random() < 0.3 else {}),
    )
    script = Script(
        seed=rng.randrange(1_000_000),
        turns=(1, 8),
        tokens_per_turn=rng.choice([(1, 6), (5, 20)]),
        token_s=rng.choice([(0.01, 0.05), (0.05, 0.4)]),
        train_s=rng.choice([(0.5, 2.0), (2.0, 4.0)]),
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
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases())
def test_what_a_late_loop_did_happens_again(case: tuple[JobConfig, Script, int | None]):
    job, script, tasks = case
    log = record(job, script, tasks=tasks)
    assert isinstance(log[-1].event, RunEnded)
    crowds = [len(s.event.who) for s in log if isinstance(s.event, Answered)]
    assert max(crowds) > 1, "the loop was never late"
    # Timers are late by up to a stall, where a wait begins and where it ends.
    report = replay_events(job, log, tolerance_s=2 * STALL_S)
    assert report.equal, str(report)
    assert report.foreign == 0
    assert report.comparison.events == len(log) - 1


def test_a_stop_happens_again_in_its_pass():
    def meddle(controller: Controller, door: OpenDoor) -> None:
        asyncio.get_running_loop().call_later(
            7.3, door.come, STOP, lambda: controller.stop("stopped by SIGINT")
        )

    log = record(JOB, Script(), meddle=meddle)
    assert log[-1].event == replace(log[-1].event, reason="stopped by SIGINT")
    report = replay_events(JOB, log)
    assert report.equal, str(report)


def test_a_log_that_breaks_off_anywhere_is_equal_as_far_as_it_goes():
    log = record(JOB, Script())
    for count in range(60, len(log), 97):
        report = replay_events(JOB, log[:count])
        assert report.equal, f"{count} events: {report}"
        assert not report.complete


# -- planted disorder ------------------------------------------------------------------------


def crowded(log: list[Stamped]) -> list[int]:
    """Places of the answers that came in with others, where the first two ended trajectories."""
    ended = {s.event.trajectory for s in log if isinstance(s.event, TrajectoryEnded)}
    return [
        at
        for at, s in enumerate(log)
        if isinstance(s.event, Answered)
        and len(s.event.who) > 1
        and all(who in ended for who in s.event.who[:2])
    ]


def test_two_answers_of_one_pass_in_the_other_order_are_found():
    log = record(JOB, Script())
    at = crowded(log)[-1]
    event = log[at].event
    assert isinstance(event, Answered)
    first, second, *others = event.who
    log[at] = replace(log[at], event=replace(event, who=(second, first, *others)))
    difference = replay_events(JOB, log).comparison.difference
    assert difference is not None
    assert difference.position >= at - 1


def test_an_answer_a_pass_too_late_is_found():
    log = record(JOB, Script())
    found = 0
    for at in crowded(log):
        event = log[at].event
        assert isinstance(event, Answered)
        late = [*log]
        late[at] = replace(log[at], event=replace(event, who=event.who[1:]))
        difference = replay_events(JOB, late).comparison.difference
        found += difference is not None
    assert found == len(crowded(log)) > 0


class LeavesOneUnused(Credits):
    """Admits as if there were one credit fewer."""

    def take(self) -> None:
        super().take()
        if self.outstanding == self.capacity - 1:
            self._free.clear()


def test_a_changed_decision_is_found_where_it_first_tells():
    log = record(JOB, Script())
    difference = replay_events(
        JOB, log, parts=replace(STANDARD, credits=LeavesOneUnused)
    ).comparison.difference
    assert difference is not None
    assert difference.recorded is not None
    assert isinstance(difference.recorded.event, Admitted)


def test_an_answer_to_nobody_is_found():
    log = record(JOB, Script())
    at = crowded(log)[0]
    event = log[at].event
    assert isinstance(event, Answered)
    log[at] = replace(log[at], event=replace(event, who=(*event.who, "engine-7 pause")))
    difference = replay_events(JOB, log).comparison.difference
    assert difference is not None
    assert "engine-7 pause was answered, and control had not asked for it" in str(difference)


@pytest.mark.parametrize("shift", [1, 3])
def test_a_step_of_control_between_two_answers_may_not_be_left_out(shift: int):
    """Counting passes is what tells how far control had come: without, it is found out."""
    log = record(JOB, Script())
    moved = [
        replace(s, event=replace(s.event, loop_pass=s.event.loop_pass // (shift + 1)))
        if isinstance(s.event, Answered)
        else s
        for s in log
    ]
    assert replay_events(JOB, moved).comparison.difference is not None
