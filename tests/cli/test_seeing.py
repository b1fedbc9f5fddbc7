"""`rollart timeline` and `rollart compare`."""

import gzip
import json
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.events import Stamped
from rollart.observe.eventlog import EventLog
from rollart.testing.harness import run_scripted, scripted_job


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return stored(tmp_path / "run", steps=3)


def stored(directory: Path, steps: int) -> Path:
    directory.mkdir()
    log = EventLog(directory / "events.jsonl")
    found = run_scripted(scripted_job(run__steps=steps))
    for seq, (time, event) in enumerate(found.events.events):
        log.append(Stamped(time=time, seq=seq, incarnation=0, event=event))
    log.close()
    return directory


def test_timeline_writes_into_the_run_and_says_where(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", str(run)]) == 0
    path = run / "timeline.json.gz"
    assert str(path) in capsys.readouterr().out
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_timeline_writes_where_it_is_told(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert main(["timeline", str(run), "--out", str(path)]) == 0
    assert json.loads(path.read_text())["displayTimeUnit"] == "ms"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["timeline", "{}/none"], "does not exist; give the directory of a run"),
        (["timeline", "{}/run", "--out", "{}/none/a.json"], "cannot be written"),
        (["compare", "{}/run"], "give their directories"),
        (["compare", "{}/run", "{}"], "holds no events.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said


def test_compare_prints_tables_or_an_object(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stored(tmp_path / "other", steps=4)
    assert main(["compare", str(run), str(other)]) == 0
    assert "Runs side by side" in capsys.readouterr().out
    assert main(["compare", str(run), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["speed"]["steps"] == [3, 4]
