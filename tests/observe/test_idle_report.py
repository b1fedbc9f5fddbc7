"""The idle account in reports."""

import io
import math
from collections.abc import Callable

import pytest
from rich.console import Console

from rollart.core.events import DeviceBusy, EngineUp, Event, Stamped
from rollart.observe.history import gather
from rollart.observe.summary import RunSummary, summary_of
from rollart.observe.summary_json import json_object
from rollart.observe.tables import result

Run = Callable[..., list[Stamped]]


def shown(summary: RunSummary) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(result(summary))
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def with_engines(events: list[Stamped], engines: int) -> list[Stamped]:
    """The run with so many more engines, which work for a tenth of a second in its middle."""
    middle = events[len(events) // 2].time
    more: list[Event] = []
    for number in range(engines):
        name = f"engine-{number + 2}"
        more += [
            EngineUp(engine=name, hardware="H20"),
            DeviceBusy(device=name, hardware="H20", work="decode", begin=middle, end=middle + 0.1),
        ]
    told = [*((one.time, one.event) for one in events), *((events[-1].time, one) for one in more)]
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(told)
    ]


def test_a_report_says_where_each_devices_time_went(synthetic_run: Run) -> None:
    found = shown(summary_of(gather(synthetic_run(steps=5))))
    assert "of training went" in found
    assert "what │ engine-0 │ engine-1 │ trainer" in found.replace("┃", "│")
    assert "weight sync │" in found


def test_many_devices_are_reported_by_hardware_class(synthetic_run: Run) -> None:
    found = shown(summary_of(gather(with_engines(synthetic_run(steps=5), 7)))).replace("┃", "│")
    assert "what │ cpu trainer x 1 │ cpu engine x 2 │ H20 engine x 7" in found
    assert "engine-3" not in found


def test_the_object_has_all_devices_and_their_classes_and_shares_add_up(
    synthetic_run: Run,
) -> None:
    summary = summary_of(gather(with_engines(synthetic_run(steps=5), 7)))
    idle = json_object(summary)["idle"]
    assert isinstance(idle, dict)
    assert len(idle["devices"]) == 10
    assert idle["window_s"] == pytest.approx(summary.train_s)
    for one in (*idle["devices"].values(), *idle["classes"]):
        assert math.fsum(one["shares"].values()) == pytest.approx(1.0, abs=1e-9)
    by_class = {(one["hardware"], one["role"]): one for one in idle["classes"]}
    mean = sum(idle["devices"][name]["shares"]["busy"] for name in ("engine-0", "engine-1")) / 2
    assert by_class["cpu", "engine"]["shares"]["busy"] == pytest.approx(mean)
    assert by_class["H20", "engine"]["devices"] == 7


def test_a_run_that_trained_nothing_has_no_account(synthetic_run: Run) -> None:
    summary = summary_of(gather(synthetic_run(steps=0)))
    assert summary.idle.devices == ()
    assert "of training went" not in shown(summary)
