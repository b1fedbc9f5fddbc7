import io
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from rollart.core.events import Stamped
from rollart.observe.eventlog import EventLog, LogError
from rollart.observe.history import gather
from rollart.observe.plots import draw
from rollart.observe.report import ReportError, load_history, write_report
from rollart.observe.summary import summary_of
from rollart.observe.tables import result
from rollart.observe.words import count, duration, number, percent, small

Run = Callable[..., list[Stamped]]


def store(run: Path, events: list[Stamped]) -> Path:
    run.mkdir()
    log = EventLog(run / "events.jsonl")
    for stamped in events:
        log.append(stamped)
    log.close()
    return run


def size_of(png: Path) -> tuple[int, int]:
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def table_text(events: list[Stamped]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(result(summary_of(gather(events))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_report_is_an_object_and_a_picture(tmp_path: Path, synthetic_run: Run) -> None:
    run = store(tmp_path / "run", synthetic_run(steps=8))
    summary = write_report(run)
    stored = msgspec.json.decode((run / "report.json").read_bytes())
    assert stored["steps"] == summary.steps == 8
    assert stored["ledger"]["balanced"] is True
    width, height = size_of(run / "report.png")
    assert width >= 1200
    assert height >= 800


@pytest.mark.parametrize(("steps", "alpha"), [(0, 1), (1, 0), (300, 1)])
def test_runs_of_any_length_can_be_drawn(
    tmp_path: Path, synthetic_run: Run, steps: int, alpha: int
) -> None:
    draw(gather(synthetic_run(steps=steps, alpha=alpha)), tmp_path / "a.png")
    size_of(tmp_path / "a.png")


def test_a_log_that_ends_anywhere_can_be_reported(tmp_path: Path, synthetic_run: Run) -> None:
    events = synthetic_run(steps=3)
    for number_of in (0, 1, 5, 60, 130):
        table_text(events[:number_of])
    draw(gather([]), tmp_path / "empty.png")
    draw(gather(events[:5]), tmp_path / "early.png")


def test_the_table_shows_before_and_after_beside_the_baselines(synthetic_run: Run) -> None:
    events = synthetic_run(steps=5)
    shown = " ".join(table_text(events).split())
    speed = count(summary_of(gather(events)).tokens_per_s)
    for said in (
        "trained, sampled │ 0.110 │ 0.870",
        "trained, greedy │ 0.020 │ 0.900",
        "baseline: right if free, else down │ 0.620 │ 0.620",
        "token lag, maximum │ 2",
        f"tokens/s (prompt and response) │ {speed}",
        "balanced │ yes",
    ):
        assert said in shown
    assert "partial" not in shown


def test_the_table_of_a_run_that_is_not_over_says_that_it_is_partial(synthetic_run: Run) -> None:
    shown = table_text(synthetic_run(steps=5)[:-1])
    assert "partial report: the log has no end" in shown


def test_what_is_no_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    a_file = tmp_path / "file"
    a_file.write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    without_events = store(tmp_path / "young", [])
    for path, says in (
        (tmp_path / "none", "does not exist"),
        (a_file, "is a file"),
        (empty, "holds no events.jsonl"),
        (without_events, "holds no event yet"),
    ):
        with pytest.raises(ReportError, match=says) as caught:
            load_history(path)
        assert str(path) in str(caught.value)


def test_a_torn_log_gives_a_partial_report_and_a_damaged_one_an_error(
    tmp_path: Path, synthetic_run: Run
) -> None:
    run = store(tmp_path / "run", synthetic_run(steps=3))
    log = run / "events.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    assert write_report(run).partial is not None
    log.write_bytes(whole[:500] + b"\n" + whole[500:])
    with pytest.raises(LogError, match="damaged"):
        load_history(run)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path, synthetic_run: Run) -> None:
    run = store(tmp_path / "run", synthetic_run(steps=1))
    (run / "report.json").mkdir()
    with pytest.raises(ReportError, match=r"report\.json: cannot be written"):
        write_report(run)


def test_numbers_are_written_for_people() -> None:
    assert [duration(s) for s in (None, 0.04, 9.96, 61.0, 3599.6, 7500.0)] == [
        "-",
        "0.0 s",
        "10 s",
        "1 min 01 s",
        "1 h 00 min",
        "2 h 05 min",
    ]
    assert [count(n) for n in (None, 999, 9999, 12_345, 2_500_000)] == [
        "-",
        "999",
        "9999",
        "12.3k",
        "2.5M",
    ]
    assert (number(None), number(float("nan")), number(0.126)) == ("-", "-", "0.13")
    assert (percent(0.874), small(3.21e-6)) == ("87 %", "3.2e-06")
