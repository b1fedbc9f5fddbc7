"""Arms over seeds, on several processes.

Invariant: what an arm gives with a seed depends on nothing else, so runs may go in any order and on
any process. Equal arms of several rows run once. The processes end with the one that began them.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process

from rollart.core.errors import RollartError
from rollart.paper.arms import Arm
from rollart.paper.measure import Measured, Watch
from rollart.paper.rows import Row, RowResult, judged
from rollart.paper.spread import spread_tasks
from rollart.runtimes.sim.run import simulate

MOST_VIRTUAL_S = 1e7
COLLECTOR = (50_000, 20, 50)
"""Thresholds of the cycle collector: ten thousand live trajectories make full passes expensive."""

Told = Callable[[str], None]


def run_arm(arm: Arm, seed: int) -> Measured:
    """Simulate one arm.

    Raises:
        RollartError: the run did not reach its end.
    """
    watch = Watch()
    tags = tuple(domain.tag for domain in arm.job.domains)
    around = partial(spread_tasks, tags=tags, sigma=arm.task_sigma, seed=seed)
    result = simulate(
        arm.job,
        arm.world,
        seed=seed,
        events=watch,
        max_virtual_time=MOST_VIRTUAL_S,
        around=around,
    )
    if not result.ok or result.steps < arm.job.run.steps:
        raise RollartError(f"arm {arm.name}, seed {seed}: {result.reason}")
    return watch.measured(skip=arm.skip)


def run_rows(rows: Sequence[Row], *, processes: int, tell: Told) -> tuple[list[RowResult], float]:
    """Run all arms and judge the rows; returns the seconds of CPU that it took, too.

    Args:
        tell: told of each run's end.

    Raises:
        RollartError: a run did not reach its end.
        ValueError: two different arms have one name.
    """
    wanted = _wanted(rows)
    found: dict[tuple[str, int], Measured] = {}
    cpu_s = 0.0
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_prepare
    ) as pool:
        running = {
            pool.submit(_timed, arm, seed): (arm.name, seed)
            for arm, seeds in wanted.values()
            for seed in range(seeds)
        }
        try:
            for done in as_completed(running):
                measured, seconds = done.result()
                found[running[done]] = measured
                cpu_s += seconds
                name, seed = running[done]
                tell(f"{len(found)}/{len(running)} {name}, seed {seed}: {seconds:.1f} s of CPU")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [
        judged(
            row,
            {arm.name: [found[arm.name, seed] for seed in range(row.seeds)] for arm in row.arms},
        )
        for row in rows
    ], cpu_s


def _timed(arm: Arm, seed: int) -> tuple[Measured, float]:
    began = time.process_time()
    return run_arm(arm, seed), time.process_time() - began


def _prepare() -> None:
    gc.set_threshold(*COLLECTOR)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A process that waits for work would wait for ever once whoever gives it is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _wanted(rows: Sequence[Row]) -> Mapping[str, tuple[Arm, int]]:
    """Arms by name, with how many seeds the row that wants most wants."""
    wanted: dict[str, tuple[Arm, int]] = {}
    for row in rows:
        for arm in row.arms:
            known, seeds = wanted.get(arm.name, (arm, 0))
            if known != arm:
                raise ValueError(f"row {row.id}: another arm is called {arm.name!r}; rename one")
            wanted[arm.name] = (arm, max(seeds, row.seeds))
    return wanted
