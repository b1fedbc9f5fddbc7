import dataclasses
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.events import Disposed, Stamped
from rollart.core.types import Disposition, StopReason, Trajectory, Turn
from rollart.observe.eventlog import EventLog
from rollart.observe.transcripts import TranscriptLog
from rollart.testing.samples import sample_trajectory


def spoken(**more: object) -> Trajectory:
    one = sample_trajectory(prompt=2, sampled=2, **more)  # pyright: ignore[reportArgumentType]
    turn = Turn(
        segment=0, start=2, end=4, observation="where?", action="left", stop=StopReason.STOP
    )
    return dataclasses.replace(one, turns=(turn,))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trajectories = [
        spoken(domain=domain, group=group) for domain in ("lake", "chess") for group in range(4)
    ]
    transcripts = TranscriptLog(tmp_path / "transcripts.jsonl", steps=10)
    log = EventLog(tmp_path / "events.jsonl")
    for seq, one in enumerate(trajectories):
        transcripts.take(one)
        event = Disposed(
            trajectory=str(one.id),
            domain=one.id.domain,
            group=one.id.group,
            disposition=Disposition.INCOMPLETE_GROUP,
            reason="",
            start_version=0,
            elapsed_s=1.0,
            censored=False,
        )
        log.append(Stamped(time=0.0, seq=seq, incarnation=0, event=event))
    transcripts.close()
    log.close()
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_show_lists_what_is_recorded(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr().out
    assert "lake/task-0/g0.0.0" in said
    assert "chess/task-0/g3.0.0" in said
    assert "incomplete group" in said
    assert "8 of 8 recorded" in said


def test_the_list_is_cut_to_a_domain_and_to_the_last(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run), "--domain", "lake", "--limit", "2"]) == 0
    said = capsys.readouterr().out
    assert "chess" not in said
    assert "g1.0.0" not in said
    assert "g3.0.0" in said
    assert "2 of 4 recorded" in said


def test_one_trajectory_is_shown_whole_by_a_part_of_its_id(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run), "--trajectory", "lake/task-0/g2"]) == 0
    said = capsys.readouterr().out
    for part in ("became: incomplete group", "where?", "left  [v0: 2 tokens]", "no tokenizer.json"):
        assert part in said


def test_tokens_are_shown_with_the_tokenizer_of_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({f"w{n}": n for n in range(50)}, unk_token="w0")
    (run / "weights").mkdir()
    tokenizers.Tokenizer(model).save(str(run / "weights" / "tokenizer.json"))
    assert main(["show", str(run), "--trajectory", "lake/task-0/g2"]) == 0
    said = capsys.readouterr().out
    assert "[v0]w" in said
    assert "in words" not in said
    (run / "weights" / "tokenizer.json").write_text("{}")
    assert main(["show", str(run), "--trajectory", "lake/task-0/g2"]) == 0
    assert "cannot be read" in capsys.readouterr().out


def test_a_run_without_an_event_log_is_shown_all_the_same(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "events.jsonl").unlink()
    assert main(["show", str(run), "--trajectory", "chess/task-0/g1"]) == 0
    assert "became: not known" in capsys.readouterr().out


def test_what_cannot_be_shown_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no directory" in refused(capsys, str(run / "none"))
    (tmp_path / "empty").mkdir()
    assert "holds no transcripts.jsonl" in refused(capsys, str(tmp_path / "empty"))
    assert "lists them" in refused(capsys, str(run), "--trajectory", "nobody")
    assert "say more of it" in refused(capsys, str(run), "--trajectory", "lake")
    assert "lake, chess" in refused(capsys, str(run), "--domain", "poker")
    (run / "transcripts.jsonl").write_text("no json\n")
    assert "line 1 is damaged" in refused(capsys, str(run))
