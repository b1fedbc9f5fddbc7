"""The command as a user types it: what a run leaves, how it is stopped, what overlaps."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart.process.owner import RUN_ID_VARIABLE

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

JobWriter = Callable[..., Path]


def rollart(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "rollart", *map(str, words)]


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(rollart(*words), capture_output=True, text=True, check=False)


def report(directory: Path) -> dict[str, Any]:
    done = run("report", directory, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def children_of(name: str) -> list[int]:
    """Processes whose environment says that they belong to a run called `name`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        marker = f"{RUN_ID_VARIABLE}={name}-".encode()
        if state != "Z" and any(variable.startswith(marker) for variable in variables):
            found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.2)


def start(path: Path, name: str, *settings: str) -> "subprocess.Popen[str]":
    words = [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(
        rollart("train", path, "--set", f"run.name={name}", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_logged(directory: Path) -> int:
    log = directory / "events.jsonl"
    return log.read_text().count('"type":"StepTrained"') if log.exists() else 0


def test_a_run_leaves_its_job_log_metrics_picture_and_weights_that_transformers_loads(
    write_job: JobWriter, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = write_job()
    done = run("train", path, "--set", "run.name=plain", "--set", "eval.tasks=8")
    assert done.returncode == 0, done.stdout + done.stderr
    directory = tmp_path / "runs" / "plain"
    for file in ("job.toml", "events.jsonl", "metrics.jsonl", "report.json", "report.png"):
        assert (directory / file).stat().st_size > 0, file
    AutoModelForCausalLM.from_pretrained(directory / "weights")
    AutoTokenizer.from_pretrained(directory / "weights")
    found = report(directory)
    assert found["steps"] == 4
    assert found["ledger"]["balanced"]
    assert found["start_lag_max"] <= 1
    assert found["token_lag_max"] <= 2
    assert found["heldout_tasks"] == {"Lake": 8}
    assert found["logprob_gap_max"] < 1e-4
    assert set(found["success_after"]["Lake"]) == {"sampled", "greedy"}
    assert children_of("plain") == []
    again = run("train", path, "--set", "run.name=plain")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "already holds a run" in again.stderr
    resolved = run("check", directory / "job.toml", "--set", "run.name=other")
    assert resolved.returncode == 0, resolved.stderr


def test_training_and_rollout_overlap_with_alpha_1_and_never_with_alpha_0(
    write_job: JobWriter, tmp_path: Path
) -> None:
    path = write_job()
    found = {}
    for alpha in (0, 1):
        name = f"alpha{alpha}"
        settings = [f"run.name={name}", f"protocol.alpha={alpha}", "run.steps=6"]
        settings += ["rollout.batch_groups=12", "rollout.group_size=8", "rollout.slots=256"]
        words = [word for setting in settings for word in ("--set", setting)]
        done = run("train", path, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        found[alpha] = report(tmp_path / "runs" / name)
    assert found[0]["token_lag_max"] == 0
    assert found[0]["overlap_seconds"] == 0
    assert found[1]["start_lag_max"] <= 1
    assert found[1]["token_lag_max"] <= 2
    assert found[1]["overlap_seconds"] > 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_a_run_in_order_with_weights_and_report(
    write_job: JobWriter, tmp_path: Path, number: signal.Signals
) -> None:
    name = f"stopped{number}"
    process = start(write_job(), name, "run.steps=100000")
    directory = tmp_path / "runs" / name
    wait_for(lambda: steps_logged(directory) >= 2, 180, "two steps trained")
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert children_of(name) == []
    assert (directory / "weights" / "model.safetensors").exists()
    assert (directory / "report.json").exists()
    ledger = report(directory)["ledger"]
    assert ledger["balanced"]
    assert ledger["in_flight"] == ledger["buffered"] == 0


def test_no_child_outlives_a_killed_main_process_for_15_seconds(
    write_job: JobWriter, tmp_path: Path
) -> None:
    process = start(write_job(), "killed", "run.steps=100000")
    directory = tmp_path / "runs" / "killed"
    wait_for(lambda: steps_logged(directory) >= 1, 180, "a step trained")
    assert len(children_of("killed")) >= 4
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not children_of("killed"), 15, "all children gone")
    assert report(directory)["partial"] is not None


def test_a_run_that_cannot_begin_says_why_and_leaves_a_report(
    write_job: JobWriter, tmp_path: Path
) -> None:
    path = write_job()
    (tmp_path / "model.py").write_text(
        "def make(directory, *, seed):\n    raise MemoryError('no room')"
    )
    done = run("train", path, "--set", "run.name=stillborn")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no room" in done.stderr
    found = report(tmp_path / "runs" / "stillborn")
    assert found["ok"] is False
    assert "no room" in found["ended"]
    assert children_of("stillborn") == []
