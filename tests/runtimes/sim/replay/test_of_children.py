"""Replay of runs whose loop was really late: real children, real time, and stalls planted in it.

Engine and trainer are scripted, so that no model is loaded; environments, rewards and task sources
are processes, whose answers come when they come.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollart.control.assembly import assemble, declared_placement
from rollart.control.door import OpenDoor
from rollart.control.doorway import Doorway
from rollart.core.config import JobConfig
from rollart.core.events import Answered, Disposed, Event, RunEnded, Stamped, TurnEnded
from rollart.core.ports import Binding, Engine, Renderer, Trainer
from rollart.core.tokens import TokenBlock, ids_array
from rollart.core.types import Message
from rollart.job import run_started
from rollart.runtimes.local.launcher import LocalLauncher
from rollart.runtimes.local.loop import CountingLoop
from rollart.runtimes.sim.replay.run import replay_events
from rollart.testing.harness import scripted_job
from rollart.testing.parts import EventRecorder, PlainRenderer, ScriptedLauncher
from rollart.testing.script import Script

SCRIPT = Script(
    tokens_per_turn=(1, 3),
    token_s=(0.001, 0.02),
    train_s=(0.05, 0.2),
    publish_s=(0.0, 0.02),
    update_s=(0.0, 0.05),
)
ENVS = "rollart.backends.envs"
DOMAINS = [
    {
        "tag": "TicTacToe",
        "environment": f"{ENVS}.tic_tac_toe:TicTacToe",
        "max_turns": 5,
        "weight": 2.0,
        "envs_per_process": 16,
    },
    {
        "tag": "LetterShift",
        "environment": f"{ENVS}.letter_shift:LetterShift",
        "max_turns": 1,
        "envs_per_process": 16,
    },
]
LONG_ENOUGH_S = 100.0
TIMES = {
    "env_reset_s": LONG_ENOUGH_S,
    "env_step_s": LONG_ENOUGH_S,
    "reward_s": LONG_ENOUGH_S,
    "episode_s": LONG_ENOUGH_S,
    "engine_s": LONG_ENOUGH_S,
    "weights_s": LONG_ENOUGH_S,
    "train_s": LONG_ENOUGH_S,
    "stall_s": LONG_ENOUGH_S,
}


class CellRenderer(PlainRenderer):
    """What was sampled names a cell, so that games go on for some turns."""

    async def parse(self, sampled: TokenBlock) -> Message:
        return Message(role="assistant", content=str(int(ids_array(sampled).sum()) % 9 + 1))


class Mixed(LocalLauncher):
    """The local runtime, with a scripted engine, trainer and renderer."""

    scripted: ScriptedLauncher

    async def engine(self, binding: Binding) -> Engine:
        return await self.scripted.engine(binding)

    async def trainer(self, binding: Binding) -> Trainer:
        return await self.scripted.trainer(binding)

    async def renderer(self) -> Renderer:
        return CellRenderer()


def stop_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def stall_now_and_then(seed: int) -> None:
    """Stop the loop, as a machine with other work does: often for a moment, now and then longer."""
    rng = random.Random(seed)
    while True:
        await asyncio.sleep(rng.uniform(0.0, 0.02))
        stop_the_loop(rng.choice([0.001, 0.01, 0.06]))


def record(job: JobConfig, folder: Path, *, seed: int = 0) -> list[Stamped]:
    """The log of a run with real children."""

    async def main() -> Sequence[tuple[float, Event]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        events = EventRecorder()
        launcher = Mixed(
            job,
            run_id=f"mixed-{folder.parent.name}-{folder.name}",
            run_directory=folder,
            python_path=(),
            events=EventRecorder(),
        )
        launcher.scripted = ScriptedLauncher(SCRIPT)
        stalls = loop.create_task(stall_now_and_then(seed))
        try:
            controller = await assemble(
                job,
                Doorway(launcher, OpenDoor(loop, events), run_id="run"),
                run_id="run",
                placement=declared_placement(job),
                save_to="weights",
                events=events,
            )
            await controller.run()
        finally:
            stalls.cancel()
            await launcher.close()
        return events.events

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        told = runner.run(main())
    told = [(told[0][0], run_started(job, "run", "local")), *told]
    return [
        Stamped(time=at, seq=seq, incarnation=0, event=event)
        for seq, (at, event) in enumerate(told)
    ]


def mixed_job(**overrides: object) -> JobConfig:
    return scripted_job(
        run__steps=3,
        rollout__batch_groups=6,
        rollout__group_size=4,
        domains=DOMAINS,
        timeouts=TIMES,
        **overrides,
    )


JOBS = {
    "two batches at once": {"protocol__alpha": 1, "rollout__engines": 2},
    "in lockstep, with spares": {
        "protocol__name": "sync",
        "redundancy": {"members": 1, "groups": 1},
    },
    "the partial batches, with spares": {
        "protocol__name": "areal",
        "redundancy": {"members": 2, "groups": 2},
        "eval": {"tasks": 3, "every": 1},
    },
}


@pytest.mark.parametrize("name", JOBS)
def test_a_run_whose_loop_stood_still_again_and_again_is_replayed(name: str, tmp_path: Path):
    job = mixed_job(**JOBS[name])
    log = record(job, tmp_path)
    ended = log[-1].event
    assert isinstance(ended, RunEnded)
    assert ended.ok, ended.reason
    crowds = [len(s.event.who) for s in log if isinstance(s.event, Answered)]
    assert max(crowds) >= 4, "the loop was never late"
    assert sum(isinstance(s.event, TurnEnded) for s in log) > 100
    report = replay_events(job, log)
    assert report.equal, str(report)
    assert report.comparison.events == len(log) - 1
    if "redundancy" in JOBS[name]:
        left = {s.event.disposition for s in log if isinstance(s.event, Disposed)}
        assert "surplus" in left
