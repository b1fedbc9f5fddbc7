import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rollart.core.events import RunStarted, Stamped, WorkerBound
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
    assert "Neither jobs nor worlds differ" in console.file.getvalue()


WORLD = """schema = 1
[model]
name = "{model}"
[pools]
cpu = {cpus}
"""


def test_what_worlds_differ_in_is_said(tmp_path: Path, synthetic_run: Run) -> None:
    runs = [stored(tmp_path / name, synthetic_run(steps=2), config(1, 0.1)) for name in "ab"]
    for run, model in zip(runs, ("Qwen3-8B", "Qwen3-32B"), strict=True):
        (run / "world.toml").write_text(WORLD.format(model=model, cpus=4))
    assert differences(compared(runs)) == {"world.model.name": ("Qwen3-8B", "Qwen3-32B")}
    (runs[1] / "world.toml").unlink()
    assert differences(compared(runs)) == {"world": ("modelled", None)}
    (runs[0] / "world.toml").write_text("= no TOML")
    with pytest.raises(CompareError, match=r"world\.toml: cannot be read"):
        compared(runs)


def test_gpus_have_a_price_and_what_it_buys_where_each_class_has_one(
    tmp_path: Path, synthetic_run: Run
) -> None:
    events = synthetic_run(steps=4)
    bound = [
        Stamped(time=0.0, seq=at, incarnation=0, event=binding(f"w{at}", hardware, slots))
        for at, (hardware, slots) in enumerate((("H20", 4), ("H800", 2)), 1)
    ]
    later = [dataclasses.replace(one, seq=one.seq + 2) for one in events[1:]]
    runs = [
        stored(tmp_path / "priced", [events[0], *bound, *later], config(1, 0.1)),
        stored(tmp_path / "plain", events, config(1, 0.1)),
    ]
    prices = {"H20": 1.0, "H800": 2.85}
    priced, plain = found = compared(runs, prices_of=lambda run: prices)
    assert priced.cost.gpus == (("H20", 4), ("H800", 2))
    assert priced.cost.price == pytest.approx(4 + 2 * 2.85)
    bought = priced.summary.trained_tokens / priced.summary.train_s / 9.7
    assert priced.cost.trained_tokens_per_s == pytest.approx(bought)
    assert plain.cost.price is None
    measures = json_object(found)["measures"]
    assert isinstance(measures, dict)
    assert measures["cost"]["GPUs"] == ["4 H20, 2 H800", None]
    assert measures["cost"]["price of an hour, H20 = 1"] == [pytest.approx(9.7), None]
    without = json_object(compared(runs, prices_of=lambda run: {"H20": 1.0}))["measures"]
    assert isinstance(without, dict)
    assert "cost" not in without


def binding(worker: str, hardware: str, slots: int) -> WorkerBound:
    return WorkerBound(
        worker=worker,
        role="actor_gen",
        pool=hardware,
        hardware=hardware,
        slots=tuple(range(slots)),
        wanted=hardware,
        reason="as the world file says",
    )


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
