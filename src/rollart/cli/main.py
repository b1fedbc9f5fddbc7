"""The `rollart` command: words in, an exit code out.

Invariant: nothing is decided here but which function to call, and each command is loaded only
when it is called.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rollart.cli import rewards
from rollart.cli.common import BAD_INPUT, INTERRUPTED, OK, Jobs, fail
from rollart.cli.words import make_parser


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
        return fail(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        # Somebody closed the pipe we print into (`| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _dispatch(chosen: argparse.Namespace, jobs: Jobs | None) -> int:
    if chosen.command in {"train", "check", "eval"}:
        return _dispatch_job(chosen, jobs or _jobs())
    if chosen.command == "report":
        from rollart.cli.report import report

        return report(chosen.run, as_json=chosen.json, png=chosen.png)
    if chosen.command == "show":
        from rollart.cli.show import show

        return show(
            chosen.run, trajectory=chosen.trajectory, domain=chosen.domain, limit=chosen.limit
        )
    if chosen.command == "init":
        from rollart.cli.init import init

        return init(chosen.file, model=chosen.model)
    if chosen.command == "pools":
        return _pools(chosen.target, chosen.set)
    if chosen.command == "timeline":
        from rollart.cli.timeline import timeline

        return timeline(chosen.run, out=chosen.out)
    if chosen.command == "compare":
        from rollart.cli.compare import compare

        return compare(chosen.runs, as_json=chosen.json)
    if chosen.command == "chaos":
        return _chaos(chosen)
    if chosen.command == "paper":
        return _paper(chosen)
    if chosen.command == "rewards":
        return rewards.rewards(chosen)
    if chosen.command == "serve":
        return _serve(chosen)
    return _replay(chosen.run)


def _dispatch_job(chosen: argparse.Namespace, jobs: Jobs) -> int:
    if chosen.command == "check":
        from rollart.cli.check import check

        return check(
            jobs, chosen.file, _settings(chosen), runtime=chosen.runtime, world=chosen.world
        )
    if chosen.command == "eval":
        from rollart.cli.eval import evaluate

        return evaluate(
            jobs, chosen.model, chosen.file, chosen.set, tasks=chosen.tasks, as_json=chosen.json
        )
    from rollart.cli.train import train

    return train(jobs, chosen.file, _settings(chosen), runtime=chosen.runtime, world=chosen.world)


def _settings(chosen: argparse.Namespace) -> list[str]:
    """What is set in the job; a seed comes last."""
    return [*chosen.set, *([] if chosen.seed is None else [f"run.seed={chosen.seed}"])]


def _pools(target: Path, overrides: Sequence[str]) -> int:
    from rollart.cli.pools import pools
    from rollart.core.errors import RollartError

    try:
        print(pools(target, overrides))
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    return OK


def _replay(run: Path) -> int:
    from rollart.cli.replay import replay
    from rollart.core.errors import RollartError

    try:
        code, said = replay(run)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    print(said)
    return code


def _serve(chosen: argparse.Namespace) -> int:
    from rollart.cli.serve import serve

    return serve(
        chosen.model,
        host=chosen.host,
        port=chosen.port,
        name=chosen.name,
        context=chosen.context,
        slots=chosen.slots,
    )


def _paper(chosen: argparse.Namespace) -> int:
    from rollart.cli.paper import paper

    return paper(
        chosen.rows,
        quick=chosen.quick,
        as_json=chosen.json,
        out=chosen.out,
        processes=chosen.processes,
    )


def _chaos(chosen: argparse.Namespace) -> int:
    from rollart.cli.chaos import again, hunt
    from rollart.core.errors import RollartError

    try:
        if chosen.seed is not None:
            return again(chosen.seed, plant=chosen.plant)
        return hunt(range(chosen.first, chosen.first + chosen.seeds), plant=chosen.plant)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))


def _jobs() -> Jobs:
    from rollart import job

    return job
