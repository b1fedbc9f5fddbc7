import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rollart.core.errors import FailureKind
from rollart.core.identity import Purpose
from rollart.core.tokens import LengthOnly, VersionRuns
from rollart.core.types import Piece, Segment, Status, Trajectory, Verdict
from rollart.observe.transcripts import (
    INTERVALS,
    TranscriptError,
    TranscriptLog,
    read_transcripts,
    transcript_of,
)
from rollart.testing.samples import sample_trajectory


def failed(number: int) -> Trajectory:
    return dataclasses.replace(
        sample_trajectory(group=number),
        status=Status.FAILED,
        failure=FailureKind.ENV_TIMEOUT,
        verdict=None,
    )


def log_of(
    path: Path,
    *trajectories: Trajectory,
    per_interval: int = 8,
    failed: int = 100,
    limit_bytes: int = 1 << 20,
) -> TranscriptLog:
    log = TranscriptLog(
        path / "t.jsonl",
        steps=100,
        per_interval=per_interval,
        failed=failed,
        limit_bytes=limit_bytes,
    )
    for trajectory in trajectories:
        log.take(trajectory)
    log.close()
    return log


def test_what_is_read_is_what_was_said(tmp_path: Path) -> None:
    one = sample_trajectory(score=0.5, version=3, prompt=5, sampled=4)
    log_of(tmp_path, one)
    (found,) = read_transcripts(tmp_path / "t.jsonl")
    assert found == transcript_of(one)
    assert found.trajectory == str(one.id)
    assert found.score == 0.5
    (segment,) = found.segments
    assert segment.runs == ((-1, 5), (3, 4))
    assert segment.ids == tuple(int(i) for i in one.segments[0].ids())
    assert found.versions == ((3, 4),)


def test_a_turn_has_the_reward_of_the_verdict_or_else_of_the_environment() -> None:
    one = sample_trajectory(score=0.5)
    environments = dataclasses.replace(
        one, turns=tuple(dataclasses.replace(turn, reward=0.25) for turn in one.turns)
    )
    assert [turn.reward for turn in transcript_of(environments).turns] == [0.25]
    verdict = Verdict(score=0.5, turns=(0.5,))
    judged = dataclasses.replace(environments, verdict=verdict)
    assert [turn.reward for turn in transcript_of(judged).turns] == [0.5]


def test_a_turn_of_two_versions_keeps_which_tokens_are_whose(tmp_path: Path) -> None:
    runs = VersionRuns(((2, 3), (4, 1)))
    pieces = (
        Piece(ids=np.arange(2, dtype=np.int32)),
        Piece(ids=np.arange(4, dtype=np.int32), logprobs=np.zeros(4, np.float32), versions=runs),
    )
    one = dataclasses.replace(sample_trajectory(), segments=(Segment(pieces=pieces),))
    log_of(tmp_path, one)
    (found,) = read_transcripts(tmp_path / "t.jsonl")
    assert found.segments[0].runs == ((-1, 2), (2, 3), (4, 1))
    assert found.versions == ((2, 3), (4, 1))


def test_tokens_without_content_are_kept_as_lengths(tmp_path: Path) -> None:
    pieces = (
        Piece(ids=LengthOnly(7)),
        Piece(ids=LengthOnly(2), logprobs=LengthOnly(2), versions=VersionRuns(((0, 2),))),
    )
    log_of(tmp_path, dataclasses.replace(sample_trajectory(), segments=(Segment(pieces=pieces),)))
    (found,) = read_transcripts(tmp_path / "t.jsonl")
    assert (found.segments[0].ids, found.segments[0].runs) == (None, ((-1, 7), (0, 2)))


def test_some_of_each_domain_and_part_of_the_run_are_kept(tmp_path: Path) -> None:
    many = [
        sample_trajectory(domain=domain, group=group, version=version)
        for version in range(100)
        for domain in ("lake", "chess")
        for group in range(30)
    ]
    log = log_of(tmp_path, *many, per_interval=3)
    found = list(read_transcripts(tmp_path / "t.jsonl"))
    assert len(found) == log.kept == 2 * INTERVALS * 3
    assert set(Counter((t.domain, (t.start_version or 0) // 5) for t in found).values()) == {3}


def test_evaluation_takes_no_place_from_training(tmp_path: Path) -> None:
    train = [sample_trajectory(group=g) for g in range(3)]
    evaluation = [
        dataclasses.replace(t, id=dataclasses.replace(t.id, purpose=Purpose.EVAL)) for t in train
    ]
    log_of(tmp_path, *evaluation, *train, per_interval=2)
    found = Counter(t.purpose for t in read_transcripts(tmp_path / "t.jsonl"))
    assert found == {"eval": 2, "train": 2}


def test_failed_ones_are_kept_up_to_a_number_of_their_own(tmp_path: Path) -> None:
    fine = [sample_trajectory(group=g) for g in range(50)]
    log_of(tmp_path, *fine, *(failed(g) for g in range(50, 90)), per_interval=1, failed=7)
    found = Counter(t.failure for t in read_transcripts(tmp_path / "t.jsonl"))
    assert found == {"": 1, "env_timeout": 7}


def test_the_file_never_outgrows_its_limit(tmp_path: Path) -> None:
    many = [sample_trajectory(group=g, version=g, sampled=50) for g in range(100)]
    log_of(tmp_path, *many, limit_bytes=5000)
    size = (tmp_path / "t.jsonl").stat().st_size
    assert 4000 < size <= 5000
    assert len(list(read_transcripts(tmp_path / "t.jsonl"))) > 2


def test_a_restarted_run_appends_within_the_same_limit(tmp_path: Path) -> None:
    for start in (0, 100):
        log_of(
            tmp_path, *(sample_trajectory(group=start + g) for g in range(100)), limit_bytes=4000
        )
    found = [t.group for t in read_transcripts(tmp_path / "t.jsonl")]
    assert found
    assert (tmp_path / "t.jsonl").stat().st_size <= 4000


def test_what_cannot_be_written_or_encoded_is_told_once_and_never_raised(tmp_path: Path) -> None:
    said: list[str] = []
    log = TranscriptLog(tmp_path / "none" / "t.jsonl", steps=10, warn=said.append)
    for group in range(5):
        log.take(sample_trajectory(group=group))
    assert len(said) == 1
    assert "the run goes on" in said[0]
    log = TranscriptLog(tmp_path / "t.jsonl", steps=10, warn=said.append)
    strange = dataclasses.replace(sample_trajectory(), detail="\ud800 no Unicode")
    log.take(strange)
    log.close()
    log.take(strange)
    assert [t.detail for t in read_transcripts(tmp_path / "t.jsonl")] == ["? no Unicode"]
    assert len(said) == 1


def test_a_torn_last_line_is_passed_over_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    log_of(tmp_path, *(sample_trajectory(group=g) for g in range(3)))
    path = tmp_path / "t.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert len(list(read_transcripts(path))) == 2
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(TranscriptError, match="line 1 is damaged"):
        list(read_transcripts(path))
