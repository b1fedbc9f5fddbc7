"""The three-domain job with its rewards on three platforms, as a user would train it.

Invariant: the functions that run over HTTP and on Lambda are the packages that would be deployed,
with nothing of this project on their path but what is in them.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.parts.rewards_ways import LOOPBACK_KEYS, WORKERS
from benchmarks.parts.runs import ROOT, table
from rollart.shipping.package import TARGETS, package
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.instances import Figures, Scaling

JOB = ROOT / "examples" / "three_domains" / "job.toml"
FUNCTION = "rollart.backends.rewards.episode:episode_return"
NAME = "judge"
TIME_LIMIT_S = 275.0
"""Of training, in the job as it is."""

MARKS = {
    "FrozenLake": "at least 0.80",
    "TicTacToe": "at least 0.65",
    "LetterShift": "at least twice before",
}
SCALING = Scaling(limit=8, idle_s=2.0)
"""Of the function on Lambda."""

_ALONE = (sys.executable, "-S")  # without `site`, an editable install of this project is not found

SUCCESS = ("domain", "reward on", "before, sampled", "after, sampled", "after, greedy", "mark")
USES = (
    "function",
    "calls",
    "outcomes",
    "latency p50 / p99, ms",
    "overhead p50 / p99, ms",
    "cold starts",
    "busy share of processes here",
)


def show_demo(out: Path, time_limit_s: float) -> None:
    """Train it, and print what was learned, whether every trajectory is accounted for, and calls.

    Exits with the log's name if the run fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for target in ("cloudrun", "lambda"):
            package(FUNCTION, TARGETS[target], Path(folder) / target, root=ROOT / "src", name=NAME)
        served = stack.enter_context(_http(Path(folder) / "cloudrun"))
        invoked = stack.enter_context(_lambda(Path(folder) / "lambda"))
        places = {
            "FrozenLake": f"local://{FUNCTION}",
            "TicTacToe": f"{served.url}?concurrency={WORKERS}#{FUNCTION}",
            "LetterShift": f"lambda://{NAME}?region=loopback-1&endpoint={invoked.url}"
            f"&concurrency={SCALING.limit}#{FUNCTION}",
        }
        report, wall_s = _train(out, places, time_limit_s)
        figures = invoked.figures()
    _show(report, places, wall_s, figures)


def _http(folder: Path) -> Apart:
    environment = {"PYTHONPATH": _path(folder)}
    more = {"target": "handle", "workers": WORKERS, "threads": 1, "python": _ALONE}
    return Apart("framework", folder, environment=environment, **more)


def _lambda(folder: Path) -> Apart:
    environment = {"PYTHONPATH": _path(folder)}
    more = {"handler": "lambda_function.handler", "name": NAME, "python": _ALONE}
    return Apart("lambda", folder, SCALING, environment=environment, **more)


def _path(folder: Path) -> str:
    return os.pathsep.join((str(folder), sysconfig.get_path("purelib")))


def _train(
    out: Path, places: Mapping[str, str], time_limit_s: float
) -> tuple[Mapping[str, Any], float]:
    """The report of the run, and the seconds it took from start to end."""
    run = out / f"demo-rewards-{int(time.time())}"
    settings = [f"run.name={run.name}", f"run.directory={out}", f"run.time_limit_s={time_limit_s}"]
    settings += [f'domains.{tag}.reward="{url}"' for tag, url in places.items()]
    command = [sys.executable, "-m", "rollart", "train", str(JOB)]
    for setting in settings:
        command += ["--set", setting]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **LOOPBACK_KEYS,
    }
    log, began = run.with_suffix(".log"), time.monotonic()
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
    wall_s = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{run.name} ended with {done.returncode}; see {log}")
    shown = [sys.executable, "-m", "rollart", "report", str(run), "--json"]
    report = json.loads(subprocess.run(shown, capture_output=True, check=True).stdout)
    return report, wall_s


def _show(
    report: Mapping[str, Any], places: Mapping[str, str], wall_s: float, figures: Figures
) -> None:
    print(
        f"\n### the demo with its rewards on three platforms: {report['steps']} steps in "
        f"{report['train_s']:.0f} s, {wall_s:.0f} s from start to end\n"
    )
    print(table(SUCCESS, [_success_row(tag, places[tag], report) for tag in places]))
    counts = ", ".join(f"{name} {value}" for name, value in report["ledger"].items() if value)
    print(f"\nLedger: {counts}. Token lag at most {report['token_lag_max']}.\n")
    print(table(USES, [_use_row(use) for use in report["functions"].values()]))
    print(
        f"\nLambda's instances: {figures.cold_starts} started, {figures.most} at once at most, "
        f"{figures.busy_s:.1f} s in calls and starts of {figures.instance_s:.1f} s that they "
        f"existed; {figures.throttled} calls throttled.",
        flush=True,
    )


def _success_row(tag: str, url: str, report: Mapping[str, Any]) -> Sequence[str]:
    before, after = report["success_before"][tag], report["success_after"][tag]
    return (
        tag,
        f"{url.partition('://')[0]}://",
        f"{before['sampled']:.3f}",
        f"**{after['sampled']:.3f}**",
        f"{after['greedy']:.3f}",
        MARKS[tag],
    )


def _use_row(use: Mapping[str, Any]) -> Sequence[str]:
    share = use["busy_share"]
    return (
        use["url"].partition("?")[0],
        str(use["calls"]),
        ", ".join(f"{name} {number}" for name, number in use["outcomes"].items()),
        _both_ms(use["latency_p50_s"], use["latency_p99_s"]),
        _both_ms(use["overhead_p50_s"], use["overhead_p99_s"]),
        str(use["cold_starts"]),
        "" if share is None else f"{share:.1%}",
    )


def _both_ms(*values: float | None) -> str:
    return " / ".join("" if value is None else f"{value * 1000:.1f}" for value in values)
