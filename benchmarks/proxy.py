"""What control costs a turn: scheduler, EnvManager and LLMProxy over an instant engine.

    python -m benchmarks.proxy [--part saturated|offered|memory] [--collector 700 10 10] [--profile]

Engine, environment, renderer and reward are fakes that answer at once; everything else is the real
control plane on a real event loop, on one core. Groups of 8, trajectories of 8 to 24 turns, always
`trajectories` under way, batches taken as they fill.

- saturated: turns/s with environments that answer at once, by wall clock and by the process's own
  CPU seconds (what an idle core would give, on a shared machine);
- offered: environments that think for as long as makes 2,000 turns/s. The added latency is the time
  from when an environment's answer is due until its next action arrives, whole turn through;
- memory: tracemalloc's bytes a live trajectory, halfway on average; token blocks are shared, so
  this is what control itself keeps.

Python's cycle collector is set as a run sets it; `--collector 700 10 10` is Python's own default,
with which it walks through what 10,000 trajectories keep again and again.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rollart.control.admission import Credits
from rollart.control.env_manager import EnvManager, EpisodeSettings
from rollart.control.fleet import Fleet, FleetSettings
from rollart.control.ledger import Ledger
from rollart.control.llm_proxy import LLMProxy
from rollart.control.protocols import protocol_policy
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.scheduler import RolloutScheduler, SchedulerSettings
from rollart.control.task_queue import TaskQueue
from rollart.core.config import RedundancyConfig
from rollart.core.events import Event
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import Affinity, Binding, DeltaSink, Engine, Environment, Rendered
from rollart.core.tokens import TokenBlock
from rollart.core.types import (
    Disposition,
    GenerateRequest,
    Message,
    Observation,
    RequestCost,
    StepResult,
    StopReason,
    Task,
    TokenDelta,
    Trajectory,
    Verdict,
)
from rollart.launching import COLLECTOR
from rollart.testing.parts import CountedTasks, ScriptedLauncher

GROUP_SIZE, ENGINES, OFFERED = 8, 8, 2000.0
TURNS = (8, 24)
SAMPLED = np.arange(8, dtype=np.int32)
LOGPROBS = np.full(8, -0.5, np.float32)
OBSERVED = Rendered(tokens=np.arange(16, dtype=np.int32))
COST = RequestCost(cached_tokens=100, prefill_tokens=16, decode_tokens=8)
ACTION = Message(role="assistant", content="Right")
SEEN = Observation(messages=(Message(role="user", content="the lake"),))
GOES_ON = StepResult(observation=SEEN)
ENDS = StepResult(observation=SEEN, reward=1.0, done=True, metrics=(("success", 1.0),))
SCORE = Verdict(score=1.0)


@dataclass(slots=True)
class Meter:
    """Reads the clocks at every `window` turns, and keeps latencies (s) of the present window."""

    window: int
    rounds: int
    turns: int = 0
    marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    latencies: list[list[float]] = field(default_factory=lambda: [[]])
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def turn(self, late: float) -> None:
        self.turns += 1
        self.latencies[-1].append(late)
        if self.turns % self.window == 0 and not self.done.is_set():
            self.marks.append((time.perf_counter(), time.process_time()))
            self.latencies.append([])
            if len(self.marks) == self.rounds + 2:  # the first window warms up
                self.done.set()

    def rates(self, clock: int) -> list[float]:
        """Turns/s of each round: clock 0 is the wall, 1 the process's CPU seconds."""
        marks = [mark[clock] for mark in self.marks[1:]]
        return [self.window / (b - a) for a, b in pairwise(marks)]

    def percentile_ms(self, percent: float) -> list[float]:
        rounds = self.latencies[2 : self.rounds + 2]
        return [1000 * float(np.percentile(one, percent)) for one in rounds]


class InstantEngine:
    """Answers what it was given in the loop's next turn, all of it at once."""

    hardware = "any"

    def __init__(self, name: str) -> None:
        self.id = name
        self._given: list[tuple[GenerateRequest, DeltaSink]] = []
        self._version = -1
        self._paused = True
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        self._given.append((request, sink))
        if len(self._given) == 1:
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        if self._paused:
            return
        given, self._given = self._given, []
        for request, sink in given:
            sink(
                TokenDelta(
                    request_id=request.id,
                    ids=SAMPLED,
                    logprobs=LOGPROBS,
                    version=self._version,
                    finish=StopReason.STOP,
                    cost=COST,
                )
            )

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._given = [one for one in self._given if one[0].id not in request_ids]

    def release(self, session: str) -> None:
        pass

    async def pause(self) -> None:
        self._paused = True

    async def resume(self) -> None:
        self._paused = False
        self._step()

    async def update(self, version: PolicyVersion) -> None:
        self._version = version.number

    async def rebuild_kv(self) -> int:
        return 0

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        if not self._dead.done():
            self._dead.set_result("closed")


class Launcher(ScriptedLauncher):
    async def engine(self, binding: Binding) -> Engine:
        return InstantEngine(binding.worker)


class InstantEnvironment:
    """`think` seconds a step, give or take half of it; none at all if 0."""

    def __init__(self, meter: Meter, think: float, rng: random.Random) -> None:
        self._meter, self._think, self._rng = meter, think, rng
        self._left = rng.randint(*TURNS)
        self._due = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        await self._pause(self._rng.uniform(0.0, 2.0) * self._think)
        return SEEN

    async def step(self, action: Message) -> StepResult:
        self._meter.turn(asyncio.get_running_loop().time() - self._due)
        self._left -= 1
        if self._left == 0:
            return ENDS
        await self._pause(self._rng.uniform(0.5, 1.5) * self._think)
        return GOES_ON

    async def _pause(self, seconds: float) -> None:
        self._due = asyncio.get_running_loop().time() + seconds
        if seconds:
            await asyncio.sleep(seconds)

    def kill(self) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class InstantParts:
    """Environments, reward and renderer in one."""

    meter: Meter
    think: float
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    async def open(self, trajectory: TrajectoryId) -> Environment:
        return InstantEnvironment(self.meter, self.think, self.rng)

    async def score(self, trajectory: Trajectory) -> Verdict:
        return SCORE

    async def close(self) -> None:
        pass


class InstantRenderer:
    async def open(self, messages: Sequence[Message]) -> Rendered:
        return OBSERVED

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return OBSERVED

    async def parse(self, sampled: TokenBlock) -> Message:
        return ACTION


class Unheard:
    def emit(self, event: Event) -> None:
        pass


def make_scheduler(
    fleet: Fleet, meter: Meter, *, trajectories: int, think: float
) -> RolloutScheduler:
    events = Unheard()
    parts = InstantParts(meter=meter, think=think)
    manager = EnvManager(
        environments=parts,
        reward=parts,
        renderer=InstantRenderer(),
        proxy=LLMProxy(fleet, affinity=Affinity(by_domain={}), context=4096, events=events),
        settings=EpisodeSettings(
            max_turns=TURNS[1],
            max_tokens=16,
            temperature=1.0,
            env_reset_s=120.0,
            env_step_s=60.0,
            reward_s=60.0,
            episode_s=3600.0,
        ),
        events=events,
    )
    return RolloutScheduler(
        tasks=TaskQueue({"lake": CountedTasks("lake")}, {"lake": 1.0}, events),
        managers={"lake": manager},
        buffer=SampleBuffer(),
        ledger=Ledger(events),
        credits=Credits(trajectories // GROUP_SIZE),
        protocol=protocol_policy("rollart", 1),
        settings=SchedulerSettings(
            run="benchmark",
            batch_groups=1,
            group_sizes={"lake": GROUP_SIZE},
            weights={"lake": 1.0},
            redundancy=RedundancyConfig(),
            members_needed=2,
            attempts=1,
            drop_zero_variance=False,
            max_dead_groups=8,
            max_no_verdict=1.0,
            stall_s=600.0,
        ),
        events=events,
    )


async def roll_out(meter: Meter, *, trajectories: int, think: float = 0.0) -> int:
    """Until the meter is done; returns tracemalloc's bytes then, less those before."""
    before = tracemalloc.get_traced_memory()[0]
    fleet = Fleet(
        Launcher(),
        [Binding(worker=f"engine-{i}", hardware="any") for i in range(ENGINES)],
        FleetSettings(engine_s=600.0, weights_s=60.0, restarts=0),
        Unheard(),
    )
    scheduler = make_scheduler(fleet, meter, trajectories=trajectories, think=think)

    async def take_batches() -> None:
        while True:
            await scheduler.get_batch(1)
            scheduler.batch_left(Disposition.TRAINED)
            scheduler.resumed()

    async with asyncio.TaskGroup() as tasks:
        await fleet.start(tasks)
        await fleet.update(PolicyVersion("agent", 0))
        await fleet.resume()
        scheduler.start(tasks)
        taker = tasks.create_task(take_batches())
        await meter.done.wait()
        meter.latencies = meter.latencies[:-1]
        used = tracemalloc.get_traced_memory()[0] - before
        taker.cancel()
        await scheduler.stop()
        await fleet.close()
    return used


def spread(values: list[float], form: str = ",.0f") -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


def saturated(counts: list[int], rounds: int) -> None:
    print(f"\nsaturated, {rounds} rounds\n")
    print("| trajectories | turns/s by wall clock (min to max) | turns a CPU second (min to max) |")
    print("|---|---|---|")
    for count in counts:
        meter = Meter(window=max(10_000, 2 * count), rounds=rounds)
        asyncio.run(roll_out(meter, trajectories=count))
        print(f"| {count:,} | {spread(meter.rates(0))} | {spread(meter.rates(1))} |", flush=True)


def offered(counts: list[int], rounds: int) -> None:
    print(f"\noffered {OFFERED:,.0f} turns/s, {rounds} rounds\n")
    print("| trajectories | turns/s | added ms, p50 (min to max) | p99 (min to max) |")
    print("|---|---|---|---|")
    for count in counts:
        meter = Meter(window=max(4000, count), rounds=rounds)
        asyncio.run(roll_out(meter, trajectories=count, think=count / OFFERED))
        p50, p99 = meter.percentile_ms(50), meter.percentile_ms(99)
        rate = statistics.median(meter.rates(0))
        print(
            f"| {count:,} | {rate:,.0f} | {spread(p50, '.2f')} | {spread(p99, '.2f')} |", flush=True
        )


def memory(counts: list[int]) -> None:
    print("\n| trajectories | bytes a live trajectory |")
    print("|---|---|")
    for count in counts:
        meter = Meter(window=16 * count, rounds=1)
        tracemalloc.start()
        used = asyncio.run(roll_out(meter, trajectories=count))
        tracemalloc.stop()
        print(f"| {count:,} | {used / count:,.0f} |", flush=True)


def profile(count: int) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(
        asyncio.run, roll_out(Meter(window=max(10_000, 2 * count), rounds=1), trajectories=count)
    )
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 10_000])
    parser.add_argument("--part", choices=("all", "saturated", "offered", "memory"), default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--collector", type=int, nargs=3, default=COLLECTOR)
    parser.add_argument("--profile", action="store_true", help="a cProfile table, saturated")
    options = parser.parse_args()
    gc.set_threshold(*options.collector)
    if options.profile:
        profile(options.counts[0])
        return
    if options.part in ("all", "saturated"):
        saturated(options.counts, options.rounds)
    if options.part in ("all", "offered"):
        offered(options.counts, options.rounds)
    if options.part in ("all", "memory"):
        memory(options.counts)


if __name__ == "__main__":
    main()
