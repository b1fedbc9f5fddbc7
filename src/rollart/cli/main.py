"""The `rollart` command: words in, an exit code out.

Invariant: nothing is decided here but which function to call; bad input is one line on standard
error and exit code 2, before anything starts.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from rollart.core.errors import ConfigError, RollartError

if TYPE_CHECKING:
    from rollart.observe.summary import RunSummary

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = """exit codes:
  0    done
  1    the run ended with a failure; the reason is printed
  2    bad input; one line says what, and nothing was started
  130  interrupted by Ctrl-C and ended cleanly: weights and report are written"""


class Outcome(Protocol):
    """How a run ended."""

    @property
    def directory(self) -> Path: ...
    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def interrupted(self) -> bool: ...


class Jobs(Protocol):
    """What the commands call: `rollart.job`."""

    def check(self, path: Path, overrides: Sequence[str], /) -> object:
        """Everything that can be checked without starting; the plan, which prints itself."""
        ...

    def run(
        self, path: Path, overrides: Sequence[str], /, *, runtime: str, live: bool
    ) -> Outcome: ...


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None, *, jobs: Jobs | None = None) -> int:
    """Run the command; returns the exit code (see `EXIT_CODES`)."""
    try:
        chosen = make_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    try:
        code = _dispatch(chosen, jobs)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        # Somebody closed the pipe we print into (`| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _dispatch(chosen: argparse.Namespace, jobs: Jobs | None) -> int:
    if chosen.command == "report":
        return report(chosen.run, as_json=chosen.json, png=chosen.png)
    jobs = jobs or _jobs()
    if chosen.command == "check":
        return check(jobs, chosen.file, chosen.set)
    return train(jobs, chosen.file, chosen.set, chosen.runtime)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = _Parser(
        prog="rollart",
        description="Reinforcement-learning training of LLM agents, asynchronous under a "
        "staleness bound.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rollart {version('rollart')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text, more in (
        (
            "train",
            "train an agent as a job file says",
            "Progress is a live panel on a terminal and one line a step elsewhere. Ctrl-C ends "
            "the run\ncleanly: environments closed, weights and report written.",
        ),
        (
            "check",
            "check a job file without starting anything",
            "Reads the job file, resolves its import paths and looks at its model directory.",
        ),
    ):
        command = _command(commands, name, help_text, more)
        command.add_argument("file", type=Path, metavar="FILE.toml", help="the job file")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="set one key of the job, in TOML notation; may be given again: "
            "--set run.steps=20 --set domains.FrozenLake.temperature=0.8",
        )
        if name == "train":
            command.add_argument(
                "--runtime", choices=("local",), default="local", help="where it runs (local)"
            )
    command = _command(
        commands,
        "report",
        "say how a run went, also one that is still going",
        "Prints a result table and draws RUN/report.png; with --json it prints one JSON object\n"
        "and draws only where --png is given.",
    )
    command.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--png", type=Path, metavar="PATH", help="where to draw the picture")
    return parser


def _command(
    commands: "argparse._SubParsersAction[_Parser]", name: str, help_text: str, more: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}. {more}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def check(jobs: Jobs, file: Path, overrides: Sequence[str]) -> int:
    """`rollart check`: print the plan, or what is wrong."""
    try:
        plan = jobs.check(file, overrides)
    except ConfigError as error:
        return _fail(BAD_INPUT, str(error))
    print(plan)
    return OK


def train(jobs: Jobs, file: Path, overrides: Sequence[str], runtime: str) -> int:
    """`rollart train`: run the job, then print its result."""
    try:
        outcome = jobs.run(file, overrides, runtime=runtime, live=sys.stdout.isatty())
    except ConfigError as error:
        return _fail(BAD_INPUT, str(error))
    except RollartError as error:
        return _fail(FAILED, str(error))
    try:
        _print_result(outcome.directory)
    except RollartError as error:
        # The run is over and its end is told below; what cannot be shown must not hide it.
        _fail(FAILED, str(error))
    print(f"run directory: {outcome.directory}")
    if outcome.interrupted:
        return _fail(INTERRUPTED, f"interrupted: {outcome.reason}")
    return OK if outcome.ok else _fail(FAILED, outcome.reason)


def report(run: Path, *, as_json: bool, png: Path | None) -> int:
    """`rollart report`: the result table and picture, or the JSON object."""
    from rollart.observe.report import PLOT_FILE, ReportError, json_text, load_history, write_plot
    from rollart.observe.summary import summary_of

    try:
        history = load_history(run)
        summary = summary_of(history)
        if as_json:
            print(json_text(summary))
            if png is not None:
                write_plot(history, png)
            return OK
        _print_summary(summary)
    except RollartError as error:
        return _fail(BAD_INPUT, str(error))
    path = png or run / PLOT_FILE
    try:
        write_plot(history, path)
    except ReportError as error:
        # Asked for, it is an error; drawn along with the table, its absence is only told.
        return _fail(BAD_INPUT if png else OK, str(error))
    print(f"picture: {path}")
    return OK


def _print_result(run: Path) -> None:
    from rollart.observe.report import load_history
    from rollart.observe.summary import summary_of

    _print_summary(summary_of(load_history(run)))


def _print_summary(summary: "RunSummary") -> None:
    from rich.console import Console

    from rollart.observe.tables import result

    Console(highlight=False).print(result(summary))


def _jobs() -> Jobs:
    from rollart import job

    return job


def _fail(code: int, message: str) -> int:
    line = " ".join(message.split())
    print(f"rollart: {line}", file=sys.stderr)
    return code
