"""A run in which things go wrong at once: every step completes and every loss has a name."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.control.assembly import assemble, declared_placement
from rollart.control.controller import RunResult
from rollart.core.events import (
    Disposed,
    EngineDown,
    EngineUp,
    LedgerClosed,
    StepTrained,
    TrajectoryEnded,
    TurnEnded,
)
from rollart.core.jobfile import load_job
from rollart.runtimes.local.engine import LocalEngine
from rollart.runtimes.local.launcher import LocalLauncher
from rollart.testing.parts import EventRecorder

TROUBLE = """
    import itertools, os, time, zlib
    from rollart.backends.envs.frozen_lake import FrozenLake
    from rollart.backends.rewards.episode import episode_return

    # Children begin their counts one apart, so every tenth and every fiftieth of all is struck.
    COUNTS = {}

    def count(what):
        return next(COUNTS.setdefault((what, os.getpid()), itertools.count(os.getpid())))

    class Troubled(FrozenLake):
        '''Fails 10 % of resets and hangs in 2 % of steps, whatever the task.'''

        def reset(self, task, seed):
            if count('reset') % 10 == 0:
                raise RuntimeError("the image could not be pulled")
            return super().reset(task, seed)

        def step(self, action):
            if count('step') % 50 == 0:
                time.sleep(1000)
            return super().step(action)

    def troubled(trajectory):
        t = trajectory
        if zlib.crc32(f"15:{t.group}.{t.member}.{t.attempt}".encode()) % 20 == 0:
            time.sleep(1000)
        return episode_return(trajectory)
"""

JobWriter = Callable[..., Path]


class Killer(EventRecorder):
    """Kills the engine's process once, in the middle of generation."""

    engine: LocalEngine | None = None
    turns: int = 0

    def emit(self, event) -> None:
        super().emit(event)
        self.turns += isinstance(event, TurnEnded)
        if self.turns == 60 and self.engine is not None:
            os.kill(self.engine.pid, signal.SIGKILL)
            self.engine = None


class Watched(LocalLauncher):
    """Tells who the first engine is."""

    async def engine(self, binding):
        engine = await super().engine(binding)
        assert isinstance(engine, LocalEngine)
        killer = self._events
        if isinstance(killer, Killer) and killer.turns == 0:
            killer.engine = engine
        return engine


async def run(path: Path, directory: Path, events: Killer) -> RunResult:
    job = load_job(path)
    launcher = Watched(
        job,
        run_id=f"faults-{os.getpid()}",
        run_directory=directory,
        python_path=(str(path.parent),),
        events=events,
    )
    try:
        controller = await assemble(
            job,
            launcher,
            run_id="faults",
            placement=declared_placement(job),
            save_to=str(directory / "weights"),
            events=events,
        )
        return await controller.run()
    finally:
        await launcher.close()


@pytest.mark.real
@pytest.mark.timeout(400)
def test_every_step_completes_and_the_ledger_names_every_loss(
    write_job: JobWriter, tmp_path: Path
) -> None:
    path = write_job(
        'environment = "trouble:Troubled"\nreward = "trouble:troubled"',
        """
        [timeouts]
        env_step_s = 1.0
        env_reset_s = 5.0
        reward_s = 1.0
        [faults]
        attempts = 4
        """,
        trouble=TROUBLE,
    )
    directory = tmp_path / "runs" / "faults"
    directory.mkdir(parents=True)
    events = Killer()
    result = asyncio.run(run(path, directory, events))
    assert result.ok, result.reason
    assert len(events.of(StepTrained)) == 4
    assert all(balance.balanced for balance in events.of(LedgerClosed))
    last = events.of(LedgerClosed)[-1]
    assert (last.buffered, last.in_flight) == (0, 0)
    assert dict(last.dispositions)["trained"] >= 4 * 3 * 2

    downs = events.of(EngineDown)
    assert len(downs) == 1
    assert len(events.of(EngineUp)) == 2

    kinds = Counter(e.failure for e in events.of(TrajectoryEnded) if e.status == "failed")
    assert set(kinds) == {"env_reset", "env_timeout", "reward_timeout"}, kinds
    failed = [e for e in events.of(Disposed) if e.disposition == "failed"]
    assert sum(kinds.values()) == len(failed)
    assert all(event.reason for event in failed)
