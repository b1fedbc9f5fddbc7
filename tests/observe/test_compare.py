import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rollart.core.events import RunStarted, Stamped
from rollart.observe.compare import (
    CompareError,
    compared,
    differences,
    json_object,
    keys_of,
    names_of,
    tables,
)
from rollart.observe.eventlog import EventLog
from rollart.observe.report import ReportError

Run = Callable[..., list[Stamped]]


def stored(run: Path, events: list[Stamped], config: str = "") -> Path:
    run.mkdir(parents=True)
    log = EventLog(run / "events.jsonl")
    for stamped in events:
        event = stamped.event
        if isinstance(event, RunStarted):
            event = dataclasses.replace(event, config=config)
        log.append(dataclasses.replace(stamped, event=event))
    log.close()
    return run


def config(alpha: int, rate: float) -> str:
    return json.dumps(
        {
            "protocol": {"name": "rollart", "alpha": alpha},
            "train": {"learning_rate": rate},
            "domains": [{"tag": "FrozenLake", "max_turns": 8}],
        }
    )


@pytest.fixture
def two(tmp_path: Path, synthetic_run: Run) -> tuple[Path, Path]:
    return (
        stored(tmp_path / "one", synthetic_run(steps=6, alpha=1), config(1, 1e-3)),
        stored(tmp_path / "other", synthetic_run(steps=4, alpha=0), config(0, 1e-3)),
    )


def test_runs_are_put_side_by_side_with_what_their_jobs_differ_in(two: tuple[Path, Path]) -> None:
    found = json_object(compared(two))
    assert found["runs"] == ["one", "other"]
    assert found["keys"] == {"protocol.alpha": ["1", "0"]}
    measures = found["measures"]
    assert isinstance(measures, dict)
    assert measures["run"]["alpha"] == [1, 0]
    assert measures["speed"]["steps"] == [6, 4]
    assert measures["success"]["FrozenLake, held out"] == [0.87, 0.87]
    assert measures["ledger"]["trained"][0] == pytest.approx(1.0, abs=0.3)
    assert measures["cpu engine"]["devices"] == [2, 2]
    assert 0 < measures["cpu trainer"]["busy"][0] < 1
    json.dumps(found)


def test_measures_of_a_class_add_up_in_each_run(two: tuple[Path, Path]) -> None:
    measures = json_object(compared(two))["measures"]
    assert isinstance(measures, dict)
    for place in range(2):
        shares = [
            values[place]
            for name, values in measures["cpu engine"].items()
            if name not in {"devices", "of busy, untrained"}
        ]
        assert sum(shares) == pytest.approx(1.0)


def test_the_tables_name_runs_measures_and_keys(two: tuple[Path, Path]) -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(tables(compared(two)))
    assert isinstance(console.file, io.StringIO)
    shown = " ".join(console.file.getvalue().split())
    for said in ("one", "other", "tokens/s", "step time", "protocol.alpha │ 1 │ 0", "busy"):
        assert said in shown


def test_equal_jobs_are_said_to_be_equal(tmp_path: Path, synthetic_run: Run) -> None:
    runs = [stored(tmp_path / name, synthetic_run(steps=2), config(1, 0.1)) for name in "ab"]
    found = compared(runs)
    assert differences(found) == {}
    console = Console(file=io.StringIO(), width=160)
    console.print(tables(found))
    assert isinstance(console.file, io.StringIO)
    assert "differ in no key" in console.file.getvalue()


def test_fewer_than_two_runs_and_what_is_no_run_are_refused_with_a_remedy(
    tmp_path: Path, two: tuple[Path, Path]
) -> None:
    with pytest.raises(CompareError, match=r"got 1; give their directories: rollart compare"):
        compared(two[:1])
    with pytest.raises(ReportError, match="does not exist; give the directory of a run"):
        compared([two[0], tmp_path / "none"])


def test_keys_are_dotted_and_domains_known_by_their_tags() -> None:
    assert keys_of('{"a": {"b": 1, "c": [1, 2], "d": {}}, "domains": [{"tag": "x", "w": 2}]}') == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "a.d": "{}",
        "domains.x.w": "2",
    }
    assert keys_of("schema = 1\n") == {}
    assert keys_of("[1]") == {}


def test_runs_of_the_same_name_are_told_apart_by_their_paths() -> None:
    assert names_of([Path("/x/a/run"), Path("/x/b/run")]) == ("a/run", "b/run")
    assert names_of([Path("/x/a/one"), Path("/x/a/two")]) == ("one", "two")
    assert names_of([Path("/x/run"), Path("/x/run")]) == ("run", "run")
