import contextlib
import dataclasses
import math
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from rollart.core.events import (
    SCHEMA,
    Committed,
    EngineDown,
    Event,
    RunEnded,
    RunStarted,
    Stamped,
    StepTrained,
    TrajectoryEnded,
    Warned,
)
from rollart.observe.eventlog import (
    EventLog,
    LogError,
    SequenceCheck,
    Wholeness,
    read_events,
    read_run,
)


def at(time: float, seq: int, event: Event) -> Stamped:
    return Stamped(time=time, seq=seq, incarnation=0, event=event)


def test_a_run_comes_back_from_disk_as_it_was(
    tmp_path: Path, synthetic_run: Callable[..., list[Stamped]]
) -> None:
    events = synthetic_run(steps=5)
    log = EventLog(tmp_path / "events.jsonl")
    for stamped in events:
        log.append(stamped)
    log.close()
    assert list(read_events(tmp_path / "events.jsonl")) == events
    assert log.lost == 0


def test_every_event_type_can_be_read_back(tmp_path: Path) -> None:
    seen = [at(0.0, seq, example(kind)) for seq, kind in enumerate(get_args(Event))]
    log = EventLog(tmp_path / "log")
    for stamped in seen:
        log.append(stamped)
    log.close()
    assert list(read_events(tmp_path / "log")) == seen


def example(kind: type) -> Event:
    """An event of a type, its fields filled by what msgspec takes for each."""
    plain: dict[str, object] = {}
    for field in msgspec.inspect.type_info(kind).fields:  # pyright: ignore[reportAttributeAccessIssue]
        plain[field.name] = plain_value(field.type)
    return msgspec.convert(plain, kind)


def plain_value(info: msgspec.inspect.Type) -> object:
    match info:
        case msgspec.inspect.IntType():
            return SCHEMA
        case msgspec.inspect.FloatType():
            return 1.5
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case msgspec.inspect.VarTupleType(item_type=item):
            return [plain_value(item)]
        case msgspec.inspect.TupleType(item_types=items):
            return [plain_value(item) for item in items]
        case msgspec.inspect.UnionType(types=types):
            return plain_value(types[0])
        case msgspec.inspect.DataclassType(fields=fields):
            return {field.name: plain_value(field.type) for field in fields}
        case _:
            return "text"


def test_a_line_says_its_type_first(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    log.append(at(1.5, 0, Committed(version=3)))
    log.close()
    assert (tmp_path / "log").read_text() == (
        '{"type":"Committed","time":1.5,"seq":0,"incarnation":0,"event":{"version":3}}\n'
    )


def test_a_torn_last_line_is_passed_over_wherever_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    for seq in range(3):
        log.append(at(0.0, seq, Warned(message="straße")))
    log.close()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert [stamped.seq for stamped in read_events(path)] == [0, 1]


def test_a_damaged_line_inside_the_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    for seq in range(3):
        log.append(at(0.0, seq, Committed(version=seq)))
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (lines[1][:20] + b"\n", b"\x00\xff\n", b"{}\n"):
        path.write_bytes(lines[0] + damage + lines[2])
        with pytest.raises(LogError, match="line 2 is damaged"):
            list(read_events(path))


def test_a_newer_schema_is_refused_even_where_its_start_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        '{"type":"RunStarted","time":0,"seq":0,"incarnation":0,'
        f'"event":{{"schema":{SCHEMA + 1},"title":"renamed"}}}}\n'
    )
    with pytest.raises(LogError, match=f"event schema {SCHEMA + 1}.*reads up to {SCHEMA}"):
        list(read_events(path))
    path.write_text('{"type":"Teleported","time":0,"seq":0,"incarnation":0,"event":{}}\n')
    with pytest.raises(LogError, match=r"unknown event type 'Teleported'.*newer RollArt"):
        list(read_events(path))


def test_numbers_that_are_not_finite_come_back_as_nan(
    tmp_path: Path, synthetic_run: Callable[..., list[Stamped]]
) -> None:
    (trained,) = (s.event for s in synthetic_run(steps=1) if isinstance(s.event, StepTrained))
    stats = dataclasses.replace(
        trained.stats, loss=math.nan, ratio_max=math.inf, same_version_gap=None
    )
    log = EventLog(tmp_path / "log")
    log.append(at(0.0, 0, dataclasses.replace(trained, stats=stats, token_lag_mean=math.nan)))
    log.close()
    (back,) = read_events(tmp_path / "log")
    assert isinstance(back.event, StepTrained)
    assert math.isnan(back.event.stats.loss)
    assert math.isnan(back.event.stats.ratio_max)
    assert math.isnan(back.event.token_lag_mean)
    assert back.event.stats.same_version_gap is None
    assert back.event.stats.grad_norm == stats.grad_norm


def test_text_that_is_no_unicode_and_numpy_numbers_are_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    ended = TrajectoryEnded(
        trajectory="a",
        purpose="train",
        domain="FrozenLake",
        status="failed",
        failure="env_step",
        detail="raised \udc80 here",
        turns=1,
        prompt_tokens=1,
        sampled_tokens=1,
        start_version=None,
        score=np.float32(0.5),  # type: ignore[arg-type]
        success=None,
        elapsed_s=0.0,
        reset_s=0.0,
        reward_s=0.0,
    )
    log.append(at(0.0, 0, ended))
    log.append(at(0.0, 1, Committed(version=1)))
    log.close()
    first, second = read_events(tmp_path / "log")
    assert isinstance(first.event, TrajectoryEnded)
    assert first.event.detail == "raised ? here"
    assert first.event.score == 0.5
    assert second.seq == 1


def test_an_event_that_cannot_be_written_is_counted_and_hurts_no_other(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = EventLog(tmp_path / "log", warn=warnings.append)
    log.append(at(0.0, 0, Committed(version=0)))
    log.append(at(0.0, 1, Committed(version=object())))  # type: ignore[arg-type]
    log.append(at(0.0, 2, Committed(version=object())))  # type: ignore[arg-type]
    log.append(at(0.0, 3, Committed(version=3)))
    log.close()
    assert [stamped.seq for stamped in read_events(tmp_path / "log")] == [0, 3]
    assert log.lost == 2
    assert len(warnings) == 1
    assert "Committed" in warnings[0]


def test_events_reach_the_file_within_a_second_of_event_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    log.append(at(10.0, 0, Committed(version=0)))
    for seq, time in enumerate((10.2, 10.9), 1):
        log.append(at(time, seq, Committed(version=seq)))
    assert len(list(read_events(path))) == 1
    log.append(at(11.0, 3, Committed(version=3)))
    assert len(list(read_events(path))) == 4
    log.append(at(11.1, 4, Committed(version=4)))
    log.flush()
    assert len(list(read_events(path))) == 5
    log.close()


def test_what_is_asked_for_after_a_crash_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    log.append(at(0.0, 0, Committed(version=0)))
    log.append(at(0.1, 1, EngineDown(engine="e", reason="gone", moved_requests=0)))
    assert len(list(read_events(path))) == 2
    log.close()


def test_close_writes_the_rest_and_a_later_event_is_counted_as_lost(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    for seq in range(3):
        log.append(at(0.0, seq, Committed(version=seq)))
    log.close()
    log.close()
    log.append(at(0.0, 3, Committed(version=3)))
    assert len(list(read_events(tmp_path / "log"))) == 3
    assert log.lost == 1


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    EventLog(tmp_path / "log").close()
    with pytest.raises(FileExistsError):
        EventLog(tmp_path / "log")


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """While it holds, a write beyond `size` fails as on a full disk, in part or whole.

    The limit is the whole process's: the test runner's own output, redirected to a file, must
    not be written while it holds. So it never outlasts the writes that it is there for.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_events_and_one_warning_but_no_whole_line_and_not_the_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    warnings: list[str] = []
    log = EventLog(path, warn=warnings.append)
    # Each is more than a second after the one before, so each is a write of its own.
    for seq in range(10):
        log.append(at(2.0 * seq, seq, Committed(version=seq)))
    size = path.stat().st_size
    with largest_file(size + 30):
        for seq in range(10, 20):
            log.append(at(2.0 * seq, seq, Committed(version=seq)))
    assert path.stat().st_size == size
    log.append(at(50.0, 20, RunEnded(reason="done", ok=True, steps=0, seconds=50.0)))
    log.close()
    seqs = [stamped.seq for stamped in read_events(path)]
    assert seqs == [*range(10), 20]
    assert faults(seqs) == [(10, 20)]
    assert log.lost == 10
    assert len(warnings) == 1
    assert "the run goes on" in warnings[0]


def test_a_file_that_was_closed_under_the_log_never_raises(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = EventLog(tmp_path / "log", warn=warnings.append)
    os.close(log._file)  # pyright: ignore[reportPrivateUsage]
    log.append(at(0.0, 0, Committed(version=0)))
    log.close()
    assert log.lost == 1
    assert len(warnings) == 1


def faults(numbers: Iterable[int]) -> list[tuple[int, int]]:
    check = SequenceCheck()
    for number in numbers:
        check.take(number)
    return check.faults


def test_sequence_faults_name_what_is_missing_repeated_or_out_of_order() -> None:
    assert faults(range(5)) == []
    assert faults([0, 1, 4, 5]) == [(2, 4)]
    assert faults([1, 2]) == [(0, 1)]
    assert faults([0, 1, 1, 2]) == [(2, 1)]


def test_run_started_carries_the_schema_that_the_reader_checks(
    synthetic_run: Callable[..., list[Stamped]],
) -> None:
    first = synthetic_run(steps=1)[0].event
    assert isinstance(first, RunStarted)
    assert first.schema == SCHEMA


def test_some_types_can_be_read_alone(
    tmp_path: Path, synthetic_run: Callable[..., list[Stamped]]
) -> None:
    events = synthetic_run(steps=3)
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for stamped in events:
        log.append(stamped)
    log.close()
    kinds = (RunStarted, StepTrained)
    assert list(read_events(path, only=kinds)) == [s for s in events if isinstance(s.event, kinds)]


def test_with_some_types_alone_what_is_no_whole_line_of_another_is_still_damage(
    tmp_path: Path, synthetic_run: Callable[..., list[Stamped]]
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for stamped in synthetic_run(steps=3):
        log.append(stamped)
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"noise\n", b'{"type":"Committed","time":1.0,"seq":5,\n', b'{"type":"New"}\n'):
        path.write_bytes(b"".join([*lines[:5], bad, *lines[5:]]))
        with pytest.raises(LogError, match="line 6"):
            list(read_events(path, only=(RunStarted,)))


def test_of_a_log_read_in_part_it_is_known_whether_it_is_whole(
    tmp_path: Path, synthetic_run: Callable[..., list[Stamped]]
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for stamped in synthetic_run(steps=3):
        log.append(stamped)
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)

    def partial(kept: list[bytes]) -> str | None:
        path.write_bytes(b"".join(kept))
        whole = Wholeness()
        list(read_run(path, only=(StepTrained,), whole=whole))
        return whole.partial

    assert partial(lines) is None
    assert "no end" in (partial(lines[:-1]) or "")
    assert "event 8 stands where 7 should" in (partial([*lines[:7], *lines[8:]]) or "")
    with pytest.raises(LogError, match="begins with"):
        partial(lines[1:])
    with pytest.raises(LogError, match="holds no event"):
        partial([])
