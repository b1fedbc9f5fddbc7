"""Each promise, broken on purpose: the check that the real control plane passes finds the bug.

Each test runs one schedule twice: the real parts keep every promise, the broken part does not.
"""

from dataclasses import replace

import pytest

from rollart.control.assembly import STANDARD, ControlParts
from rollart.core.config import JobConfig
from rollart.core.ports import Binding, Engine
from rollart.testing.engine import ScriptedEngine
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.promises import broken_promises
from rollart.testing.request_plants import (
    AbortsAfterResume,
    ForgetsOnDrop,
    ForgetsTokens,
    LabelsWithTheNewest,
    Reencodes,
    ResumesOnlyOnSuccess,
    RoutesBeforeTheAnswer,
    SendsWhileSuspended,
    StartsWhenItEnds,
    TrainsUncommitted,
    WholeBudgetAgain,
)
from rollart.testing.scheduling_plants import (
    CountsTwice,
    CreditsAtGetBatch,
    ForgetsStaleTasks,
    KeepsEnvironments,
    LeavesTwice,
    LosesTheFailed,
    NeverStale,
    NewestFirst,
    NoDeadline,
    OneMore,
)
from rollart.testing.script import Script

ROUGH = Script(
    turns=(1, 8),
    tokens_per_turn=(5, 20),
    token_s=(0.05, 0.4),
    train_s=(2.0, 4.0),
    update_s=(2.0, 4.0),
)
"""Trajectories that outlast a step: updates find them in flight, and a tenth become stale."""
DYING = replace(
    ROUGH,
    engine_deaths=(("engine-0", 40), ("engine-1", 90), ("engine-0", 150)),
    update_failures=(("engine-1", 3), ("engine-0", 4)),
)
JOB = scripted_job(run__steps=10, rollout__engines=2, rollout__batch_groups=2, protocol__alpha=2)


def judge(job: JobConfig, script: Script, parts: ControlParts) -> list[str]:
    return broken_promises(run_scripted(job, script, parts=parts, max_virtual_time=1e5))


BUGS: list[tuple[JobConfig, Script, ControlParts, str]] = [
    (JOB, replace(ROUGH, seed=9), ControlParts(proxy=StartsWhenItEnds), "began at"),
    (JOB, ROUGH, ControlParts(proxy=Reencodes), "tokens: "),
    (JOB, ROUGH, ControlParts(proxy=ForgetsOnDrop), "was left with"),
    (JOB, DYING, ControlParts(proxy=ForgetsTokens), "continuation: "),
    (JOB, DYING, ControlParts(proxy=WholeBudgetAgain), "continuation: "),
    (JOB, ROUGH, ControlParts(proxy=SendsWhileSuspended), "while paused"),
    (JOB, DYING, ControlParts(fleet=RoutesBeforeTheAnswer), "it had acknowledged"),
    (
        scripted_job(run__steps=3),
        replace(ROUGH, update_failures=[("engine-0", n) for n in range(2, 40)]),
        ControlParts(sync=ResumesOnlyOnSuccess),
        "ended suspended",
    ),
    (JOB, ROUGH, ControlParts(sync=AbortsAfterResume), "six steps: step"),
    (JOB, ROUGH, ControlParts(sync=TrainsUncommitted), "commit: step"),
    (JOB, ROUGH, ControlParts(scheduler=CreditsAtGetBatch), "admission: "),
    (JOB, ROUGH, ControlParts(credits=OneMore), "admission: "),
    (
        scripted_job(run__steps=8, protocol__alpha=3, rollout__batch_groups=1),
        Script(train_s=(20.0, 20.0)),
        ControlParts(buffer=NewestFirst),
        "order: step",
    ),
    (JOB, ROUGH, ControlParts(scheduler=NeverStale), "alpha: "),
    (JOB, ROUGH, ControlParts(scheduler=ForgetsStaleTasks), "order: "),
    (JOB, ROUGH, ControlParts(scheduler=LeavesTwice, ledger=CountsTwice), "more than once"),
    (
        JOB,
        replace(ROUGH, step_fails=0.1),
        ControlParts(runner=LosesTheFailed),
        "never left",
    ),
    (
        scripted_job(run__steps=8, protocol__alpha=3),
        replace(ROUGH, step_hangs_for=("task-1",), train_s=(40.0, 40.0)),
        ControlParts(manager=NoDeadline),
        "deadline: ",
    ),
    (JOB, ROUGH, ControlParts(manager=KeepsEnvironments), "environments of lake left open"),
]


def name_of(value: object) -> str | None:
    if isinstance(value, ControlParts):
        standard = vars_of(STANDARD)
        return "-".join(k.__name__ for k in vars_of(value) if k not in standard)
    return None


def vars_of(parts: ControlParts) -> list[type]:
    return [getattr(parts, name) for name in parts.__dataclass_fields__]


@pytest.mark.parametrize(("job", "script", "parts", "words"), BUGS, ids=name_of)
def test_the_checks_find_a_planted_bug_where_the_real_parts_pass(
    job: JobConfig, script: Script, parts: ControlParts, words: str
) -> None:
    assert judge(job, script, STANDARD) == []
    problems = judge(job, script, parts)
    assert any(words in problem for problem in problems), problems[:3]


def test_a_late_leaving_is_harmless_to_the_real_ledger() -> None:
    assert judge(JOB, ROUGH, ControlParts(scheduler=LeavesTwice)) == []


def careless_run(*, rebuilds_kv: bool) -> ScriptedRun:
    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            self.engines.append(
                ScriptedEngine(binding.worker, self.script, rebuilds_kv=rebuilds_kv)
            )
            return self.engines[-1]

    return run_scripted(JOB, ROUGH, launcher=Launches)


def test_an_engine_that_goes_on_with_old_kv_is_found() -> None:
    assert broken_promises(careless_run(rebuilds_kv=True)) == []
    assert any(
        "stale KV" in problem for problem in broken_promises(careless_run(rebuilds_kv=False))
    )


def test_a_trajectory_labelled_with_the_newest_version_is_found() -> None:
    problems = judge(JOB, ROUGH, ControlParts(proxy=LabelsWithTheNewest))
    assert any("versions: " in problem for problem in problems), problems[:3]
