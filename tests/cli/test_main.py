import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollart.cli.main import main
from rollart.core.errors import ConfigError, TrainerLost
from rollart.core.events import SCHEMA, Evaluated, Event, RunEnded, RunStarted, Stamped, WorkerBound
from rollart.observe.eventlog import EventLog
from rollart.observe.summary import RunSummary

EVENTS: list[Event] = [
    RunStarted(
        schema=SCHEMA,
        run="tiny",
        runtime="local",
        protocol="rollart",
        alpha=1,
        seed=0,
        steps=1,
        batch_groups=1,
        group_size=2,
        domains=("FrozenLake",),
        config="",
    ),
    Evaluated(
        domain="FrozenLake",
        when="after",
        mode="sampled",
        version=1,
        tasks=256,
        scored=256,
        success=0.83,
        score=0.83,
        seconds=1.0,
    ),
    RunEnded(reason="all steps are done", ok=True, steps=1, seconds=9.0),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return stored(tmp_path / "run", EVENTS)


COMMANDS = (
    "init", "train", "check", "eval", "report", "show", "pools", "replay", "timeline", "compare",
    "serve",
)  # fmt: skip


def stored(directory: Path, events: list[Event]) -> Path:
    directory.mkdir()
    log = EventLog(directory / "events.jsonl")
    for seq, event in enumerate(events):
        log.append(Stamped(time=float(seq), seq=seq, incarnation=0, event=event))
    log.close()
    return directory


@dataclass(frozen=True)
class Ended:
    directory: Path
    ok: bool = True
    reason: str = "all steps are done"
    interrupted: bool = False
    summary: RunSummary | None = None


@dataclass
class Jobs:
    """Stands for the real jobs: answers as it is told, and keeps what it was asked."""

    ended: Ended | None = None
    error: BaseException | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    def check(
        self, path: Path, overrides: Sequence[str], /, *, runtime: str, world: Path | None
    ) -> object:
        self.asked.append(("check", path, tuple(overrides), runtime, world))
        if self.error is not None:
            raise self.error
        return "a plan"

    def run(
        self,
        path: Path,
        overrides: Sequence[str],
        /,
        *,
        runtime: str,
        world: Path | None,
        live: bool,
    ) -> Ended:
        self.asked.append(("run", path, tuple(overrides), runtime, world, live))
        if self.error is not None:
            raise self.error
        assert self.ended is not None
        return self.ended

    def evaluate(
        self,
        model: Path,
        path: Path,
        overrides: Sequence[str],
        /,
        *,
        tasks: int | None,
        warn: Callable[[str], None],
    ) -> "Measured":
        self.asked.append(("evaluate", model, path, tuple(overrides), tasks))
        if self.error is not None:
            raise self.error
        warn("an engine was lost:\nkilled")
        return Measured()


class Measured:
    def __str__(self) -> str:
        return "FrozenLake 0.83"

    def as_json(self) -> str:
        return '{"FrozenLake": 0.83}'


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on standard error: exactly one line."""
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said.count("\n") == 1
    return said


# -- train and check ------------------------------------------------------------------------


def test_train_hands_the_file_and_overrides_on_and_prints_the_result(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(ended=Ended(run))
    code = main(
        ["train", "job.toml", "--set", "run.steps=2", "--set", "rollout.kv=keep"], jobs=jobs
    )
    assert code == 0
    assert jobs.asked == [
        ("run", Path("job.toml"), ("run.steps=2", "rollout.kv=keep"), "local", None, False)
    ]
    out = capsys.readouterr().out
    assert "0.830" in out
    assert f"run directory: {run}" in out


def test_check_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs()
    assert main(["check", "job.toml", "--set", "run.seed=1"], jobs=jobs) == 0
    assert jobs.asked == [("check", Path("job.toml"), ("run.seed=1",), "local", None)]
    assert capsys.readouterr().out == "a plan\n"


def test_a_simulation_takes_its_world_and_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Jobs()
    words = ["--runtime", "sim", "--world", "world.toml", "--seed", "7"]
    assert main(["check", "job.toml", "--set", "run.steps=2", *words], jobs=jobs) == 0
    settings = ("run.steps=2", "run.seed=7")
    assert jobs.asked == [("check", Path("job.toml"), settings, "sim", Path("world.toml"))]
    capsys.readouterr()
    assert main(["check", "job.toml", "--seed", "-1"], jobs=jobs) == 2
    assert "--seed" in one_line(capsys)


def test_eval_measures_a_model_and_prints_a_table_or_an_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = Jobs()
    words = ["eval", "run/weights", "job.toml", "--set", "run.seed=1", "--tasks", "32"]
    assert main(words, jobs=jobs) == 0
    said = capsys.readouterr()
    assert said.out == "FrozenLake 0.83\n"
    assert said.err == "rollart: warning: an engine was lost: killed\n"
    assert main(["eval", "run/weights", "job.toml", "--json"], jobs=jobs) == 0
    assert capsys.readouterr().out == '{"FrozenLake": 0.83}\n'
    assert jobs.asked == [
        ("evaluate", Path("run/weights"), Path("job.toml"), ("run.seed=1",), 32),
        ("evaluate", Path("run/weights"), Path("job.toml"), (), None),
    ]


def test_an_evaluation_that_fails_exits_2_for_bad_input_and_1_for_a_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["eval", "model", "job.toml"]
    assert main(words, jobs=Jobs(error=ConfigError("model.path: no such directory"))) == 2
    assert "no such directory" in one_line(capsys)
    assert main(words, jobs=Jobs(error=TrainerLost("the engine died"))) == 1
    assert "the engine died" in one_line(capsys)


@pytest.mark.parametrize("command", ["train", "check"])
def test_bad_input_is_one_line_and_exit_code_2(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(error=ConfigError("run.steps = 0: must be greater than 0;\n use 100"))
    assert main([command, "job.toml"], jobs=jobs) == 2
    assert one_line(capsys) == "rollart: run.steps = 0: must be greater than 0; use 100\n"


def test_a_run_that_failed_exits_1_with_the_reason(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(ended=Ended(run, ok=False, reason="no engine is left"))
    assert main(["train", "job.toml"], jobs=jobs) == 1
    assert "no engine is left" in one_line(capsys)


def test_an_error_of_the_run_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "job.toml"], jobs=Jobs(error=TrainerLost("the trainer died"))) == 1
    assert "the trainer died" in one_line(capsys)


def test_an_interrupted_run_exits_130_with_its_result_printed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(ended=Ended(run, reason="Ctrl-C", interrupted=True))
    assert main(["train", "job.toml"], jobs=jobs) == 130
    captured = capsys.readouterr()
    assert "interrupted" in captured.err
    assert "0.830" in captured.out


def test_ctrl_c_outside_a_run_exits_130_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "job.toml"], jobs=Jobs(error=KeyboardInterrupt())) == 130
    assert one_line(capsys) == "rollart: interrupted\n"


def test_a_run_whose_log_is_gone_still_tells_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(ended=Ended(tmp_path / "gone", ok=False, reason="disk full"))
    assert main(["train", "job.toml"], jobs=jobs) == 1
    assert "disk full" in capsys.readouterr().err


# -- report ---------------------------------------------------------------------------------


def test_report_prints_the_table_and_draws_into_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run)]) == 0
    out = capsys.readouterr().out
    assert "0.830" in out
    assert "report.png" in out
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")


def test_report_as_json_is_one_object_and_draws_only_where_it_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["success_after"] == {"FrozenLake": {"sampled": 0.83, "greedy": None}}
    assert not (run / "report.png").exists()
    assert main(["report", str(run), "--json", "--png", str(tmp_path / "x.png")]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == found
    assert (tmp_path / "x.png").exists()


def test_report_of_what_is_no_run_is_one_line_and_exit_code_2(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    stored(tmp_path / "young", [])
    for path, says in (
        (tmp_path, "holds no events.jsonl"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "young", "no event yet"),
    ):
        assert main(["report", str(path)]) == 2
        assert says in one_line(capsys)
    (run / "events.jsonl").write_text("no json\n{}\n")
    assert main(["report", str(run), "--json"]) == 2
    assert "line 1 is damaged" in one_line(capsys)


def test_report_of_a_run_still_going_is_partial_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path / "run", EVENTS[:-1])
    with (run / "events.jsonl").open("ab") as log:
        log.write(b'{"type":"Commi')
    assert main(["report", str(run), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert "no end" in found["partial"]
    assert found["ended"] is None
    assert main(["report", str(run)]) == 0
    assert "partial report" in capsys.readouterr().out


def test_a_picture_that_cannot_be_written_is_an_error_only_if_it_was_asked_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), "--png", str(tmp_path / "none" / "x.png")]) == 2
    assert "cannot be written" in one_line(capsys)
    (run / "report.png").mkdir()
    assert main(["report", str(run)]) == 0
    assert "cannot be written" in one_line(capsys)


# -- pools and replay -----------------------------------------------------------------------


def test_pools_of_a_run_are_the_bindings_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = WorkerBound(
        worker="engine-0",
        role="actor_gen",
        pool="H20",
        hardware="H20",
        slots=(3,),
        wanted="H800",
        reason="H800 is full",
    )
    run = stored(tmp_path / "run", [*EVENTS[:1], bound, *EVENTS[1:]])
    assert main(["pools", str(run)]) == 0
    assert "H800 is full" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pools", "replay"])
def test_what_is_no_run_is_refused_by_every_command_that_wants_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    one_line(capsys)


# -- words on the command line --------------------------------------------------------------


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], *([command, "-h"] for command in COMMANDS)):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "exit codes:" in out
        for code in ("0    ", "1    ", "2    ", "130  "):
            assert f"\n  {code}" in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rollart 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["train"],
        ["check", "a.toml", "b.toml"],
        ["train", "a.toml", "--set"],
        ["train", "a.toml", "--runtime", "moon"],
        ["report", "run", "--xml"],
        ["eval", "model"],
        ["eval", "model", "a.toml", "--tasks", "0"],
        ["show", "run", "--limit", "many"],
        ["replay"],
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, jobs=Jobs()) == 2
    assert "--help" in one_line(capsys)


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules that the command loads, in a process of its own."""
    program = (
        "import sys\n"
        "from rollart.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print('\\nLOADED', *{name.split('.')[0] for name in sys.modules})\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_report_and_help_load_no_heavy_library(run: Path) -> None:
    heavy = {"torch", "transformers", "gymnasium", "ray"}
    assert not loaded_by("report", str(run)) & heavy
    assert not loaded_by("report", str(run), "--json") & (heavy | {"matplotlib", "rich"})
    assert not loaded_by("check", "--help") & (heavy | {"matplotlib", "rich", "pydantic"})


def test_a_reader_that_closes_the_pipe_causes_no_traceback(run: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m rollart.cli.main report {run} --json | head -c 1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
