"""Bursts of trajectories scored by one way: the figures of it.

Invariant: everything is timed by one monotonic clock; the window that is measured begins with the
first burst and ends one gap after the last, so that every idle tail is in it.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from benchmarks.parts.rewards_ways import WAYS, Called, Limits
from benchmarks.parts.rewards_work import WAIT_S, score
from benchmarks.parts.runs import Processors
from rollart.core.scoring.document import TaskDocument, TrajectoryDocument, TurnDocument
from rollart.observe.intervals import Interval, clipped, total

CPU_S = 0.5
"""CPU seconds of the reward that computes."""

BURST = 84
"""Trajectories that end at once."""

_FIRST_HASHES = 20_000
_SAID = "one two three four five six seven eight nine ten " * 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward: so many hashes, then so many seconds of waiting."""

    hashes: int = 0
    wait_s: float = 0.0

    def documents(self) -> Iterator[TrajectoryDocument]:
        """Trajectories of ten turns, without end, each with an identity of its own."""
        turn = TurnDocument(observation=_SAID, action=_SAID, prompt_tokens=50, sampled_tokens=50)
        for number in count():
            name = f"benchmark/{number}"
            payload = {"hashes": self.hashes, "wait_s": self.wait_s}
            yield TrajectoryDocument(
                id=name,
                run="benchmark",
                policy="default",
                task=TaskDocument(domain="benchmark", key=name, payload=payload),
                turns=(turn,) * 10,
                prompt_tokens=500,
                sampled_tokens=500,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way over some bursts.

    Attributes:
        to_last_s: of each burst, from its arrival to its last score.
        busy_s: process-seconds in which a process computed a score or waited in one, once each
            however many calls it served; reserved_s: that processes existed, None if none were
            reserved.
        overheads_s: of warm calls that came one by one, with `PAUSE_S` between them.
        at_heels_s: of such calls with nothing between them.
        others: share of the machine that other programs had meanwhile.
    """

    to_last_s: Sequence[float]
    busy_s: float
    reserved_s: float | None
    cold: int
    cpu_s: Sequence[float]
    overheads_s: Sequence[float]
    at_heels_s: Sequence[float]
    others: float
    told_by: str

    @property
    def busy_share(self) -> float | None:
        return None if self.reserved_s is None else self.busy_s / self.reserved_s


PAUSE_S = 0.02
"""Between calls that come one by one: what a call leaves to be done is not the next one's."""

INSTANT = Reward()
WAITING = Reward(wait_s=WAIT_S)


def computing(cores: int) -> Reward:
    """The reward of `CPU_S`, as the processor is while all of its cores compute."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=spawning) as pool:
        found = [*pool.map(_hashes_of, [CPU_S] * 4 * cores)]
    return Reward(hashes=round(statistics.median(found)))


async def measure(
    name: str, reward: Reward, limits: Limits, *, bursts: int, gap_s: float, alone: int
) -> Measured:
    """Some bursts by one way, and then `alone` calls one by one of a reward that is instant."""
    documents = reward.documents()
    calls: list[Called] = []
    to_last_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with WAYS[name](limits, Path(folder)) as way:
            way.look()
            began, before = time.monotonic(), _now()
            for _ in range(bursts):
                arrived = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(way.call(next(documents))) for _ in range(BURST)]
                done = [task.result() for task in tasks]
                calls += done
                to_last_s.append(max(call.end for call in done) - arrived)
                await asyncio.sleep(gap_s)
            window = (began, time.monotonic())
            way.look()
            others = _now().others_since(before, window[1] - window[0])
            fresh = (replace(one, run="alone") for one in INSTANT.documents())
            at_heels = [await way.call(next(fresh)) for _ in range(alone)]
            paced: list[Called] = []
            for _ in range(alone):
                await asyncio.sleep(PAUSE_S)
                paced.append(await way.call(next(fresh)))
    return Measured(
        to_last_s=to_last_s,
        busy_s=_busy_s(calls, window),
        reserved_s=way.reserved_s(window),
        cold=sum(call.cold for call in calls),
        cpu_s=[call.cpu_s for call in calls],
        overheads_s=[call.overhead_s for call in paced if not call.cold],
        at_heels_s=[call.overhead_s for call in at_heels if not call.cold],
        others=others,
        told_by=way.told_by,
    )


def together(parts: Sequence[Measured]) -> Measured:
    """Several rounds of one way as one."""
    reserved = [part.reserved_s for part in parts if part.reserved_s is not None]
    return Measured(
        to_last_s=[one for part in parts for one in part.to_last_s],
        busy_s=sum(part.busy_s for part in parts),
        reserved_s=sum(reserved) if reserved else None,
        cold=sum(part.cold for part in parts),
        cpu_s=[one for part in parts for one in part.cpu_s],
        overheads_s=[one for part in parts for one in part.overheads_s],
        at_heels_s=[one for part in parts for one in part.at_heels_s],
        others=statistics.mean(part.others for part in parts),
        told_by=parts[0].told_by,
    )


def _busy_s(calls: Sequence[Called], window: Interval) -> float:
    by_instance: dict[str, list[Interval]] = defaultdict(list)
    for call in calls:
        by_instance[call.instance].append((call.end - call.function_s, call.end))
    return sum(total(clipped(spans, window)) for spans in by_instance.values())


def _hashes_of(cpu_s: float) -> float:
    """How many hashes take this process so many CPU seconds."""
    hashes = _FIRST_HASHES
    while True:
        verdict = score(next(Reward(hashes=hashes).documents()))
        spent = dict(verdict.components)["cpu_s"]
        if spent > cpu_s / 2:
            return hashes * cpu_s / spent
        hashes *= 2


def _now() -> Processors:
    """As `Processors.now`, with processes that live and those whose parent is killed with them."""
    return Processors(machine=Processors.now().machine, own=_tree_s(os.getpid()))


def _tree_s(root: int) -> float:
    """CPU seconds of a process, its descendants, and all of those that they have waited for."""
    spent: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(process.name))
            spent[int(process.name)] = sum(map(int, fields[11:15]))
    todo, ticks = [root], 0
    while todo:
        one = todo.pop()
        ticks += spent.get(one, 0)
        todo += children[one]
    return ticks / os.sysconf("SC_CLK_TCK")
