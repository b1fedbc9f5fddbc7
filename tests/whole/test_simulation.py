"""Simulated runs as the command and a script start them: one seed, one log, and an orderly end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import rollart as ra
from rollart.core.errors import ConfigError
from rollart.core.events import LedgerClosed, RunEnded, RunStarted, Stamped, Warned, WorkerBound
from rollart.core.jobfile import load_job
from rollart.observe.eventlog import EVENTS_FILE, read_events
from rollart.recorded import replay_run
from rollart.runtimes.sim.world.file import load_world
from rollart.testing.worlds import TAG, small_job, small_table

ROOT = Path(__file__).parents[2]
SIM = ["--runtime", "sim"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job and its world, and the place where we are."""
    monkeypatch.chdir(tmp_path)
    table = small_job(run__name="small").model_dump(mode="json", by_alias=True, exclude_none=True)
    (tmp_path / "job.toml").write_text(tomli_w.dumps(table))
    (tmp_path / "world.toml").write_text(tomli_w.dumps(small_table()))
    return tmp_path


def rollart(*words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rollart", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def logged(directory: Path) -> list[Stamped]:
    return list(read_events(directory / EVENTS_FILE))


def test_the_same_seed_gives_the_same_bytes_twice_in_one_process(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[bytes] = []
    for number, seed in enumerate((5, 5, 6)):
        place = files / f"place-{number}"
        place.mkdir()
        monkeypatch.chdir(place)
        outcome = ra.run("../job.toml", runtime="sim", world="../world.toml", seed=seed)
        assert outcome.ok, outcome.reason
        logs.append((outcome.directory / EVENTS_FILE).read_bytes())
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


def test_without_a_world_one_is_assumed_and_said_and_kept(files: Path) -> None:
    outcome = ra.run("job.toml", runtime="sim", seed=0)
    assert outcome.ok, outcome.reason
    events = [stamped.event for stamped in logged(outcome.directory)]
    assert isinstance(events[0], RunStarted)
    assert events[0].runtime == "sim"
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert any("no world was given" in message for message in warned)
    world = load_world(outcome.directory / "world.toml")
    assert world.model.name == "Qwen3-8B"
    assert load_job(outcome.directory / "job.toml").rollout.engines == {"H800": 2, "H20": 6}


def test_a_run_directory_is_a_place_to_simulate_from_again(files: Path) -> None:
    first = ra.run("job.toml", runtime="sim", world="world.toml", seed=3)
    job, world = first.directory / "job.toml", first.directory / "world.toml"
    again = ra.run(job, overrides=("run.name=again",), runtime="sim", world=world)

    def what_happened(directory: Path) -> list[tuple[float, object]]:
        return [
            (stamped.time, stamped.event)
            for stamped in logged(directory)
            if not isinstance(stamped.event, RunStarted)
        ]

    assert what_happened(first.directory) == what_happened(again.directory)


class ByDomain(ra.ActorGen):
    """A user's generation, which names the hardware of a domain."""

    @ra.hw_mapping(hw_affinity={TAG: "H800", "default": "H20"})
    async def generate(self, request: Any, tag_name: str = "default") -> Any:
        return await super().generate(request, tag_name)


def test_a_users_generation_is_honoured_in_a_simulation(files: Path) -> None:
    outcome = ra.run(
        "job.toml",
        overrides=("rollout.affinity={}", "rollout.engines=4"),
        actor_gen=ByDomain,
        runtime="sim",
        seed=0,
    )
    assert outcome.ok, outcome.reason
    bound = [
        stamped.event.hardware
        for stamped in logged(outcome.directory)
        if isinstance(stamped.event, WorkerBound) and stamped.event.role == "generation"
    ]
    assert set(bound) == {"H800", "H20"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"runtime": "local", "world": "world.toml"}, "runtime 'local' runs on the hardware"),
        (
            {"runtime": "sim", "pools": ra.ResourceManager({"H800": [0]})},
            "a simulation has those of its world",
        ),
        ({"runtime": "sim", "world": "nowhere.toml"}, "nowhere.toml: cannot be read"),
        (
            {"runtime": "sim", "world": "world.toml", "overrides": ("rollout.engines={H20=7}",)},
            "pools.H20 = 6",
        ),
        ({"runtime": "sim", "world": "recorded.toml"}, "recorded.run = "),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(
    files: Path, options: dict[str, Any], told: str
) -> None:
    recorded = small_table(domains={}, recorded={"run": "no-run"})
    (files / "recorded.toml").write_text(tomli_w.dumps(recorded))
    with pytest.raises(ConfigError) as caught:
        ra.run("job.toml", **options)
    assert told in str(caught.value)
    assert not (files / "runs").exists()


@pytest.mark.real
def test_hash_seeds_change_nothing_and_nothing_heavy_is_loaded(files: Path) -> None:
    script = (
        "import sys\n"
        "from rollart.job import check\n"
        "from pathlib import Path\n"
        "plan = check(Path('job.toml'), runtime='sim', world=Path('world.toml'))\n"
        "from rollart.runtimes.sim.run import simulate\n"
        "from rollart.testing.parts import EventRecorder\n"
        "from hashlib import sha256\n"
        "events = EventRecorder()\n"
        "assert plan.world is not None\n"
        "assert simulate(plan.job, plan.world, events=events).ok\n"
        "print(sha256(repr(events.events).encode()).hexdigest())\n"
        "heavy = {'torch', 'transformers', 'gymnasium', 'none'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "77")
    ]
    assert said[0] == said[1]
    assert said[0].endswith("[]\n")


@pytest.mark.real
def test_the_command_simulates_and_its_log_is_the_same_under_any_hash_seed(files: Path) -> None:
    logs: list[bytes] = []
    for seed in ("1", "77"):
        done = rollart(
            "train", "job.toml", *SIM, "--world", "world.toml", "--seed", "4", PYTHONHASHSEED=seed
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "balanced" in done.stdout
        run = files / "runs" / "small"
        logs.append((run / EVENTS_FILE).read_bytes())
        run.rename(files / f"run-{seed}")
    assert logs[0] == logs[1]
    report = rollart("report", files / "run-1", "--json")
    assert json.loads(report.stdout)["seed"] == 4
    checked = rollart("check", "job.toml", *SIM, "--world", "world.toml")
    assert "Qwen3-8B on 10 H800, 6 H20" in checked.stdout
    bad = rollart("train", "job.toml", *SIM, "--set", "rollout.engines={B200=1}", "--world", "x")
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1


@pytest.mark.real
@pytest.mark.parametrize("example", ["three_domains", "my_reward"])
def test_the_examples_run_in_a_simulation(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = ROOT / "examples" / example / "job.toml"
    outcome = ra.run(job, overrides=("run.steps=2", "eval.tasks=0"), runtime="sim")
    assert outcome.ok, outcome.reason


@pytest.mark.real
@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_simulation_in_order(files: Path) -> None:
    words = ["train", "job.toml", *SIM, "--world", "world.toml", "--set", "run.steps=1000000"]
    running = subprocess.Popen(
        [sys.executable, "-m", "rollart", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = files / "runs" / "small" / EVENTS_FILE
    until = time.monotonic() + 120
    while not (log.exists() and '"type":"StepTrained"' in log.read_text()):
        assert time.monotonic() < until
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 130, said
    events = [stamped.event for stamped in logged(log.parent)]
    balance = [event for event in events if isinstance(event, LedgerClosed)][-1]
    assert balance.balanced
    assert balance.in_flight == balance.buffered == 0
    end = next(event for event in events if isinstance(event, RunEnded))
    assert end.reason == "stopped by SIGINT"
    assert (log.parent / "report.json").exists()


def test_a_simulated_run_can_be_replayed(files: Path) -> None:
    outcome = ra.run("job.toml", runtime="sim", world="world.toml", seed=0)
    report = replay_run(outcome.directory)
    assert report.equal, str(report)
