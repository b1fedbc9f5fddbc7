"""The simulator from 100 to 3,000 GPUs: wall time, memory, events, and what control costs.

    python -m benchmarks.scale [--gpus 100,300,1000,3000] [--steps 20] [--seconds 60] [--profile]

`simulate` of one job in one world (`parts/scale.toml`, `parts/scale_world.toml`: the RollArt
paper's five domains with the tails of its production run), the event log written as a run writes
it. GPUs, engines and trajectories are in proportion: 20,000 trajectories under way at 3,000 GPUs.
Each size runs in a process of its own, so that its peak memory is its own.

Whose CPU time it is comes from samples of the same run (`parts/sampler.py`): control is what lies
in `rollart/control`, with the records and seeds that it makes; the loop is the virtual loop, and is
counted to control where a cost is given, as a real run has a loop too; the log is stamping and
writing events; the rest is models. Under virtual time a second of the run is a second of a real
one, so control's CPU seconds over virtual seconds are the share of a core that it would take.
"""

import argparse
import cProfile
import json
import math
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from asyncio import get_running_loop
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.parts.runs import table
from benchmarks.parts.sampler import Sampler
from rollart.control.controller import Controller
from rollart.core.config import JobConfig
from rollart.core.events import Disposed, EnvironmentReset, RunEnded, TrajectoryEnded, TurnEnded
from rollart.core.jobfile import load_job
from rollart.launching import rare_collections
from rollart.observe.eventlog import EVENTS_FILE, EventLog, read_events
from rollart.observe.recorder import Recorder
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world.file import load_world
from rollart.runtimes.sim.world.sections import World

PARTS = Path(__file__).parent / "parts"
TP = 4
GROUPS_A_GPU = 1250 / 3000
OWNERS = {
    "rollart/control/": "control",
    "rollart/runtimes/sim/loop.py": "loop",
    "rollart/runtimes/sim/": "models",
    "rollart/observe/": "log",
}
LOOKED_AT = (TurnEnded, EnvironmentReset, TrajectoryEnded, Disposed, RunEnded)
COLUMNS = (
    "GPUs",
    "engines",
    "trajectories under way",
    "steps",
    "wall s",
    "CPU s",
    "virtual s",
    "peak MB",
    "events",
    "events/s",
    "CPU us an event",
    "control / loop / models / log",
    "control and loop, % of a core",
    "the same per 1,000 GPUs",
    "control and loop, us a turn",
    "ratio to the smallest",
)
TAILS = (
    "GPUs",
    "trained",
    "stale",
    "others",
    "turns",
    "longest reset, s",
    "most turns over the mean",
    "longest answer over the mean",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """One run. Seconds, MB (1e6 bytes), shares 0 to 1; `turns` that ended, of any trajectory."""

    gpus: int
    engines: int
    trajectories: int
    steps: int
    wall_s: float
    cpu_s: float
    virtual_s: float
    peak_mb: float
    events: int
    turns: int
    control: float
    loop: float
    models: float
    log: float
    trained: int
    stale: int
    others: int
    reset_s: float
    turns_ratio: float
    answer_ratio: float

    @property
    def core(self) -> float:
        """Share of a core that control and its loop would take in real time."""
        return self.cpu_s * (self.control + self.loop) / self.virtual_s

    @property
    def turn_us(self) -> float:
        return 1e6 * self.cpu_s * (self.control + self.loop) / self.turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How much of a run: so many steps, or so many virtual seconds if they are over sooner."""

    steps: int
    seconds: float
    seed: int


def sized_job(gpus: int, steps: int, seed: int) -> tuple[JobConfig, World]:
    """The job and the world for so many GPUs."""
    h800, h20 = int(gpus / 2 / TP), int(gpus / 4 / TP)
    job = load_job(
        PARTS / "scale.toml",
        [
            f"run.steps={steps}",
            f"run.seed={seed}",
            f"rollout.batch_groups={round(gpus * GROUPS_A_GPU)}",
            f"rollout.engines={{ H800 = {h800}, H20 = {h20} }}",
        ],
    )
    world = load_world(PARTS / "scale_world.toml")
    trains = gpus - (h800 + h20) * TP
    pools = {"H800": trains + h800 * TP, "H20": h20 * TP}
    trainer = world.trainer.model_copy(update={"gpus": trains})
    return job, world.model_copy(update={"pools": pools, "trainer": trainer})


def run_here(gpus: int, cut: Cut) -> Sized:
    """Run one size in this process."""
    job, world = sized_job(gpus, cut.steps, cut.seed)

    def stop_in_time(controller: Controller, launcher: SimLauncher) -> None:
        get_running_loop().call_at(cut.seconds, controller.stop, "its seconds are over")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / EVENTS_FILE
        log = EventLog(file)
        recorder = Recorder(lambda: get_running_loop().time())
        recorder.attach("the event log", log.append)
        wall, cpu = time.perf_counter(), time.process_time()
        with rare_collections(), Sampler(OWNERS) as sampler:
            result = simulate(job, world, events=recorder, meddle=stop_in_time)
        log.close()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        if not result.ok:
            sys.exit(f"{gpus} GPUs: the run ended: {result.reason}")
        seen = look_at(file)
    return Sized(
        gpus=gpus,
        engines=sum(job.engine_counts.values()),
        trajectories=job.capacity_trajectories,
        steps=result.steps,
        wall_s=wall,
        cpu_s=cpu,
        virtual_s=seen.seconds,
        peak_mb=peak,
        events=seen.events,
        turns=sum(answers.count for answers in seen.answers.values()),
        control=sampler.share("control"),
        loop=sampler.share("loop"),
        models=sampler.share("models"),
        log=sampler.share("log"),
        trained=seen.left["trained"],
        stale=seen.left["stale"],
        others=sum(seen.left.values()) - seen.left["trained"] - seen.left["stale"],
        reset_s=seen.resets.most,
        turns_ratio=max(turns.over_mean for turns in seen.turns.values()),
        answer_ratio=max(answers.over_mean for answers in seen.answers.values()),
    )


@dataclass(slots=True)
class Spread:
    """Count, sum and most of some numbers."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def take(self, number: float) -> None:
        self.count += 1
        self.total += number
        self.most = max(self.most, number)

    @property
    def over_mean(self) -> float:
        return self.most / (self.total / self.count)


@dataclass(slots=True)
class Seen:
    """What a log says of one run: seconds, events, tails by domain, how trajectories left."""

    seconds: float = 0.0
    events: int = 0
    resets: Spread = field(default_factory=Spread)
    turns: defaultdict[str, Spread] = field(default_factory=lambda: defaultdict(Spread))
    answers: defaultdict[str, Spread] = field(default_factory=lambda: defaultdict(Spread))
    left: Counter[str] = field(default_factory=Counter[str])


def look_at(file: Path) -> Seen:
    """Read an event log once; the turns of what was cut off are no trajectory's whole."""
    seen = Seen()
    for stamped in read_events(file, only=LOOKED_AT):
        event = stamped.event
        if isinstance(event, TurnEnded):
            seen.answers[event.trajectory.partition("/")[0]].take(event.sampled_tokens)
        elif isinstance(event, EnvironmentReset):
            seen.resets.take(event.seconds)
        elif isinstance(event, TrajectoryEnded):
            seen.turns[event.domain].take(event.turns)
        elif isinstance(event, Disposed):
            seen.left[event.disposition] += 1
        elif isinstance(event, RunEnded):
            seen.seconds, seen.events = event.seconds, stamped.seq + 1
    return seen


def measured(gpus: int, cut: Cut) -> Sized:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--here"]
    command += [f"--gpus={gpus}", f"--steps={cut.steps}"]
    command += [f"--seconds={cut.seconds}", f"--seed={cut.seed}"]
    done = subprocess.run(command, cwd=PARTS.parents[1], stdout=subprocess.PIPE, check=True)
    return Sized(**json.loads(done.stdout))


def row(run: Sized, smallest: Sized) -> Sequence[str]:
    shares = (run.control, run.loop, run.models, run.log)
    return (
        f"{run.gpus:,}",
        f"{run.engines:,}",
        f"{run.trajectories:,}",
        f"{run.steps}",
        f"{run.wall_s:,.1f}",
        f"{run.cpu_s:,.1f}",
        f"{run.virtual_s:,.0f}",
        f"{run.peak_mb:,.0f}",
        f"{run.events:,}",
        f"{run.events / run.wall_s:,.0f}",
        f"{1e6 * run.cpu_s / run.events:.0f}",
        " / ".join(f"{share:.0%}" for share in shares),
        f"{run.core:.2%}",
        f"{run.core / run.gpus * 1000:.2%}",
        f"{run.turn_us:.0f}",
        f"{run.turn_us / smallest.turn_us:.2f}",
    )


def tails(run: Sized) -> Sequence[str]:
    return (
        f"{run.gpus:,}",
        f"{run.trained:,}",
        f"{run.stale:,}",
        f"{run.others:,}",
        f"{run.turns:,}",
        f"{run.reset_s:.0f}",
        f"{run.turns_ratio:.1f}",
        f"{run.answer_ratio:.1f}",
    )


def profile(gpus: int, cut: Cut) -> None:
    """Where the time goes by function; a profiled run takes about twice as long."""
    profiler = cProfile.Profile()
    profiler.runcall(run_here, gpus, cut)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=numbers, default=[100, 300, 1000, 3000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="virtual; for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="only the first size, by function")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cut = Cut(steps=chosen.steps, seconds=chosen.seconds, seed=chosen.seed)
    if chosen.here:
        print(json.dumps(asdict(run_here(chosen.gpus[0], cut))))
        return
    if chosen.profile:
        profile(chosen.gpus[0], cut)
        return
    runs: list[Sized] = []
    for gpus in chosen.gpus:
        runs.append(measured(gpus, cut))
        print(" | ".join(row(runs[-1], runs[0])), file=sys.stderr, flush=True)
    print(table(COLUMNS, [row(run, runs[0]) for run in runs]), end="\n\n")
    print(table(TAILS, [tails(run) for run in runs]), flush=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
