"""What a reward costs and waits for: five ways of scoring, rollouts beside them, the demo on three.

    python -m benchmarks.rewards [--part all|bursts|rollout|demo] [--steps 10] [--gap 5]
        [--rewards computing waiting] [--ways ...] [--processes 8] [--idle 2] [--rounds 5]
        [--time-limit 275] [--quick]

bursts   84 trajectories end at once and are scored; after the last score and a gap, in which a
         trainer would train, come the next. One reward burns 0.5 CPU-seconds (hashes, counted out
         at the start), one waits 50 ms. Ways: `inline`, one after another where the run is;
         `fixed pool`, processes that are kept; `local serverless`; `http` on functions-framework
         with two workers; `lambda` on awslambdaric. The computing reward may have a process for
         each core, the waiting one eight (over HTTP two workers with so many threads in all).
         Inline, the computing reward has two bursts only: each takes as long as the other.
         Busy is process-seconds in a reward, each second of a process once; reserved are the
         process-seconds that existed, idle tails and starts included: of `local serverless` as its
         events say, of Lambda's instances as their platform counts, of pool and HTTP server the
         whole time. The gateway, the server of forks and the HTTP server's master, each there once
         and idle, are not counted. Half of the bursts are measured in one order of the ways, half
         in the other. Overhead is what warm calls take beside the function, when they come one by
         one, 20 ms apart, and the reward is instant, so that nothing queues; then without pauses.
rollout  real runs of `benchmarks/parts/rewards.toml`, whose trainer waits for rollouts (get_batch),
         alternating, with an instant reward, with it again (two equal runs are the spread to
         compare with) and with the one that waits, through `local://` and as a plain function of
         the domain. A ratio compares runs of one round.
demo     the three-domain job as it is, with a domain's reward each on `local://`, on `http://`
         (functions-framework) and on `lambda://` (awslambdaric), packaged as for deployment.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.parts.rewards_bursts import (
    BURST,
    CPU_S,
    WAITING,
    Measured,
    Reward,
    computing,
    measure,
    together,
)
from benchmarks.parts.rewards_demo import TIME_LIMIT_S, show_demo
from benchmarks.parts.rewards_ways import WAYS, Limits
from benchmarks.parts.rewards_work import WAIT_S
from benchmarks.parts.runs import FIRST_STEPS, Figures, make_model, middle, spread, table, train
from rollart.observe.functions import quantile

INLINE_STEPS = 2
"""Bursts of the computing reward inline, where each takes as long as the one before."""

ALONE = 200
"""Calls one by one of each way, for the overhead."""

BURSTS = (
    "way",
    "bursts",
    "s to the last score",
    "busy share of what is reserved",
    "reserved: process-seconds, told by",
    "cold starts",
    "CPU s a call",
    "overhead p50 / p99, ms",
    "without pauses",
    "other programs",
)

MODULE = "rewards_work"
RUNS = {
    "local://, instant": f"local://{MODULE}:at_once",
    "local://, instant again": f"local://{MODULE}:at_once",
    "local://, 50 ms": f"local://{MODULE}:waits",
    "plain, instant": f"{MODULE}:at_once",
    "plain, instant again": f"{MODULE}:at_once",
    "plain, 50 ms": f"{MODULE}:waits",
}
"""What `domains.reward` is; each is compared with the first of its kind."""

ROLLOUT = (
    "reward",
    "trained tokens/s",
    "ratio to instant",
    "get_batch, s a step",
    "reward p50 / p99, ms",
    "overhead p50, ms",
    "engine busy",
    "other programs",
)


def bursts(chosen: argparse.Namespace) -> None:
    """Each chosen reward by each chosen way, in two halves."""
    steps = 2 if chosen.quick else chosen.steps
    halves = [half for half in ((steps + 1) // 2, steps // 2) if half]
    cores = os.cpu_count() or 1
    for name in chosen.rewards:
        reward = computing(cores) if name == "computing" else WAITING
        processes = cores if name == "computing" else chosen.processes
        limits = Limits(processes=processes, idle_s=chosen.idle)
        results: dict[str, list[Measured]] = {way: [] for way in chosen.ways}
        for at, half in enumerate(halves):
            for way in chosen.ways if at % 2 == 0 else reversed(chosen.ways):
                measured = one_way(way, reward, limits, half=half, gap_s=chosen.gap)
                results[way].append(measured)
        title = (
            f"{name}: {f'{CPU_S:g} CPU-seconds' if reward.hashes else f'{WAIT_S * 1000:g} ms'}, "
            f"{BURST} trajectories a burst, {chosen.gap:g} s between bursts, {processes} at once "
            f"at most; an idle instance of Lambda's ends after {chosen.idle:g} s"
        )
        show_bursts(title, {way: together(some) for way, some in results.items()})


def one_way(way: str, reward: Reward, limits: Limits, *, half: int, gap_s: float) -> Measured:
    """Half of a way's bursts, and half of its calls one by one."""
    if way == "inline":
        gap_s = 0.0  # nothing is reserved that could be idle
        half = min(half, INLINE_STEPS // 2) if reward.hashes else half
    return asyncio.run(measure(way, reward, limits, bursts=half, gap_s=gap_s, alone=ALONE // 2))


def show_bursts(title: str, results: Mapping[str, Measured]) -> None:
    size = len(json.dumps(next(WAITING.documents()).to_json()))
    print(f"\n### {title}; {size:,} bytes a trajectory\n")
    print(table(BURSTS, [burst_row(way, one) for way, one in results.items()]))
    print(
        "\nThe paper's shares, of a GPU kept for rewards and of serverless ones: 6 % and 88 %.",
        flush=True,
    )


def burst_row(way: str, one: Measured) -> Sequence[str]:
    share, reserved = one.busy_share, one.reserved_s
    return (
        way,
        str(len(one.to_last_s)),
        spread(one.to_last_s),
        "" if share is None else f"{share:.0%}",
        f"{'' if reserved is None else f'{reserved:,.0f}, '}{one.told_by}",
        str(one.cold),
        f"{statistics.median(one.cpu_s):.3f}",
        milliseconds(one.overheads_s),
        milliseconds(one.at_heels_s),
        f"{one.others:.0%}",
    )


def milliseconds(seconds: Sequence[float]) -> str:
    both = [quantile(seconds, at) for at in (0.5, 0.99)]
    return " / ".join("" if value is None else f"{value * 1000:.2f}" for value in both)


def rollout(rounds: int, steps: int) -> None:
    results: dict[str, list[Figures]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        model = make_model(out)
        for seed in range(rounds):
            shift = seed % len(RUNS)
            names = [*RUNS][shift:] + [*RUNS][:shift]
            for at, name in enumerate(names):
                given = [
                    f'model.path="{model}"',
                    f"run.seed={seed}",
                    f"run.steps={FIRST_STEPS + steps}",
                    f'domains.Sleeper.reward="{RUNS[name]}"',
                ]
                results[name].append(train("rewards.toml", out, f"run-{seed}-{at}", given))
    print(f"\n### rollout beside rewards: {rounds} rounds, {steps} steps of 6 groups of 8\n")
    print(table(ROLLOUT, [rollout_row(name, results) for name in results]), flush=True)


def rollout_row(name: str, results: Mapping[str, Sequence[Figures]]) -> Sequence[str]:
    runs = results[name]
    bases = results[f"{name.partition(',')[0]}, instant"]
    uses = [run.summary.functions[0] for run in runs if run.summary.functions]
    ratios = [run.rate / base.rate for run, base in zip(runs, bases, strict=True)]
    p50, p99, overhead = (
        f"{middle(values) * 1000:.1f}" if values else ""
        for values in (
            [use.latency_p50_s for use in uses if use.latency_p50_s is not None],
            [use.latency_p99_s for use in uses if use.latency_p99_s is not None],
            [use.overhead_p50_s for use in uses if use.overhead_p50_s is not None],
        )
    )
    return (
        name,
        spread([run.rate for run in runs], 0),
        spread(ratios),
        spread([run.phases["get_batch"] for run in runs]),
        f"{p50} / {p99}" if uses else "",
        overhead,
        f"{middle(run.engine_busy for run in runs):.0%}",
        f"{middle(run.others for run in runs):.0%}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("all", "bursts", "rollout", "demo"), default="all")
    parser.add_argument("--quick", action="store_true", help="short everywhere: does it work?")
    parser.add_argument("--steps", type=int, default=10, help="bursts of a way (10)")
    parser.add_argument("--gap", type=float, default=5.0, help="seconds between bursts (5)")
    parser.add_argument(
        "--rewards", nargs="+", choices=("computing", "waiting"), default=["computing", "waiting"]
    )
    parser.add_argument(
        "--processes", type=int, default=8, help="that the waiting reward may have (8)"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=2.0,
        help="seconds after which an idle Lambda instance ends (2)",
    )
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=[*WAYS])
    parser.add_argument("--rounds", type=int, default=5, help="of rollout (5)")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT_S, help="seconds the demo trains (275)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="the demo's runs")
    chosen = parser.parse_args()
    if chosen.part in ("all", "bursts"):
        bursts(chosen)
    if chosen.part in ("all", "rollout"):
        rollout(1 if chosen.quick else chosen.rounds, 1 if chosen.quick else 9)
    if chosen.part in ("all", "demo"):
        show_demo(chosen.out, 20.0 if chosen.quick else chosen.time_limit)


if __name__ == "__main__":
    main()
