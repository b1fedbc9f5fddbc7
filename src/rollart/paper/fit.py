"""The fit of what the micro-benchmarks leave open, on their published results alone.

    python -m rollart.paper.fit            prints what frozen.toml says under [fitted]

Two of the micro-benchmarks do not say how many trajectories of how many turns they ran, nor how
their times were spread. Both are fitted here by a model of waiting only, without engines: sums and
order statistics of drawn times. The simulator then measures these rows with what was found. The
rates of links and of loading weights were fitted by hand in the catalogue, as it says there; prefix
hits, lengths and efficiencies stand as they were inferred, since their rows lie within their bands.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rollart.paper import asynchrony, redundancy
from rollart.paper.parameters import Fitted

Times = npt.NDArray[np.float64]
Point = TypeVar("Point")

ROUNDS = 1000
TOKEN_S = 0.009
"""Seconds a token of an 8B on an H800 with a handful of sequences."""


def fitted() -> Fitted:
    """The parameters with the least worst error, of the grids below."""
    batch, turns, answer = best(
        list(product((64, 128, 256), (10, 20, 30, 40, 50), (15, 60, 120, 240))), lockstep_error
    )
    task_sigma, member_sigma = best(
        list(product((0.0, 0.2, 0.225, 0.25, 0.275, 0.3), (0.1, 0.125, 0.15, 0.175, 0.2))),
        spare_error,
    )
    return Fitted(
        r2_batch=batch,
        r2_turns=turns,
        r2_answer_tokens=answer,
        task_sigma=task_sigma,
        member_sigma=member_sigma,
    )


def best(points: Sequence[Point], error: Callable[[Point], float]) -> Point:
    """The point with the least error; the first of equals."""
    return min(points, key=error)


def worst(ours: Sequence[float], paper: Sequence[float]) -> float:
    """The greatest relative error of any number."""
    return float(np.abs(np.log(np.array(ours) / np.array(paper))).max())


def lockstep_error(point: tuple[int, int, int]) -> float:
    """Of lockstep over free turns: sums of the slowest against the slowest sum."""
    batch, turns, answer = point
    draws = np.random.default_rng(0)
    rounds = max(8, ROUNDS * 256 // batch // turns)
    ours: list[float] = []
    for sigma in asynchrony.PAPER:
        steps = truncated(draws, asynchrony.MEAN_S, float(sigma), (rounds, batch, turns))
        lockstep = (TOKEN_S * answer + steps.max(axis=1)).sum(axis=1).mean()
        free = (TOKEN_S * answer + steps).sum(axis=2).max(axis=1).mean()
        ours.append(float(lockstep / free))
    return worst(ours, list(asynchrony.PAPER.values()))


def spare_error(point: tuple[float, float]) -> float:
    """Of spares: the time at which enough groups have enough members."""
    task_sigma, member_sigma = point
    draws = np.random.default_rng(0)
    most_groups, most_members = 36, 12
    tasks = draws.standard_normal((ROUNDS, most_groups, 1))
    members = draws.standard_normal((ROUNDS, most_groups, most_members))
    times = np.exp(task_sigma * tasks + member_sigma * members)
    full = [until_full(times, *size) for size in redundancy.PAPER]
    return worst([full[0] / each for each in full], list(redundancy.PAPER.values()))


def until_full(times: Times, members: int, groups: int) -> float:
    """Mean time until 32 of so many groups have 8 of so many members."""
    begun = times[:, :groups, :members]
    group = np.sort(begun, axis=2)[:, :, redundancy.GROUP - 1]
    return float(np.sort(group, axis=1)[:, redundancy.NEEDED - 1].mean())


def truncated(
    draws: np.random.Generator, mean: float, sigma: float, shape: tuple[int, ...]
) -> Times:
    """Normal times, those below 0 drawn again."""
    times = draws.normal(mean, sigma, shape)
    while (below := times < 0).any():
        times[below] = draws.normal(mean, sigma, int(below.sum()))
    return times


if __name__ == "__main__":
    sys.stdout.writelines(f"{name} = {value}\n" for name, value in asdict(fitted()).items())
