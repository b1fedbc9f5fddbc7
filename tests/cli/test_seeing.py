"""`rollart timeline` and `rollart compare`."""

import gzip
import json
import random
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.events import Stamped
from rollart.job import run_started
from rollart.observe.eventlog import EventLog
from rollart.testing.harness import run_scripted, scripted_job


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return stored(tmp_path / "run", steps=3)


def stored(directory: Path, steps: int) -> Path:
    directory.mkdir()
    log = EventLog(directory / "events.jsonl")
    job = scripted_job(run__steps=steps)
    begun = (0.0, run_started(job, directory.name, "sim"))
    for seq, (time, event) in enumerate((begun, *run_scripted(job).events.events)):
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


def broken(directory: Path, how: str) -> Path:
    """The log of a run in `directory`, damaged."""
    log = stored(directory, steps=3) / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    if how == "noise":
        lines = [random.Random(0).randbytes(3000)]
    elif how == "empty":
        lines = []
    elif how == "invalid":
        lines[200:200] = [b"here something went wrong\n"]
    elif how == "cut":
        turn = next(n for n, line in enumerate(lines) if line.startswith(b'{"type":"GroupReady'))
        lines[turn] = lines[turn][:40] + b"\n"
    elif how == "beheaded":
        lines = lines[1:]
    log.write_bytes(b"".join(lines))
    return directory


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("noise", "line 1 is damaged"),
        ("empty", "holds no event"),
        ("invalid", "line 201 is damaged"),
        ("cut", "is damaged"),
        ("beheaded", "not with RunStarted"),
    ],
)
def test_a_damaged_log_gives_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, says: str
) -> None:
    run = broken(tmp_path / "broken", how)
    assert main(["timeline", str(run)]) == 2
    assert says in capsys.readouterr().err
    assert not (run / "timeline.json.gz").exists()


def test_what_is_shown_of_a_part_of_a_run_is_said_to_be_partial(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = stored(tmp_path / "cut", steps=3)
    lines = (cut / "events.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "events.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    assert main(["timeline", str(cut)]) == 0
    assert "partial timeline: the log has no end" in capsys.readouterr().err
    assert main(["compare", str(run), str(cut)]) == 0
    said = capsys.readouterr()
    assert "cut: its figures are of a part of the run: the log has no end" in said.err
    assert "partial" in said.out
    assert main(["compare", str(run), str(cut), "--json"]) == 0
    whole, part = json.loads(capsys.readouterr().out)["measures"]["run"]["partial"]
    assert whole is None
    assert "no end" in part
    assert main(["timeline", str(run)]) == 0
    assert not capsys.readouterr().err
