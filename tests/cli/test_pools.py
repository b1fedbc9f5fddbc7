from pathlib import Path

import pytest

from rollart.cli.pools import pools, table
from rollart.core.errors import ConfigError
from rollart.core.events import Stamped, WorkerBound
from rollart.observe.eventlog import EVENTS_FILE, EventLog

JOB = """
schema = 1
[model]
path = "models/none"
[rollout]
engines = { H800 = 1, H20 = 2 }
affinity = { FrozenLake = "H800", default = "H20" }
[train]
correction = "behaviour"
[[domains]]
tag = "FrozenLake"
environment = "lake:Lake"
"""


def bound(worker: str, slots: tuple[int, ...]) -> WorkerBound:
    return WorkerBound(
        worker=worker,
        role="generation",
        pool="H20",
        hardware="H20",
        slots=slots,
        wanted="H800",
        reason="H800 is full (8 slots); H20 (bandwidth-optimised) can do it too",
    )


def test_a_table_says_who_is_where_and_why_in_columns() -> None:
    lines = table([bound("engine-0", (8, 9, 10, 12)), bound("long-name-of-a-worker", ())])
    head, first, second = lines.splitlines()
    assert head.split() == ["worker", "role", "pool", "slots", "wanted", "why"]
    assert first.split()[:5] == ["engine-0", "generation", "H20", "8-10,12", "H800"]
    assert second.split()[3] == "shared"
    assert {line.index("H800") for line in (first, second)} == {head.index("wanted")}


def test_a_job_file_shows_the_planned_places(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    rows = [line.split()[:3] for line in pools(path, ()).splitlines()[1:]]
    assert rows[:4] == [
        ["trainer", "training", "H800"],
        ["engine-0", "generation", "H800"],
        ["engine-1", "generation", "H20"],
        ["engine-2", "generation", "H20"],
    ]
    two = pools(path, ["rollout.engines.H20=1"])
    assert "engine-2" not in two


def test_a_run_shows_what_its_log_says(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS_FILE)
    for seq, event in enumerate((bound("engine-0", (1,)), bound("engine-1", (2,)))):
        log.append(Stamped(time=0.0, seq=seq, incarnation=0, event=event))
    log.close()
    assert [line.split()[0] for line in pools(tmp_path, ()).splitlines()] == [
        "worker",
        "engine-0",
        "engine-1",
    ]
    with pytest.raises(ConfigError, match="is a run, which is as it is"):
        pools(tmp_path, ["run.steps=3"])


def test_what_is_neither_run_nor_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no events\.jsonl; give the directory of a run"):
        pools(tmp_path, ())
    with pytest.raises(ConfigError, match="cannot be read"):
        pools(tmp_path / "missing.toml", ())
    EventLog(tmp_path / EVENTS_FILE).close()
    with pytest.raises(ConfigError, match="no worker was bound"):
        pools(tmp_path, ())
