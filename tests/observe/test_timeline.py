import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollart.core.events import DeviceBusy, Event, Phase, PhaseBegan, Stamped, WorkerBound
from rollart.observe.timeline import TRAJECTORY_LANES, TimelineError, write_timeline
from rollart.testing.harness import run_scripted, scripted_job

Run = Callable[..., list[Stamped]]
Records = list[dict[str, Any]]


def written(events: list[Stamped], path: Path) -> Records:
    """The records of a written timeline, parsed back."""
    count = write_timeline(events, path)
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    assert len(found) == count
    return found


def stamped(*told: tuple[float, Event]) -> list[Stamped]:
    return [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(told)
    ]


def busy(begin: float, end: float, work: str = "decode", device: str = "engine-0") -> DeviceBusy:
    return DeviceBusy(device=device, hardware="H20", work=work, begin=begin, end=end)


def lanes(records: Records) -> dict[str, Records]:
    """Slices by the name of their lane, in order of time."""
    names = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in records
        if one["ph"] == "M" and one["name"] == "thread_name"
    }
    found: dict[str, Records] = {name: [] for name in names.values()}
    assert len(found) == len(names)
    for one in records:
        if one["ph"] == "X":
            found[names[one["pid"], one["tid"]]].append(one)
    for slices in found.values():
        slices.sort(key=lambda one: (one["ts"], one["dur"]))
    return found


def overlaps(slices: Records) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for one, other in pairwise(slices):
        if one["ts"] + one["dur"] > other["ts"]:
            yield one, other


def scripted() -> list[Stamped]:
    found = run_scripted(scripted_job(run__steps=6, rollout__engines=2))
    return stamped(*found.events.events)


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_devices_control_and_trajectories_have_lanes_without_overlaps(
    tmp_path: Path, synthetic_run: Run, name: str
) -> None:
    found = lanes(written(synthetic_run(steps=6), tmp_path / name))
    assert {"engine-0", "engine-1", "trainer", "steps", "recompute"} <= set(found)
    for lane, slices in found.items():
        assert slices, lane
        assert not list(overlaps(slices)), lane


def test_a_run_of_the_control_plane_has_all_steps_on_one_lane(tmp_path: Path) -> None:
    found = lanes(written(scripted(), tmp_path / "a.json"))
    assert {one["name"] for one in found["steps"]} == {
        phase.value for phase in Phase if phase is not Phase.RECOMPUTE
    }
    assert {one["name"] for one in found["recompute"]} == {"recompute"}
    for lane, slices in found.items():
        assert not list(overlaps(slices)), lane


def test_what_is_shown_of_trajectories_is_bounded_and_tells_of_all_their_time(
    tmp_path: Path,
) -> None:
    found = lanes(written(scripted(), tmp_path / "a.json"))
    shown = {name: slices for name, slices in found.items() if name.startswith("trajectory")}
    assert len(shown) == TRAJECTORY_LANES
    whole: defaultdict[str, Records] = defaultdict(list)
    for slices in shown.values():
        for one in slices:
            whole[one["args"]["trajectory"]].append(one)
    assert {"reset", "generate", "environment", "reward"} <= {
        one["name"] for slices in whole.values() for one in slices
    }
    for slices in whole.values():
        for one, other in pairwise(slices):
            assert one["ts"] + one["dur"] == other["ts"]


def test_times_are_microseconds_from_the_first_event(tmp_path: Path) -> None:
    bound = WorkerBound(
        worker="engine-0", role="generation", pool="p", hardware="H20", slots=(0,), wanted="",
        reason="",
    )  # fmt: skip
    events = stamped((100.0, bound), (101.5, busy(100.25, 101.5)))
    (one,) = lanes(written(events, tmp_path / "a.json"))["engine-0"]
    assert (one["ts"], one["dur"], one["name"]) == (250_000, 1_250_000, "decode")


def test_work_at_once_on_one_device_gets_a_further_lane(tmp_path: Path) -> None:
    events = stamped(
        (0.0, busy(0.0, 1.0)), (3.0, busy(1.0, 3.0)), (3.0, busy(2.0, 4.0, "update")),
        (5.0, busy(3.0, 5.0)),
    )  # fmt: skip
    found = lanes(written(events, tmp_path / "a.json"))
    assert [one["name"] for one in found["engine-0"]] == ["decode"] * 3
    assert [one["name"] for one in found["engine-0 (2)"]] == ["update"]


def test_counters_follow_what_is_in_flight_and_the_version(tmp_path: Path) -> None:
    counters: defaultdict[str, list[int]] = defaultdict(list)
    for one in written(scripted(), tmp_path / "a.json"):
        if one["ph"] == "C":
            counters[one["name"]].append(one["args"]["value"])
    assert counters["committed version"][:3] == [0, 1, 2]
    assert max(counters["in flight"]) > 8
    assert counters["in flight"][-1] == 0
    assert min(counters["buffered groups"]) == 0
    assert {"outstanding groups"} <= set(counters)


def test_counters_that_hardly_move_are_not_written_again(tmp_path: Path) -> None:
    events = scripted()
    records = written(events, tmp_path / "a.json")
    shown = sum(one["ph"] == "C" for one in records)
    assert shown < len(events)


def test_what_is_under_way_at_the_end_of_a_log_is_shown_up_to_there(tmp_path: Path) -> None:
    events = stamped(
        (0.0, PhaseBegan(step=3, phase=Phase.TRAIN_STEP)), (2.0, busy(0.0, 2.0, "train", "t"))
    )
    (one,) = lanes(written(events, tmp_path / "a.json"))["steps"]
    assert (one["ts"], one["dur"]) == (0, 2_000_000)
    assert one["args"] == {"step": 3, "outcome": "unfinished"}


def test_a_log_without_events_is_an_empty_timeline(tmp_path: Path) -> None:
    assert written([], tmp_path / "a.json") == []


def test_a_timeline_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(TimelineError, match=r"a\.json: cannot be written"):
        write_timeline(stamped((0.0, busy(0.0, 1.0))), tmp_path / "a.json")
    with pytest.raises(TimelineError, match="cannot be written"):
        write_timeline([], tmp_path / "none" / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
