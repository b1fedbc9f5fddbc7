import json
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.core.scoring.document import TrajectoryDocument
from rollart.observe.transcripts import TRANSCRIPTS_FILE, TranscriptLog
from rollart.shipping.samples import LARGE_BYTES, recorded_documents, sample_documents
from rollart.testing.samples import sample_trajectory


def test_the_samples_are_the_same_every_time_and_each_has_its_own_identity() -> None:
    assert sample_documents(30) == sample_documents(30)
    assert len({one.id for one in sample_documents(30)}) == 30
    assert [one.id for one in sample_documents(3)] == [one.id for one in sample_documents(30)][:3]


def test_the_samples_hold_what_functions_stumble_over() -> None:
    samples = sample_documents(7)
    turns = [turn for one in samples for turn in one.turns]
    assert any(not one.turns for one in samples)
    assert any(turn.tool_calls for turn in turns)
    assert any(turn.stop == "length" for turn in turns)
    assert any(not turn.observation.isascii() for turn in turns)
    assert any(len(one.turns) > 50 for one in samples)
    sizes = [len(json.dumps(one.to_json())) for one in samples]
    assert LARGE_BYTES * 0.9 < max(sizes) < LARGE_BYTES * 1.5


def test_the_samples_are_documents_as_they_travel() -> None:
    for one in sample_documents(14):
        assert TrajectoryDocument.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_what_a_run_recorded_can_be_sent(tmp_path: Path) -> None:
    log = TranscriptLog(tmp_path / TRANSCRIPTS_FILE, steps=10)
    trajectory = sample_trajectory()
    log.take(trajectory)
    log.close()
    (one,) = recorded_documents(tmp_path)
    assert one.id == str(trajectory.id)
    assert [turn.action for turn in one.turns] == [turn.action for turn in trajectory.turns]
    assert one.sampled_tokens == trajectory.sampled_tokens
    assert one.prompt_tokens + one.sampled_tokens == trajectory.tokens
    assert one.task.payload == {}


def test_a_directory_without_trajectories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a run's directory"):
        recorded_documents(tmp_path)
    (tmp_path / TRANSCRIPTS_FILE).write_text("")
    with pytest.raises(ConfigError, match="holds no finished trajectory"):
        recorded_documents(tmp_path)
