"""What a job file amounts to, and what a run records of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollart as ra
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.events import Warned
from rollart.core.jobfile import load_job
from rollart.core.ports import Affinity
from rollart.evaluate import Findings, eval_settings
from rollart.job import JOB_FILE, write_job, write_records
from rollart.plan import JobPlan, check, in_force, placed, planned_bindings
from rollart.resource.placement import Wishes
from rollart.testing.harness import scripted_job

TWO = [
    {"tag": "lake", "environment": "fakes:Lake"},
    {"tag": "pond", "environment": "fakes:Pond"},
]
HETERO = Wishes(generation=Affinity(by_domain={"lake": "H800"}, default="H20"))


def two(**changes: Any) -> JobConfig:
    return scripted_job(domains=TWO, **{"rollout__engines": 3, **changes})


# -- what is in force ------------------------------------------------------------------------


def test_the_recorded_job_says_the_affinity_that_was_declared_and_plans_the_same_places(
    tmp_path: Path,
) -> None:
    with placed(two(), None, HETERO) as (placement, bindings):
        write_job(in_force(two(), placement), tmp_path / JOB_FILE)
    recorded = load_job(tmp_path / JOB_FILE)
    assert recorded.rollout.affinity == {"lake": "H800", "default": "H20"}
    assert sum(recorded.engine_counts.values()) == 3
    planned = planned_bindings(tmp_path / JOB_FILE)
    assert [(b.worker, b.pool) for b in planned] == [(b.worker, b.pool) for b in bindings]


@pytest.mark.parametrize(
    ("pools", "wishes", "classes"),
    [
        (ra.ResourceManager({"H20": range(8)}), Wishes(), {"H20"}),
        (ra.ResourceManager({"H800": [0], "H20": range(1, 9)}), HETERO, {"H800", "H20"}),
        (None, Wishes(), {"local"}),
    ],
    ids=["pools decide", "the trainer has the wanted class", "this machine"],
)
def test_the_recorded_engines_are_of_the_classes_that_pools_decided(
    pools: ra.ResourceManager | None, wishes: Wishes, classes: set[str], tmp_path: Path
) -> None:
    with placed(two(), pools, wishes) as (placement, _):
        write_job(in_force(two(), placement), tmp_path / JOB_FILE)
    counts = load_job(tmp_path / JOB_FILE).engine_counts
    assert sum(counts.values()) == 3
    assert set(counts) == classes


# -- modules -----------------------------------------------------------------------------------

JOB = """
schema = 1
[run]
directory = "{runs}"
trackers = []
[model]
make = "lake:make"
[train]
correction = "behaviour"
[[domains]]
tag = "Lake"
environment = "lake:Lake"
"""
LAKE = """
def make(folder, seed):
    raise AssertionError("a check makes no model")

class Lake:
    def reset(self, task, seed):
        return "here"

    def step(self, action):
        return "there", 0.0, True
"""


def test_the_job_of_a_run_finds_the_modules_of_the_run(tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "runs" / "run"
    source.mkdir()
    (source / "lake.py").write_text(LAKE)
    (source / "job.toml").write_text(JOB.format(runs=tmp_path / "runs"))
    plan = check(source / "job.toml")
    write_records(plan, run)
    again = check(run / JOB_FILE, ["run.name=again"])
    assert again.python_path == plan.python_path == (str(source),)
    assert replace(again, job=plan.job, source=plan.source, directory=plan.directory) == plan
    with pytest.raises(ConfigError, match="already holds a run; choose another name"):
        check(run / JOB_FILE)


# -- the plan in words -------------------------------------------------------------------------


def test_the_plan_says_each_domains_own_group_and_the_places_of_training_only() -> None:
    domains = [{**TWO[0], "group_size": 2}, TWO[1]]
    job = scripted_job(domains=domains, eval={"tasks": 8, "every": 1}, protocol__alpha=1)
    said = str(
        JobPlan(
            job=job,
            directory=Path("runs/run"),
            source=Path("job.toml"),
            python_path=(),
            wishes=Wishes(),
        )
    )
    assert "a step         4 groups, 5 steps" in said
    assert "lake: groups of 2, at most 16 trajectories outstanding, " in said
    assert "pond: groups of 4, at most 32 trajectories outstanding, " in said


# -- evaluation --------------------------------------------------------------------------------


def test_an_evaluation_wants_no_tracker(tmp_path: Path) -> None:
    (tmp_path / "lake.py").write_text(LAKE)
    job = tmp_path / "job.toml"
    text = JOB.format(runs=tmp_path / "runs").replace("trackers = []", 'trackers = ["wandb"]')
    job.write_text(text.replace('make = "lake:make"', 'path = "none"'))
    found = load_job(job, eval_settings(tmp_path, str(tmp_path / "scratch"), (), None))
    assert found.run.trackers == ()
    assert found.model.path == str(tmp_path)


def test_warnings_of_an_evaluation_are_handed_on_as_they_come() -> None:
    told: list[str] = []
    Findings(told.append).emit(Warned(message="engine engine-0 did not restart"))
    assert told == ["engine engine-0 did not restart"]
