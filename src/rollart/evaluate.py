"""`rollart eval`: a model on the held-out tasks of a job, and nothing trained.

Invariant: the same engines, environments and rewards as in training, one version, each task once
sampled and once greedily; nothing is left behind on disk.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart.control.assembly import assemble
from rollart.control.controller import Controller
from rollart.core.errors import ConfigError, RollartError
from rollart.core.events import Baseline, Evaluated, Event, Warned
from rollart.launching import RUNTIMES, Surroundings, measure_baselines, supervised
from rollart.plan import JobPlan, check, placed


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What an evaluation found; prints itself as a table."""

    model: Path
    evaluated: tuple[Evaluated, ...]
    baselines: tuple[Baseline, ...]

    def __str__(self) -> str:
        rows = [f"{'domain':<16} {'played':<34} {'success':>8} {'score':>8} {'tasks':>6}"]
        for found in self.evaluated:
            scored = f"{found.scored}" if found.scored == found.tasks else f"{found.scored} of"
            rows.append(
                f"{found.domain:<16} {found.mode:<34} {_number(found.success):>8} "
                f"{_number(found.score):>8} {scored:>6}"
                + ("" if found.scored == found.tasks else f" {found.tasks}")
            )
        rows += [
            f"{base.domain:<16} {'baseline: ' + base.name:<34} {_number(base.success):>8} {'':>8} "
            f"{base.tasks:>6}"
            for base in self.baselines
        ]
        return "\n".join(rows)

    def as_json(self) -> str:
        """One object: `model`, and by domain what was played and its baselines."""
        domains: dict[str, dict[str, object]] = {}
        for found in self.evaluated:
            domains.setdefault(found.domain, {})[found.mode] = {
                "success": found.success,
                "score": found.score,
                "tasks": found.tasks,
                "scored": found.scored,
            }
        for base in self.baselines:
            baselines = domains.setdefault(base.domain, {}).setdefault("baselines", {})
            assert isinstance(baselines, dict)
            baselines[base.name] = base.success
        return json.dumps({"model": str(self.model), "domains": domains}, indent=2)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


class Findings:
    """Keeps the events that the report is made of, and hands warnings on as they come."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.evaluated: list[Evaluated] = []
        self.baselines: list[Baseline] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.evaluated.append(event)
        elif isinstance(event, Baseline):
            self.baselines.append(event)
        elif isinstance(event, Warned):
            self._warn(event.message)


def say_nothing(message: str) -> None:
    """Takes a warning that nobody wants to see."""


def evaluate(
    model: Path,
    path: Path,
    overrides: Sequence[str] = (),
    *,
    tasks: int | None = None,
    warn: Callable[[str], None] = say_nothing,
) -> EvalReport:
    """Play the held-out tasks of the job in `path` with the weights in `model`.

    Args:
        model: a Hugging Face directory, such as RUN/weights.
        path: the job file, also the `job.toml` that a run left in its directory.
        tasks: held-out tasks a domain; None leaves it to the job's `eval.tasks`.
        warn: takes each warning as it comes, such as an engine's loss.

    Raises:
        ConfigError: the job or the model cannot be used; nothing was started.
        RollartError: it was begun and could not be ended; the message says why.
    """
    if not model.is_dir():
        raise ConfigError(f"{model}: no such directory; give a model's, such as RUN/weights")
    with tempfile.TemporaryDirectory(prefix="rollart-eval-") as scratch:
        settings = eval_settings(model, scratch, overrides, tasks)
        plan = check(path, settings)
        if not plan.job.eval.tasks:
            raise ConfigError(
                "eval.tasks = 0: there is nothing to play; use --tasks 64, or set it in the job"
            )
        return asyncio.run(_measure(plan, model, Path(scratch), Findings(warn)))


def eval_settings(
    model: Path, scratch: str, overrides: Sequence[str], tasks: int | None
) -> list[str]:
    """What an evaluation sets in the job: nothing is kept, so no tracker is wanted either."""
    settings = [
        *overrides,
        f"model.path={json.dumps(str(model.resolve()))}",
        f"run.directory={json.dumps(scratch)}",
        'run.name="eval"',
        "run.trackers=[]",
    ]
    return settings if tasks is None else [*settings, f"eval.tasks={tasks}"]


async def _measure(plan: JobPlan, model: Path, scratch: Path, findings: Findings) -> EvalReport:
    job = plan.job
    around = Surroundings(
        run_id=f"eval-{scratch.name}",
        directory=scratch,
        python_path=plan.python_path,
        events=findings,
    )
    launcher = RUNTIMES["local"](job, around)

    async def begin() -> Controller:
        with placed(job, None, plan.wishes) as (placement, _):
            controller = await assemble(
                job,
                launcher,
                run_id=around.run_id,
                placement=placement,
                save_to=None,
                events=findings,
            )
        await measure_baselines(job, launcher, findings)
        return controller

    try:
        result = await supervised(begin, findings, drive=Controller.measure)
    finally:
        await launcher.close()
    if not result.ok or result.interrupted:
        raise RollartError(result.reason)
    return EvalReport(
        model=model,
        evaluated=tuple(findings.evaluated),
        baselines=tuple(findings.baselines),
    )
