"""Environment steps a second with many concurrent FrozenLakes, by environments a process.

    PYTHONPATH=src python benchmarks/environments.py [--episodes 384] [--seconds 5] [1 8 16 48]

Each of `episodes` coroutines opens a place, resets, and takes random steps until the lake is over,
again and again, with nothing else to do: what is measured is the whole way from the control
process into the user's code and back. Columns: steps/s; steps/s if the control process alone had
one core (its CPU seconds a step, inverted); memory of all children (proportional set size).
"""

import argparse
import asyncio
import os
import random
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rollart.backends.envs.frozen_lake import ACTIONS
from rollart.backends.envs.frozen_lake_maps import training_map
from rollart.core.identity import TrajectoryId
from rollart.core.types import Message, Task
from rollart.process.owner import live_processes
from rollart.runtimes.local import env_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.env_host import EnvHostConfig
from rollart.runtimes.local.environments import EnvironmentLimits, LocalEnvironments
from rollart.runtimes.local.warm_forks import WarmForks

LAKE = "rollart.backends.envs.frozen_lake"
RUN = f"benchmark-{os.getpid()}"


@dataclass(slots=True)
class Tally:
    """What was done so far."""

    warm_after: int
    steps: int = 0
    episodes: int = 0
    warm: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self) -> None:
        self.episodes += 1
        if self.episodes == self.warm_after:
            self.warm.set()


async def play(pool: LocalEnvironments, number: int, tally: Tally) -> None:
    rng = random.Random(number)
    while True:
        identity = TrajectoryId(run=RUN, domain="lake", task="t", group=number, member=0)
        environment = await pool.open(identity)
        payload = {"map": training_map(number, rng.randrange(50))}
        await environment.reset(Task(domain="lake", key="t", payload=payload), number)
        done = False
        while not done:
            action = Message(role="assistant", content=rng.choice(ACTIONS))
            done = (await environment.step(action)).done
            tally.steps += 1
        environment.kill()
        tally.ended()


def child_memory_mib() -> float:
    """Proportional set size of all processes of this run, in MiB."""
    total = 0
    for process in live_processes(RUN):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(per_process: int, episodes: int, seconds: float, folder: Path) -> None:
    forks = WarmForks(
        name="lake",
        modules=(LAKE, "gymnasium.envs.toy_text.frozen_lake"),
        hosts=("rollart.runtimes.local.env_host",),
        env=child_environment(os.environ, RUN),
        python_path=(),
        log_file=folder / "lake.log",
    )
    config = EnvHostConfig(environment=f"{LAKE}:FrozenLake", options={})
    limits = EnvironmentLimits(
        places=episodes, per_process=per_process, replayable=True, reset_s=60.0, step_s=30.0
    )
    pool = LocalEnvironments(
        "lake", lambda name: forks.fork(env_host.ENTRY, config, name=name), limits
    )
    tally = Tally(warm_after=2 * episodes)  # by then everything is open and built
    players = [asyncio.create_task(play(pool, number, tally)) for number in range(episodes)]
    began = time.monotonic()
    await tally.warm.wait()
    warm = time.monotonic() - began
    steps, cpu, began = tally.steps, cpu_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    done, used = tally.steps - steps, cpu_seconds() - cpu
    memory = await asyncio.to_thread(child_memory_mib)
    print(
        f"{per_process:>11} {pool.processes:>9} {done / took:>9.0f} {done / used:>18.0f} "
        f"{memory:>7.0f} {warm:>8.1f}",
        flush=True,
    )
    for player in players:
        player.cancel()
    await asyncio.gather(*players, return_exceptions=True)
    await pool.close()
    await forks.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Environment steps a second.")
    parser.add_argument("per_process", nargs="*", type=int, default=[1, 8, 16, 48])
    parser.add_argument("--episodes", type=int, default=384)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    print(f"{arguments.episodes} concurrent episodes, {os.cpu_count()} cores")
    print("per process processes   steps/s  steps/control-CPU-s     MiB  warm (s)")
    with tempfile.TemporaryDirectory() as folder:
        for per_process in arguments.per_process:
            asyncio.run(measure(per_process, arguments.episodes, arguments.seconds, Path(folder)))


if __name__ == "__main__":
    main()
