"""The demo over seeds: what it learns in each domain beside its baselines, how stale, how fast.

    python -m benchmarks.demo [--seeds 0 1 2] [--alphas 1] [--job JOB.toml] [--out runs/bench]

Runs the job file as a user would, one run at a time. Prints one table of success with a row a
domain and run, then one of the runs themselves, both from the runs' own reports.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent.parent / "examples" / "three_domains" / "job.toml"
SUCCESS = "| alpha | seed | domain | before, sampled | after, sampled | after, greedy | baselines |"
RUNS = (
    "| alpha | seed | steps | run s | wall s, with warm-up | tokens/s | start lag max "
    "| token lag max | token lag mean | answers of several versions | overlap s | log-prob gap |"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run: its report, its seconds from start to end, and turns by the versions in them."""

    alpha: int
    seed: int
    report: dict[str, Any]
    wall_s: float
    turns: int
    mixed_turns: int


def train(chosen: argparse.Namespace, seed: int, alpha: int) -> Trained:
    """Train once; exits with the log's name if that fails."""
    name = f"demo-a{alpha}-s{seed}-{int(time.time())}"
    run = chosen.out / name
    settings = [f"run.name={name}", f"run.directory={chosen.out}", f"run.seed={seed}"]
    settings += [f"protocol.alpha={alpha}", *chosen.set]
    command = [sys.executable, "-m", "rollart", "train", str(chosen.job)]
    for setting in settings:
        command += ["--set", setting]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    began = time.monotonic()
    with run.with_suffix(".log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    wall_s = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}; see {run.with_suffix('.log')}")
    shown = [sys.executable, "-m", "rollart", "report", str(run), "--json"]
    report = json.loads(subprocess.run(shown, capture_output=True, check=True).stdout)
    turns, mixed = versions_of_turns(run / "events.jsonl")
    return Trained(
        alpha=alpha, seed=seed, report=report, wall_s=wall_s, turns=turns, mixed_turns=mixed
    )


def versions_of_turns(log: Path) -> tuple[int, int]:
    """How many answers of several tokens there were, and in how many new weights arrived."""
    turns = mixed = 0
    with log.open() as lines:
        for line in lines:
            record = json.loads(line)
            if record["type"] == "TurnEnded" and record["event"]["sampled_tokens"] > 1:
                turns += 1
                mixed += record["event"]["first_version"] != record["event"]["last_version"]
    return turns, mixed


def success_rows(run: Trained) -> list[str]:
    """A row a domain."""
    report = run.report
    rows: list[str] = []
    for tag, after in report["success_after"].items():
        named = report["baselines"].get(tag, {}).items()
        baselines = ", ".join(f"{name} {value:.3f}" for name, value in named)
        rows.append(
            f"| {run.alpha} | {run.seed} | {tag} | {report['success_before'][tag]['sampled']:.3f} "
            f"| **{after['sampled']:.3f}** | {after['greedy']:.3f} | {baselines} |"
        )
    return rows


def run_row(run: Trained) -> str:
    """What the whole run was like."""
    report = run.report
    return (
        f"| {run.alpha} | {run.seed} | {report['steps']} | {report['train_s']:.0f} "
        f"| {run.wall_s:.0f} | {report['tokens_per_s']:.0f} | {report['start_lag_max']} "
        f"| {report['token_lag_max']} | {report['token_lag_mean']:.2f} "
        f"| {run.mixed_turns} of {run.turns} | {report['overlap_seconds']:.1f} "
        f"| {report['logprob_gap_scored']:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--alphas", type=int, nargs="+", default=[1])
    parser.add_argument("--job", type=Path, default=JOB)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(f"{SUCCESS}\n|{'---|' * 7}")
    runs: list[Trained] = []
    for alpha in chosen.alphas:
        for seed in chosen.seeds:
            runs.append(train(chosen, seed, alpha))
            print("\n".join(success_rows(runs[-1])), flush=True)
    print(f"\n{RUNS}\n|{'---|' * 12}")
    print("\n".join(map(run_row, runs)), flush=True)


if __name__ == "__main__":
    main()
