"""What a user writes: one script with classes, pools and a run, as the documentation shows it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.cli.pools import pools
from rollart.core.events import (
    EngineUp,
    Event,
    StepTrained,
    TrajectoryEnded,
    TurnEnded,
    WorkerBound,
)
from rollart.observe.eventlog import read_events

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

JobWriter = Callable[..., Path]

LISTING = """
import rollart as ra

class HeteroActorGen(ra.ActorGen):
    @ra.hw_mapping(hw_affinity={"FrozenLake": "H800", "default": "H20"})
    async def generate(self, request, tag_name="default"):
        with open("through.txt", "a") as file:
            file.write(f"{tag_name}\\n")
        return await super().generate(request, tag_name)

class JudgeReward(ra.Reward):
    @ra.register_serverless(attribute="reward_proxy", serverless_url="local://judge:score")
    async def compute_rewards(self, trajectory):
        return await self.reward_proxy(trajectory)

class NotedTrain(ra.ActorTrain):
    @ra.hw_mapping(hw_affinity={"default": "H800"})
    async def train_step(self, batch, tag_name="default"):
        stats = await super().train_step(batch, tag_name)
        with open("trained.txt", "a") as file:
            file.write(f"{stats.version}\\n")
        return stats

pools = ra.ResourceManager({"H800": range(0, 8), "H20": range(8, 32)})
outcome = ra.run("job.toml", pools=pools, actor_gen=HeteroActorGen, reward=JudgeReward,
                 actor_train=NotedTrain, overrides=["run.steps=2"])
print(outcome.reason)
raise SystemExit(0 if outcome.ok else 1)
"""

JUDGE = """
import os

def score(trajectory):
    print("judged in", os.getpid())
    return 0.25 + 0.5 * (len(trajectory.turns) % 2)
"""

SECOND = """
[[domains]]
tag = "Pond"
environment = "rollart.backends.envs.frozen_lake:FrozenLake"
max_turns = 4
max_tokens = 1
"""


def events_of(run: Path) -> list[Event]:
    return [stamped.event for stamped in read_events(run / "events.jsonl")]


def test_the_listing_runs_as_a_script_and_each_part_of_it_does_what_it_says(
    write_job: JobWriter, tmp_path: Path
) -> None:
    path = write_job(judge=JUDGE, listing=LISTING)
    text = (
        path.read_text()
        .replace('"Lake"', '"FrozenLake"')
        .replace("slots = 64", "slots = 64\nengines = 2")
    )
    path.write_text(text + SECOND)
    done = subprocess.run(
        [sys.executable, "listing.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "whole"
    events = events_of(run)
    bound = {event.worker: event for event in events if isinstance(event, WorkerBound)}
    assert bound["trainer"].pool == "H800"
    assert {bound["engine-0"].pool, bound["engine-1"].pool} == {"H800", "H20"}
    assert len(bound) == 3 + 2 * 2
    hardware = {event.engine: event.hardware for event in events if isinstance(event, EngineUp)}
    turns = [event for event in events if isinstance(event, TurnEnded)]
    served = {
        tag: {hardware[turn.engine] for turn in turns if turn.trajectory.startswith(tag)}
        for tag in ("FrozenLake", "Pond")
    }
    assert served == {"FrozenLake": {"H800"}, "Pond": {"H20"}}
    through = (tmp_path / "through.txt").read_text().split()
    assert set(through) == {"FrozenLake", "Pond"}
    assert len(through) >= len(turns)
    scores = {event.score for event in events if isinstance(event, TrajectoryEnded)}
    assert {0.25, 0.75} <= scores
    assert "judged in" in (run / "logs" / "serverless-judge-score.log").read_text()
    steps = sum(isinstance(event, StepTrained) for event in events)
    assert (tmp_path / "trained.txt").read_text().split() == [str(n + 1) for n in range(steps)]
    table = pools(run, ())
    assert "engine-0" in table
    assert "as wanted" in table
