"""The demo over seeds and protocols: what it learns, how stale, how fast.

    python -m benchmarks.frozen_lake [--seeds 0 1 2] [--alphas 1 0] [--out runs/bench]

Runs the job file as a user would, one run at a time, and prints one row a run from its report.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent.parent / "examples" / "frozen_lake" / "job.toml"
TAG = "FrozenLake"


def train(out: Path, seed: int, alpha: int, extra: list[str]) -> dict[str, Any]:
    """Train once; returns the run's report."""
    name = f"lake-a{alpha}-s{seed}-{int(time.time())}"
    settings = [f"run.name={name}", f"run.directory={out}", f"run.seed={seed}"]
    settings += [f"protocol.alpha={alpha}", *extra]
    command = [sys.executable, "-m", "rollart", "train", str(JOB)]
    for setting in settings:
        command += ["--set", setting]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with (out / f"{name}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}; see {out / name}.log")
    report = [sys.executable, "-m", "rollart", "report", str(out / name), "--json"]
    return json.loads(subprocess.run(report, capture_output=True, check=True).stdout)


def row(seed: int, alpha: int, report: dict[str, Any]) -> str:
    before, after = report["success_before"][TAG], report["success_after"][TAG]
    best = max(report["baselines"][TAG].values())
    return (
        f"| {alpha} | {seed} | {before['sampled']:.3f} | {after['sampled']:.3f} "
        f"| {after['greedy']:.3f} | {best:.3f} | {report['steps']} | {report['train_s']:.0f} "
        f"| {report['tokens_per_s']:.0f} | {report['start_lag_max']} | {report['token_lag_max']} "
        f"| {report['token_lag_mean']:.2f} | {report['overlap_seconds']:.1f} "
        f"| {report['logprob_gap_scored']:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--alphas", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(
        "| alpha | seed | before | after | greedy | best baseline | steps | train s | tokens/s "
        "| start lag | token lag | mean lag | overlap s | log-prob gap |"
    )
    print("|" + "---|" * 14)
    for alpha in chosen.alphas:
        for seed in chosen.seeds:
            print(row(seed, alpha, train(chosen.out, seed, alpha, chosen.set)), flush=True)


if __name__ == "__main__":
    main()
