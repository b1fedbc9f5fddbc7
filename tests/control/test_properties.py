"""Random schedules over the real control plane: whatever happens, every promise holds.

A case is a job and a script: latencies, resets that fail, steps that hang or fail, rewards that
hang or refuse, engines that die or refuse weights, equal scores, slow tasks.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart.control.controller import Controller
from rollart.core.config import LAG_OF_ONE_BATCH, JobConfig
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script


def stable(examples: int) -> settings:
    """The same cases in every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


LONGEST_S = 20_000.0
"""Virtual seconds. The longest waits of these jobs, all in a row, take less."""

STATED_REASONS = ("no progress for", "no domain is left", "no engine", "nothing was trained")
"""How a run may end early: each says what happened."""


Meddle = Callable[[Controller, ScriptedLauncher], None]


@dataclass(frozen=True)
class Case:
    job: JobConfig
    script: Script
    tasks: int | None

    def run(self, meddle: Meddle | None = None) -> ScriptedRun:
        return run_scripted(
            self.job,
            self.script,
            tasks=self.tasks,
            meddle=meddle,
            max_virtual_time=LONGEST_S,
        )


def spans(longest: float) -> st.SearchStrategy[tuple[float, float]]:
    """(least, most) seconds."""
    return st.tuples(
        st.sampled_from((0.0, longest / 20)), st.sampled_from((longest / 10, longest / 2, longest))
    )


def spares() -> st.SearchStrategy[Mapping[str, str | int]]:
    some = st.integers(1, 3)
    return st.one_of(
        st.just({}),
        st.fixed_dictionaries({"members": some, "mode": st.sampled_from(("race", "adaptive"))}),
        st.fixed_dictionaries({"groups": some}),
        st.fixed_dictionaries({"members": some, "groups": some, "mode": st.just("unbiased")}),
    )


@st.composite
def jobs(draw: st.DrawFn) -> JobConfig:
    steps = draw(st.integers(3, 8))
    protocol = draw(st.sampled_from(("rollart", "rollart", *LAG_OF_ONE_BATCH, "areal")))
    alpha = draw(st.integers(1 if protocol == "areal" else 0, min(3, steps - 1)))
    tags = draw(st.sampled_from((("lake",), ("lake",), ("lake", "maze"))))
    domains = [
        {
            "tag": tag,
            "environment": "none:None",
            "max_turns": 8,
            "weight": draw(st.sampled_from((1.0, 3.0))),
            "group_size": draw(st.integers(2, 5)),
        }
        for tag in tags
    ]
    return scripted_job(
        domains=domains,
        redundancy=draw(spares()),
        protocol__name=protocol,
        run__steps=steps,
        run__seed=draw(st.integers(0, 3)),
        protocol__alpha=alpha,
        rollout__engines=draw(st.integers(1, 3)),
        rollout__batch_groups=draw(st.integers(1, 4)),
        train__drop_zero_variance=draw(st.booleans()),
    )


@st.composite
def scripts(draw: st.DrawFn, engines: int) -> Script:
    rates = st.sampled_from((0.0, 0.0, 0.05, 0.3))
    names = st.sampled_from([f"engine-{i}" for i in range(engines)])
    return Script(
        seed=draw(st.integers(0, 2**16)),
        turns=(1, draw(st.integers(1, 6))),
        tokens_per_turn=(1, draw(st.integers(1, 12))),
        token_s=draw(spans(0.2)),
        reset_s=draw(spans(3.0)),
        step_s=draw(spans(1.5)),
        reward_s=draw(spans(1.5)),
        train_s=draw(spans(20.0)),
        publish_s=draw(spans(2.0)),
        update_s=draw(spans(4.0)),
        reset_fails=draw(rates),
        step_hangs=draw(st.sampled_from((0.0, 0.0, 0.02))),
        step_fails=draw(rates),
        reward_hangs=draw(st.sampled_from((0.0, 0.0, 0.05))),
        reward_refuses=draw(rates),
        equal_scores=draw(st.sampled_from((0.0, 0.0, 0.5))),
        engine_deaths=draw(st.lists(st.tuples(names, st.integers(1, 200)), max_size=3)),
        update_failures=draw(st.lists(st.tuples(names, st.integers(1, 6)), max_size=4)),
        slow_tasks={f"task-{i}": 4.0 for i in range(0, draw(st.sampled_from((0, 40))), 4)},
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    job = draw(jobs())
    return Case(
        job=job,
        script=draw(scripts(sum(job.engine_counts.values()))),
        tasks=draw(st.sampled_from((None, None, 5, 17))),
    )


@stable(80)
@given(cases())
def test_whatever_happens_every_promise_holds_and_the_run_ends_or_says_why(case: Case) -> None:
    run = case.run()
    assert broken_promises(run) == []
    assert run.result.ok or any(words in run.result.reason for words in STATED_REASONS)


@stable(20)
@given(cases(), st.floats(0.0, 30.0))
def test_a_run_may_be_stopped_at_any_time(case: Case, seconds: float) -> None:
    def stop(controller: Controller, _: ScriptedLauncher) -> None:
        asyncio.get_running_loop().call_later(seconds, controller.stop, "stopped")

    run = case.run(meddle=stop)
    assert broken_promises(run) == []
    assert run.result.ok or any(words in run.result.reason for words in STATED_REASONS)


@stable(10)
@given(cases())
def test_the_same_seed_gives_the_same_events_at_the_same_times(case: Case) -> None:
    assert case.run().events.events == case.run().events.events


TELL_A_RUN = """
import hashlib
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.script import Script

script = Script(
    step_hangs=0.02, step_fails=0.1, reset_fails=0.1, reward_hangs=0.05,
    engine_deaths=(("engine-0", 30), ("engine-2", 200)), update_failures=(("engine-1", 3),),
)
run = run_scripted(scripted_job(run__steps=6, rollout__engines=3), script)
print(hashlib.sha256(repr(run.events.events).encode()).hexdigest(), len(run.events.events))
print(hash("this differs between hash seeds"))
"""


def test_the_same_seed_gives_the_same_events_under_another_hash_seed() -> None:
    def told(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", TELL_A_RUN],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        return done.stdout.splitlines()

    one, other = told("1"), told("2")
    assert one[0] == other[0]
    assert one[1] != other[1]
