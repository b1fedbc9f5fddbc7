"""`rollart rewards`: a reward function is packaged for a platform, served here, or tried."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.cli.common import BAD_INPUT, FAILED, INTERRUPTED, OK, fail, warn
from rollart.cli.values import command_of, port, positive
from rollart.core.errors import RollartError

if TYPE_CHECKING:
    from rollart.shipping.package import Packaged
    from rollart.shipping.trial import Trial

TARGETS = ("fc", "lambda", "cloudrun")


def add(commands: "argparse._SubParsersAction[Any]") -> None:
    """Put the command and its own three into the command line."""
    rewards = command_of(
        commands,
        "rewards",
        "package a reward function for a platform, serve it here, or try it at a URL",
        "A function is module:function, with the module in the folder that this command is run in.",
    )
    own = rewards.add_subparsers(dest="rewards", required=True, metavar="WHAT")
    _add_package(own)
    _add_serve(own)
    _add_test(own)


def rewards(chosen: argparse.Namespace) -> int:
    """Do what was chosen; returns the exit code."""
    try:
        if chosen.rewards == "package":
            return _package(chosen)
        if chosen.rewards == "serve":
            from rollart.rewards_command import serve

            serve(
                chosen.function,
                host=chosen.host,
                port=chosen.port,
                processes=chosen.processes,
                say=lambda line: print(line, flush=True),
            )
            return INTERRUPTED
        return _test(chosen)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))


def _package(chosen: argparse.Namespace) -> int:
    from rollart.shipping.package import TARGETS as KNOWN
    from rollart.shipping.package import package

    packaged = package(
        chosen.function,
        KNOWN[chosen.target],
        chosen.out,
        root=Path.cwd(),
        name=chosen.name,
        store=chosen.store,
        vendor=chosen.vendor,
    )
    for warning in packaged.warnings:
        warn(warning)
    print(_told(packaged))
    return OK


def _told(packaged: "Packaged") -> str:
    shipment, target = packaged.shipment, packaged.target
    own = ", ".join(place for place, _ in shipment.sources.files)
    needs = ", ".join(shipment.requirements) or "none"
    how = "in the package" if shipment.vendored else "listed in requirements.txt"
    lines = [
        f"{packaged.directory}: {packaged.bytes:,} bytes for {target.name}",
        f"function  {shipment.sources.path}, version {shipment.sources.version}",
        f"files     {own}",
        f"packages  {needs} ({how})",
        f"bounds    {shipment.memory_mib} MB, {shipment.timeout_s} s a call, "
        f"{shipment.settings.concurrency or 'any number of'} instances",
        "",
        "deploy it:",
        f"  cd {shlex.quote(str(packaged.directory))} && {target.deploy(shipment)}",
        "",
        "then, in the job's [[domains]]:",
        f'  reward = "{packaged.url}"',
        "or, with the job's own processes for while it is down:",
        f'  reward = ["{packaged.url}", "local://{shipment.sources.path}"]',
    ]
    return "\n".join(lines)


def _test(chosen: argparse.Namespace) -> int:
    from rollart.rewards_command import try_url

    trial = try_url(
        chosen.url,
        function=chosen.function,
        samples=chosen.samples,
        run=chosen.run,
        concurrency=chosen.concurrency,
        seconds=chosen.timeout,
    )
    _print(trial)
    return OK if trial.ok else FAILED


def _print(trial: "Trial") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{trial.function} at {trial.url}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for row in _rows(trial):
        table.add_row(*row)
    Console().print(table)
    for one in trial.disagreements[:5]:
        print(f"differs  {one.sample}: {one.differs}")
    said = {one.error: one for one in reversed(trial.tried) if one.error}
    for kind, one in said.items():
        print(f"{kind}  {one.sample}: {one.verdict.reason}")
    if any(one.error and not one.differs for one in trial.tried if one.here is not None):
        print("The function here fails on samples as well: it may not know such tasks.")


def _rows(trial: "Trial") -> Iterator[tuple[str, str]]:
    calls, here = len(trial.tried), trial.here
    yield (
        "version",
        trial.version
        if trial.same_version
        else (f"{trial.version}, and {trial.here_version} here: package and deploy it again"),
    )
    yield "calls", f"{calls} in {trial.seconds:.2f} s"
    yield "latency, warm", f"p50 {_ms(trial.latency_s(0.5))}, p99 {_ms(trial.latency_s(0.99))}"
    yield "in the function", f"p50 {_ms(trial.function_s(0.5))}, p99 {_ms(trial.function_s(0.99))}"
    cold = trial.cold_s
    yield "cold starts", f"{len(cold)}" + (f", the longest {_ms(max(cold))}" if cold else "")
    retried = sum(max(0, one.tries - 1) for one in trial.tried)
    yield "tried again", f"{retried}"
    yield "errors", ", ".join(f"{n} {kind}" for kind, n in trial.errors.items()) or "none"
    if here:
        agree = calls - len(trial.disagreements)
        yield "agreement", f"{agree} of {calls} with {here} here"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def _add_package(own: "argparse._SubParsersAction[Any]") -> None:
    package = command_of(
        own,
        "package",
        "write a folder that a platform's own tool deploys",
        "The function's module, what it imports from this folder, a handler and the platform's\n"
        "deployment file. Nothing else of this folder is taken. Memory, timeout and concurrency\n"
        "are what the function declares with @serverless.",
    )
    _take_function(package)
    package.add_argument(
        "--target",
        choices=TARGETS,
        required=True,
        help="Alibaba Function Compute, AWS Lambda, or Cloud Run and Knative",
    )
    package.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where to write it; an earlier package there is replaced, anything else is not",
    )
    package.add_argument("--name", metavar="NAME", help="of the function on the platform")
    package.add_argument(
        "--store",
        default="",
        metavar="URL",
        help="folder with documents too large to send, as ?store= of the job's reward URL",
    )
    how = package.add_mutually_exclusive_group()
    how.add_argument(
        "--vendor", action="store_true", help="put the packages it needs into the folder, with pip"
    )
    how.add_argument(
        "--list",
        dest="vendor",
        action="store_false",
        help="list them in requirements.txt for the platform to install (this is the default)",
    )


def _add_serve(own: "argparse._SubParsersAction[Any]") -> None:
    serve = command_of(
        own,
        "serve",
        "serve a function over HTTP on this machine, for development",
        "Calls run in processes that are killed when they take too long. A host that others\n"
        "reach needs a token in ROLLART_REWARD_TOKEN, which callers name in the URL with ?auth=.\n"
        "Without a token only programs of this machine are answered. Ctrl-C ends it.",
    )
    _take_function(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    serve.add_argument(
        "--port", type=port, default=8080, metavar="N", help="port (8080); 0 takes a free one"
    )
    serve.add_argument(
        "--processes", type=positive, default=2, metavar="N", help="calls at once (2)"
    )


def _add_test(own: "argparse._SubParsersAction[Any]") -> None:
    test = command_of(
        own,
        "test",
        "send samples to a function at a URL and say how it went",
        "Reports latency, errors and version, and with --function whether its verdicts are those\n"
        "of the function here. What the URL says of calls, and ROLLART_REWARD_HOSTS, hold as in a\n"
        "job. The code is 1 where one differs or a call gave no answer.",
    )
    test.add_argument("url", metavar="URL", help="as a job's reward, such as lambda://judge")
    test.add_argument(
        "--function",
        metavar="MODULE:FUNCTION",
        help="compare with this function, run here; URL#MODULE:FUNCTION is the same",
    )
    which = test.add_mutually_exclusive_group()
    which.add_argument(
        "--samples", type=positive, default=20, metavar="N", help="how many to send (20)"
    )
    which.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="send the recorded trajectories of this run's directory instead; they have no task "
        "payload",
    )
    test.add_argument(
        "--concurrency", type=positive, default=4, metavar="K", help="calls at once (4)"
    )
    test.add_argument(
        "--timeout", type=positive, default=30, metavar="S", help="seconds a call may take (30)"
    )


def _take_function(command: argparse.ArgumentParser) -> None:
    command.add_argument("function", metavar="MODULE:FUNCTION", help="such as judge:score")
