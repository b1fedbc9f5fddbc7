"""What trajectories said: a bounded sample of them on disk, for people to read.

Invariant: `take` never raises, decides at once whether it keeps a trajectory, and waits for nothing
but the page cache; a line is whole or absent. Memory holds counts only. The disk is bounded by
`LIMIT_BYTES`, after which nothing more is kept, and the first of the finished are those that are
quick, so the sample is for reading and no statistic.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollart.core.errors import RollartError
from rollart.core.tokens import LengthOnly
from rollart.core.types import Piece, Segment, Status, ToolCall, Trajectory, Turn
from rollart.observe.eventlog import Warn, write_whole

TRANSCRIPTS_FILE = "transcripts.jsonl"
INTERVALS = 20
PER_INTERVAL = 8
FAILED_KEPT = 100
LIMIT_BYTES = 64 << 20

_log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


class TranscriptError(RollartError):
    """Transcripts that cannot be read: the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A segment as runs of (version, tokens), -1 for what was observed and not sampled.

    `ids` is None where a modelled engine gave lengths without content.
    """

    runs: tuple[tuple[int, int], ...]
    ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidTurn:
    """A turn in words; `start:end` is its sampled span in segment number `segment`.

    `reward` is what the verdict gave for this turn, or else the environment.
    """

    segment: int
    start: int
    end: int
    observation: str
    action: str
    tool_calls: tuple[ToolCall, ...]
    stop: str
    engine: str
    reward: float | None
    env_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A trajectory as it is recorded. `elapsed_s` is seconds, `start_version` a version."""

    trajectory: str
    purpose: str
    domain: str
    task: str
    group: int
    member: int
    attempt: int
    status: str
    failure: str
    detail: str
    score: float | None
    components: tuple[tuple[str, float], ...]
    reason: str
    metrics: tuple[tuple[str, float], ...]
    start_version: int | None
    elapsed_s: float
    turns: tuple[SaidTurn, ...]
    segments: tuple[Tokens, ...]

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """(version, sampled tokens), oldest first."""
        counts: Counter[int] = Counter()
        for segment in self.segments:
            for version, count in segment.runs:
                counts[version] += count
        return tuple(sorted((v, n) for v, n in counts.items() if v >= 0))


class TranscriptLog:
    """Keeps some of a run's trajectories: give every finished one to `take`.

    Of each domain, training apart from evaluation, the first `per_interval` that began in each of
    `INTERVALS` equal parts of the run's steps, and `failed` failed or invalid ones. The file is
    made with the first of them; a restarted run appends to it.
    """

    def __init__(
        self,
        path: Path,
        *,
        steps: int,
        per_interval: int = PER_INTERVAL,
        failed: int = FAILED_KEPT,
        limit_bytes: int = LIMIT_BYTES,
        warn: Warn = _log.warning,
    ) -> None:
        self._path = path
        self._steps_each = max(1, -(-steps // INTERVALS))
        self._per_interval = per_interval
        self._failed = failed
        self._limit = limit_bytes
        self._warn = warn
        self._file: int | None = None
        self._size = 0
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._warned = False
        self._closed = False
        self.kept = 0

    def take(self, trajectory: Trajectory) -> None:
        """Keep it or not. Never raises."""
        try:
            self._take(trajectory)
        except Exception as error:
            # The boundary: a run must not end because somebody might have read about it.
            if not self._warned:
                self._warned = True
                self._warn(
                    f"transcripts {self._path}: {type(error).__name__}: {error}; the run goes on, "
                    "and some trajectories are not recorded"
                )

    def close(self) -> None:
        """Idempotent; what comes later is not kept."""
        self._closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, trajectory: Trajectory) -> None:
        if self._closed or self._size >= self._limit or not self._has_place(trajectory):
            return
        line = _encoder.encode(transcript_of(trajectory)) + b"\n"
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._size = os.lseek(self._file, 0, os.SEEK_END)
        if self._size + len(line) > self._limit:
            self._size = self._limit
            return
        write_whole(self._file, line, self._size)
        self._size += len(line)
        self.kept += 1

    def _has_place(self, trajectory: Trajectory) -> bool:
        if trajectory.status in (Status.FAILED, Status.INVALID):
            key, places = (trajectory.id.domain, "failed", 0), self._failed
        else:
            interval = (trajectory.start_version or 0) // self._steps_each
            key = (trajectory.id.domain, trajectory.id.purpose.value, interval)
            places = self._per_interval
        if self._counts[key] >= places:
            return False
        self._counts[key] += 1
        return True


def transcript_of(trajectory: Trajectory) -> Transcript:
    """The record of a trajectory."""
    who, verdict = trajectory.id, trajectory.verdict
    return Transcript(
        trajectory=str(who),
        purpose=who.purpose.value,
        domain=who.domain,
        task=who.task,
        group=who.group,
        member=who.member,
        attempt=who.attempt,
        status=trajectory.status.value,
        failure=trajectory.failure.value if trajectory.failure is not None else "",
        detail=_text(trajectory.detail),
        score=trajectory.score,
        components=verdict.components if verdict is not None else (),
        reason=_text(verdict.reason) if verdict is not None else "",
        metrics=trajectory.metrics,
        start_version=trajectory.start_version,
        elapsed_s=trajectory.ended_at - trajectory.started_at,
        turns=tuple(map(_turn, trajectory.turns, _rewards(trajectory))),
        segments=tuple(_tokens(segment) for segment in trajectory.segments),
    )


def _rewards(trajectory: Trajectory) -> Sequence[float | None]:
    """Of each turn: what the verdict says, or else the environment."""
    verdict = trajectory.verdict
    if verdict is not None and len(verdict.turns) == len(trajectory.turns):
        return verdict.turns
    return [turn.reward for turn in trajectory.turns]


def _turn(turn: Turn, reward: float | None) -> SaidTurn:
    return SaidTurn(
        segment=turn.segment,
        start=turn.start,
        end=turn.end,
        observation=_text(turn.observation),
        action=_text(turn.action),
        tool_calls=tuple(
            ToolCall(id=_text(call.id), name=_text(call.name), arguments=_text(call.arguments))
            for call in turn.tool_calls
        ),
        stop=turn.stop.value,
        engine=turn.engine,
        reward=reward,
        env_s=turn.env_s,
    )


def _text(text: str) -> str:
    """Environments may say what is not Unicode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _tokens(segment: Segment) -> Tokens:
    runs = [run for piece in segment.pieces for run in _runs(piece) if run[1]]
    known = not any(isinstance(p.ids, LengthOnly) and len(p.ids) for p in segment.pieces)
    return Tokens(runs=tuple(runs), ids=tuple(segment.ids().tolist()) if known else None)


def _runs(piece: Piece) -> tuple[tuple[int, int], ...]:
    return piece.versions.runs if piece.sampled else ((-1, len(piece.ids)),)


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """The recorded trajectories in order; a torn last line is passed over.

    Raises:
        TranscriptError: a line inside does not decode.
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(Transcript)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not line.endswith(b"\n"):
                    return
                raise TranscriptError(f"{path}: line {number} is damaged: {error}") from error
            yield found
