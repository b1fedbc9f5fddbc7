"""The command line: which words there are, and what each wants.

Invariant: nothing is decided or loaded here; a wrong word is one line and the exit code for it.
"""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from rollart.cli import rewards
from rollart.cli.common import BAD_INPUT, EXIT_CODES
from rollart.cli.values import command_of, number_from_0, port, positive


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


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
    _add_job_commands(commands)
    _add_run_commands(commands)
    _add_chaos(commands)
    _add_paper(commands)
    rewards.add(commands)
    _add_serve(commands)
    return parser


def _add_job_commands(commands: "argparse._SubParsersAction[_Parser]") -> None:
    init = command_of(
        commands,
        "init",
        "write a starter job file",
        "Every key that is often set stands there with its default and what it does. A file that\n"
        "exists is never written over.",
    )
    init.add_argument(
        "file", type=Path, nargs="?", default=Path("job.toml"), metavar="FILE", help="job.toml"
    )
    init.add_argument(
        "--model", type=Path, metavar="DIRECTORY", help="a Hugging Face model directory"
    )
    train = command_of(
        commands,
        "train",
        "train an agent as a job file says",
        "Progress is a live panel on a terminal and one line a step elsewhere. Ctrl-C ends "
        "the run\ncleanly: environments closed, weights and report written.",
    )
    _take_job(train)
    _take_runtime(train)
    check = command_of(
        commands,
        "check",
        "check a job file without starting anything",
        "Reads the job file, resolves its import paths and looks at its model directory; for a\n"
        "simulation, whether model and workers fit the world's hardware instead.",
    )
    _take_job(check)
    _take_runtime(check)
    evaluation = command_of(
        commands,
        "eval",
        "measure a model on the held-out tasks of a job",
        "Samples each domain's held-out tasks at its temperature, and greedily; trains nothing.\n"
        "FILE.toml may be RUN/job.toml. Classes given to rollart.run for generation or training\n"
        "are not applied: what is measured is the model alone.",
    )
    evaluation.add_argument(
        "model", type=Path, metavar="MODEL", help="a Hugging Face model directory: RUN/weights"
    )
    _take_job(evaluation)
    evaluation.add_argument(
        "--tasks", type=positive, metavar="N", help="tasks a domain (the job's eval.tasks)"
    )
    evaluation.add_argument("--json", action="store_true", help="print one JSON object")


def _add_run_commands(commands: "argparse._SubParsersAction[_Parser]") -> None:
    report = command_of(
        commands,
        "report",
        "say how a run went, also one that is still going",
        "Prints result tables and draws RUN/report.png; with --json it prints one JSON object\n"
        "and draws only where --png is given.",
    )
    _take_run(report)
    report.add_argument("--json", action="store_true", help="print one JSON object")
    report.add_argument("--png", type=Path, metavar="PATH", help="where to draw the picture")
    show = command_of(
        commands,
        "show",
        "show recorded trajectories of a run",
        "Lists what is recorded, or with --trajectory prints one whole, its tokens coloured by\n"
        "the policy version that sampled them.",
    )
    _take_run(show)
    show.add_argument("--trajectory", metavar="ID", help="its id, or a part that only it has")
    show.add_argument("--domain", metavar="TAG", help="list only this domain")
    show.add_argument(
        "--limit", type=positive, default=40, metavar="N", help="list at most N, the last (40)"
    )
    pools = command_of(
        commands,
        "pools",
        "say which worker is bound to which pool, and why",
        "Of a run: the bindings it made. Of a job file: those it would make.",
    )
    pools.add_argument(
        "target", type=Path, metavar="RUN_OR_FILE", help="a run's directory, or a job file"
    )
    _take_overrides(pools)
    replay = command_of(
        commands,
        "replay",
        "run a recorded schedule again under virtual time",
        "Says whether the event log comes out equal.",
    )
    _take_run(replay)
    timeline = command_of(
        commands,
        "timeline",
        "write a run as a timeline that ui.perfetto.dev opens",
        "Devices, steps of an iteration and a sample of trajectories have lanes; compressed if\n"
        "the name ends in .gz.",
    )
    _take_run(timeline)
    timeline.add_argument(
        "--out", type=Path, metavar="PATH", help="where to write it (RUN/timeline.json.gz)"
    )
    compare = command_of(
        commands,
        "compare",
        "put runs side by side",
        "Results, speed, staleness, where devices' time went, and what the jobs differ in.",
    )
    compare.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="the directories of two runs or more"
    )
    compare.add_argument("--json", action="store_true", help="print one JSON object")


def _add_chaos(commands: "argparse._SubParsersAction[_Parser]") -> None:
    chaos = command_of(
        commands,
        "chaos",
        "hunt for broken promises with faults drawn by seed",
        "Small runs of the real control\n"
        "plane under virtual time. Each seed draws a job and its faults. A seed that breaks a\n"
        "promise is printed with the few faults that it takes, and the code is 1; with a planted\n"
        "bug the code is 1 if it was not found. Without one, and from 1000 seeds on, it is 1 too\n"
        "where a kind of fault was never felt at one of the six steps.",
    )
    chaos.add_argument(
        "--seeds", type=positive, default=200, metavar="N", help="how many seeds (200)"
    )
    chaos.add_argument(
        "--first", type=number_from_0, default=0, metavar="S", help="the first of them (0)"
    )
    chaos.add_argument("--seed", type=number_from_0, metavar="S", help="play this one seed again")
    chaos.add_argument(
        "--plant",
        metavar="NAME",
        help="plant a known bug, to see it found; an unknown name lists them",
    )


def _add_paper(commands: "argparse._SubParsersAction[_Parser]") -> None:
    paper = command_of(
        commands,
        "paper",
        "run the RollArt paper's evaluation on modelled hardware",
        "Prints every row beside the paper's, hit or miss. All of it takes up to an hour on two\n"
        "cores.",
    )
    paper.add_argument(
        "--quick",
        action="store_true",
        help="smaller clusters, fewer models, steps and seeds: at most five minutes",
    )
    paper.add_argument(
        "--rows", nargs="+", default=[], metavar="ID", help="only these, with their controls"
    )
    paper.add_argument("--json", action="store_true", help="print one JSON object a row")
    paper.add_argument(
        "--out", type=Path, metavar="FILE.md", help="also write a page with pictures"
    )
    paper.add_argument(
        "--processes", type=int, metavar="N", help="so many side by side (one a core)"
    )


def _add_serve(commands: "argparse._SubParsersAction[_Parser]") -> None:
    serve = command_of(
        commands,
        "serve",
        "serve a model behind an OpenAI-compatible endpoint",
        "Answers /v1/chat/completions and /v1/models until Ctrl-C, with the model's own chat\n"
        "template; a judge for rewards, for one. For other machines to ask (--host), set\n"
        "ROLLART_SERVE_TOKEN: clients send it as their key.",
    )
    serve.add_argument(
        "model", type=Path, metavar="MODEL", help="a Hugging Face model directory: RUN/weights"
    )
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    serve.add_argument(
        "--port", type=port, default=8000, metavar="N", help="where to listen; 0 finds one (8000)"
    )
    serve.add_argument("--name", help="what clients call the model (its directory's name)")
    serve.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="tokens of a question and its answer (the model's, at most 4096)",
    )
    serve.add_argument(
        "--slots", type=positive, default=8, metavar="N", help="questions answered at once (8)"
    )


def _take_job(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE.toml", help="the job file")
    _take_overrides(command)


def _take_runtime(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--runtime",
        choices=("local", "sim"),
        default="local",
        help="where it runs: on this machine, or on modelled hardware under virtual time (local)",
    )
    command.add_argument(
        "--world",
        type=Path,
        metavar="WORLD.toml",
        help="of a simulation: hardware, network and workload; without it, one is assumed",
    )
    command.add_argument(
        "--seed",
        type=number_from_0,
        metavar="N",
        help="the run's seed, instead of the job's run.seed",
    )


def _take_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of the job, in TOML notation; may be given again: "
        "--set run.steps=20 --set domains.FrozenLake.temperature=0.8",
    )


def _take_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
