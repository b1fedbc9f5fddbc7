"""The event log: one JSON line an event, the one truth on disk.

Invariant: a line is written whole or not at all, so every line but a torn last one decodes; the
sequence numbers show any loss. Appending never raises and waits for nothing but the page cache.
Numbers that are not finite are written as null and read back as NaN.
"""

import dataclasses
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import msgspec

from rollart.core.errors import RollartError
from rollart.core.events import (
    SCHEMA,
    EngineDown,
    Evaluated,
    Event,
    LedgerClosed,
    RunEnded,
    RunStarted,
    Stamped,
    StepTrained,
    Warned,
)

EVENTS_FILE = "events.jsonl"
FLUSH_S = 1.0
FLUSH_BYTES = 1 << 16
_WRITTEN_AT_ONCE = frozenset(
    {RunStarted, StepTrained, Evaluated, EngineDown, LedgerClosed, Warned, RunEnded}
)
"""Rare events that somebody who looks into a running or a killed run asks for first."""

Warn = Callable[[str], None]

_log = logging.getLogger(__name__)


class LogError(RollartError):
    """An event log that cannot be read: the message says where and why."""


class _Line(msgspec.Struct):
    """One line. The event's type stands first, so that a reader knows what follows."""

    type: str
    time: float
    seq: int
    incarnation: int
    event: Any


class _RawLine(msgspec.Struct):
    type: str
    time: float
    seq: int
    incarnation: int
    event: msgspec.Raw


class _Schema(msgspec.Struct):
    schema: int


_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(_RawLine)
_schema_decoder = msgspec.json.Decoder(_Schema)
_types: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in _types.items()}
_HEAD = re.compile(rb'\{"type":"(\w+)","time":[^,]+,"seq":(\d+),')
_KNOWN = {name.encode(): name for name in _types}


class EventLog:
    """Appends events to a new file; see the module for what it promises.

    Events reach the file after at most a second of event time, at once where they are rare, and
    on `close`. When a write fails (a full disk), what was to be written is counted in `lost`, one
    warning is given, and the next write tries again behind the last whole line.

    Raises:
        FileExistsError: `path` exists; a log is never written over.
    """

    def __init__(self, path: Path, *, warn: Warn = _log.warning) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._path = path
        self._warn = warn
        self._buffer = bytearray()
        self._buffered = 0
        self._size = 0
        self._flushed_at = -math.inf
        self._warned = False
        self._closed = False
        self.lost = 0

    def append(self, stamped: Stamped) -> None:
        """Take one event. Never raises."""
        if self._closed:
            self.lost += 1
            return
        try:
            _encode(stamped, self._buffer)
        except Exception as error:
            # The boundary: whatever an event holds, the run that emits it goes on.
            self._lose(1, f"cannot encode {type(stamped.event).__name__}: {error}")
            return
        self._buffered += 1
        if (
            stamped.time - self._flushed_at >= FLUSH_S
            or len(self._buffer) >= FLUSH_BYTES
            or type(stamped.event) in _WRITTEN_AT_ONCE
        ):
            self._flushed_at = stamped.time
            self.flush()

    def flush(self) -> None:
        """Hand everything taken so far to the operating system. Never raises."""
        if not self._buffer or self._closed:
            return
        data, count = bytes(self._buffer), self._buffered
        self._buffer.clear()
        self._buffered = 0
        try:
            write_whole(self._file, data, self._size)
        except OSError as error:
            self._lose(count, f"cannot write: {error}")
            return
        self._size += len(data)

    def close(self) -> None:
        """Write what is left and close. Idempotent; never raises."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        try:
            os.close(self._file)
        except OSError as error:
            self._lose(0, f"cannot close: {error}")

    def _lose(self, events: int, reason: str) -> None:
        self.lost += events
        if self._warned:
            return
        self._warned = True
        self._warn(f"event log {self._path}: {reason}; the run goes on and the log has a gap")


def write_whole(file: int, data: bytes, at: int) -> None:
    """Write all of `data` at offset `at`, or leave the file as long as it was."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:], at + written)
    except OSError:
        if written:
            os.ftruncate(file, at)
        raise


def _encode(stamped: Stamped, buffer: bytearray) -> None:
    """Append the event's line to `buffer`; leaves it as it was when that raises."""
    size, event = len(buffer), stamped.event
    kind = type(event).__name__
    line = _Line(kind, stamped.time, stamped.seq, stamped.incarnation, event)
    try:
        try:
            _encoder.encode_into(line, buffer, -1)
        except (TypeError, ValueError):
            # A numpy number, or text that is not Unicode (a traceback of an environment).
            del buffer[size:]
            line.event = _plain(event)
            _encoder.encode_into(line, buffer, -1)
    except BaseException:
        del buffer[size:]
        raise
    buffer += b"\n"


def _plain(value: object) -> object:
    """`value` made of what JSON knows; text that is not Unicode has its bad parts replaced."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple | list):
        return [_plain(part) for part in cast("Iterable[object]", value)]
    if callable(item := getattr(value, "item", None)):
        return item()
    return value


def read_events(
    path: Path, *, only: Collection[type[Event]] = (), whole: "Wholeness | None" = None
) -> Iterator[Stamped]:
    """The events of a log in order; a torn last line, as a killed run leaves it, is passed over.

    Args:
        only: lines that begin and end as one of another known type are skipped without a look at
            what is between.
        whole: told of every line, skipped or not.

    Raises:
        LogError: the log was written by a newer version, or a line inside it does not decode.
        OSError: the file cannot be read.
    """
    wanted = frozenset(kind.__name__ for kind in only) or _types.keys()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if (skipped := _unwanted(line, wanted)) is not None:
                if whole is not None:
                    whole.take(*skipped)
                continue
            try:
                stamped = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not line.endswith(b"\n"):
                    return
                raise LogError(f"{path}: line {number} is damaged: {error}") from error
            except LogError as error:
                raise LogError(f"{path}: line {number}: {error}") from error
            if whole is not None:
                whole.take(type(stamped.event).__name__, stamped.seq)
            yield stamped


def read_run(
    path: Path, *, only: Collection[type[Event]] = (), whole: "Wholeness | None" = None
) -> Iterator[Stamped]:
    """The events of the log of a run, as `read_events`; one that does not begin as a run is none.

    Raises:
        LogError: as `read_events`, or the first line is not of `RunStarted`.
        OSError: the file cannot be read.
    """
    whole = whole or Wholeness()
    for stamped in read_events(path, only=only, whole=whole):
        whole.require_beginning(path)
        yield stamped
    whole.require_beginning(path)


def _unwanted(line: bytes, wanted: Collection[str]) -> tuple[str, int] | None:
    """Type and number of a line that is of another known type; None for what is to be decoded."""
    head = _HEAD.match(line)
    if head is None or not line.endswith(b"}\n"):
        return None
    name = _KNOWN.get(head[1])
    return None if name is None or name in wanted else (name, int(head[2]))


def _decode(line: bytes) -> Stamped:
    raw = _line_decoder.decode(line)
    if raw.type == RunStarted.__name__:
        schema = _schema_decoder.decode(raw.event).schema
        if schema > SCHEMA:
            raise LogError(
                f"the log has event schema {schema}, and this version of RollArt reads up to "
                f"{SCHEMA}; use a newer RollArt"
            )
    kind = _types.get(raw.type)
    if kind is None:
        raise LogError(
            f"unknown event type {raw.type!r}; the log was written by a newer RollArt, use that one"
        )
    try:
        event = _decoders[raw.type].decode(raw.event)
    except msgspec.ValidationError:
        table = cast("dict[str, Any]", msgspec.json.decode(raw.event))
        event = msgspec.convert(_nan_for_null(table, kind), kind)
    return Stamped(
        time=raw.time, seq=raw.seq, incarnation=raw.incarnation, event=cast(Event, event)
    )


def _nan_for_null(table: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """`table` with NaN where `kind` wants a float and the log, which has no NaN, says null."""
    hints = get_type_hints(kind)
    filled = dict(table)
    for name, value in table.items():
        hint = hints.get(name)
        if value is None and hint is float:
            filled[name] = math.nan
        elif isinstance(value, dict) and isinstance(hint, type) and dataclasses.is_dataclass(hint):
            filled[name] = _nan_for_null(cast("dict[str, Any]", value), hint)
    return filled


class SequenceCheck:
    """Finds events that are missing, repeated or out of order, one number at a time."""

    def __init__(self) -> None:
        self._expected = 0
        self.faults: list[tuple[int, int]] = []
        """(expected, found) wherever they differ."""

    def take(self, seq: int) -> None:
        if seq != self._expected:
            self.faults.append((self._expected, seq))
        self._expected = seq + 1


class Wholeness:
    """Whether a log is that of a whole run, told line by line."""

    def __init__(self) -> None:
        self._sequence = SequenceCheck()
        self._first: str | None = None
        self._ended = False

    def take(self, kind: str, seq: int) -> None:
        """The next line: its event's type and number."""
        self._sequence.take(seq)
        self._first = self._first or kind
        self._ended = self._ended or kind == RunEnded.__name__

    def require_beginning(self, path: Path) -> None:
        """Raises `LogError` where the log does not begin as that of a run."""
        if self._first is None:
            raise LogError(f"{path}: holds no event; give a run that has started")
        if self._first != RunStarted.__name__:
            raise LogError(
                f"{path}: begins with {self._first}, not with {RunStarted.__name__}, so it is no "
                "run's log or has lost its beginning; give another run"
            )

    @property
    def partial(self) -> str | None:
        """Why the log is not that of a whole run; None if it is."""
        return why_partial(
            self._sequence.faults, begun=self._first == RunStarted.__name__, ended=self._ended
        )


def why_partial(faults: Sequence[tuple[int, int]], *, begun: bool, ended: bool) -> str | None:
    """Why a log is not that of a whole run, from its gaps and ends; None if it is."""
    if faults:
        expected, found = faults[0]
        return (
            f"the log has {len(faults)} gaps; the first: event {found} stands where {expected} "
            "should"
        )
    if not begun:
        return "the log has no beginning"
    if not ended:
        return "the log has no end: the run is still going, or it was killed"
    return None
