"""The real packages, offline: every point arrives, each series on its own axis."""

import math
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.events import Stamped
from rollart.observe.points import Point
from rollart.observe.trackers import MetricsFeed, make_trackers, require_trackers

Run = Callable[..., list[Stamped]]

WRITERS = {"train": ("step", 40), "eval/Lake/sampled": ("version", 3), "system": ("sample", 7)}
"""Series, their axes, and how many points each writes."""


def interleaved() -> Iterator[Point]:
    """Several writers at once; evaluations come late and out of order, some values are missing."""
    for at in range(40):
        for series, (axis, number) in WRITERS.items():
            if at < number:
                place = number - 1 - at if axis == "version" else at
                values = (("x", 0.5), ("nan", math.nan), ("none", None), (f"only_{at % 2}", 1.0))
                yield Point(series=series, axis=axis, at=place, time=float(at), values=values)
    yield Point(series="system", axis="sample", at=99, time=40.0, values=())


def written(names: tuple[str, ...], directory: Path) -> None:
    said: list[str] = []
    trackers = make_trackers(names, directory, run="a-run", config='{"a": 1}', warn=said.append)
    began = time.perf_counter()
    for point in interleaved():
        trackers.log(point)
    assert time.perf_counter() - began < 0.5
    trackers.close(60.0)
    assert (said, trackers.lost) == ([], 0)


def expected() -> dict[str, list[int]]:
    return {
        series: sorted(p.at for p in interleaved() if p.series == series and p.values)
        for series in WRITERS
    }


def test_tensorboard_has_every_point_of_every_writer_at_its_own_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    written(("tensorboard",), tmp_path)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (tmp_path / "tensorboard").iterdir()
    steps: dict[str, list[int]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
    for series, places in expected().items():
        assert sorted(steps[f"{series}/x"]) == places
        assert sorted(steps[f"{series}/nan"]) == places
        assert f"{series}/none" not in steps


def wandb_history(directory: Path) -> list[dict[str, str]]:
    """The rows of an offline run: its file is a LevelDB log of protobuf records."""
    # Its message types are made at import, where no type checker sees them.
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    data, at, record, rows = file.read_bytes(), 7, b"", list[dict[str, str]]()
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            parsed = messages.Record()
            parsed.ParseFromString(record)
            record = b""
            if parsed.HasField("history"):
                items = parsed.history.item
                rows.append(
                    {item.key or "/".join(item.nested_key): item.value_json for item in items}
                )
    return rows


def test_wandb_has_every_point_offline_over_its_own_axis_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    written(("wandb",), tmp_path)
    rows = wandb_history(tmp_path)
    for series, places in expected().items():
        axis = f"{series}/{WRITERS[series][0]}"
        mine = [row for row in rows if axis in row]
        assert sorted(int(row[axis]) for row in mine) == places
        assert all(row[f"{series}/x"] == "0.5" for row in mine)
        assert all("NaN" in row[f"{series}/nan"] for row in mine)
    assert capfd.readouterr() == ("", "")


def test_a_whole_run_goes_to_all_trackers_and_the_local_file(
    tmp_path: Path, synthetic_run: Run
) -> None:
    pytest.importorskip("tensorboard")
    trackers = make_trackers(
        ("tensorboard",), tmp_path, run="a-run", config="{}", warn=lambda _: None
    )
    feed = MetricsFeed(trackers)
    for stamped in synthetic_run(steps=5):
        feed.take(stamped)
    trackers.close(60.0)
    assert trackers.lost == 0
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b'"series":"train"') == 5
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_tracker_whose_package_is_missing_is_refused_with_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"rollart\[wandb\]") as caught:
        require_trackers(("tensorboard", "wandb"), installed=lambda name: name != "wandb")
    assert str(caught.value).startswith("run.trackers = ['wandb']: ")


def test_an_unknown_tracker_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'comet'"):
        make_trackers(("comet",), tmp_path, run="r", config="{}", warn=print)
    assert not list(tmp_path.iterdir())


def test_checking_for_trackers_loads_none() -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    program = (
        "import sys\n"
        "from rollart.observe.trackers import make_trackers, require_trackers\n"
        "require_trackers(('tensorboard', 'wandb'))\n"
        "print(*{'wandb', 'tensorboard'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("\n", "")
