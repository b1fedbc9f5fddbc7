"""Whole runs, measured: a child process a run, figures from its event log.

What is measured begins when the first steps are over, so that neither the start of the processes
nor the first rollout, which nothing can overlap, has a part in any figure.
"""

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollart.core.events import Disposed, Stamped, TurnEnded, Work
from rollart.core.types import Disposition
from rollart.observe.eventlog import EVENTS_FILE, read_events
from rollart.observe.history import gather
from rollart.observe.idle_causes import GENERATION
from rollart.observe.intervals import busy_share, clipped, intersection, total
from rollart.observe.summary import RunSummary, summary_of

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
RUNNER = "benchmarks.parts.run_job"
FIRST_STEPS = 2
"""Steps that are over before measuring begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run, from the end of its first steps to the end of its last; seconds, shares 0..1.

    `rate` is prompt and response tokens of the trained batches a second, `phases` are seconds a
    step. `lost_tokens` is the share of sampled tokens whose trajectory left otherwise than trained,
    those apart that the end of the run cut off; `mixed` that of turns sampled by two versions.
    `turn_s` is a turn's mean time at the engine, `env_s` in the environment. `others` is the share
    of the machine's processor time that went to other programs during the run.
    """

    steps: int
    seconds: float
    rate: float
    phases: Mapping[str, float]
    engine_busy: float
    trainer_busy: float
    both_busy: float
    turn_s: float
    env_s: float
    lost_tokens: float
    mixed: float
    summary: RunSummary
    others: float = 0.0

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    def count(self, disposition: str) -> int:
        return dict(self.summary.ledger.dispositions)[disposition]


def make_model(folder: Path) -> Path:
    """A model for all runs of a benchmark, made once."""
    model = folder / "model"
    command = f"from benchmarks.parts.plain_model import make; make({str(model)!r}, seed=0)"
    subprocess.run([sys.executable, "-c", command], cwd=ROOT, check=True)
    return model


def train(job: str, out: Path, name: str, settings: Sequence[str]) -> Figures:
    """Run a job file of this folder in a process of its own."""
    given = [f'run.name="{name}"', f'run.directory="{out}"', *settings]
    command = [sys.executable, "-m", RUNNER, str(FOLDER / job)]
    for setting in given:
        command += ["--set", setting]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    log = out / f"{name}.log"
    busy, began = Processors.now(), time.monotonic()
    with log.open("w") as file:
        done = subprocess.run(
            command, stdout=file, stderr=file, env=environment, cwd=ROOT, check=False
        )
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}:\n{log.read_text()[-2000:]}")
    others = Processors.now().others_since(busy, time.monotonic() - began)
    return replace(figures_of(list(read_events(out / name / EVENTS_FILE))), others=others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Processor seconds so far: of the whole machine, and of this program with its children."""

    machine: float
    own: float

    @classmethod
    def now(cls) -> "Processors":
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        idle = fields[3] + fields[4]
        own = os.times()
        return cls(
            machine=(sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK"),
            own=own.user + own.system + own.children_user + own.children_system,
        )

    def others_since(self, before: "Processors", seconds: float) -> float:
        """Share of the machine that other programs had, 0..1."""
        spent = (self.machine - before.machine) - (self.own - before.own)
        return max(0.0, spent) / (seconds * (os.cpu_count() or 1))


def figures_of(events: Sequence[Stamped]) -> Figures:
    """The figures of one run's events."""
    history = gather(events)
    summary = summary_of(history)
    if len(history.steps) <= FIRST_STEPS:
        sys.exit(f"{len(history.steps)} steps; at least {FIRST_STEPS + 1} are needed")
    steps = history.steps[FIRST_STEPS:]
    window = (history.steps[FIRST_STEPS - 1].ended_at, steps[-1].ended_at)
    seconds = window[1] - window[0]
    phases = dict.fromkeys((phase for phase, _ in summary.phase_seconds), 0.0)
    for span in history.phases:
        if window[0] <= span.begin and span.end <= window[1] + 1e-6:
            phases[span.phase] += (span.end - span.begin) / len(steps)
    generated = clipped(history.busy_on(GENERATION), window)
    trained = clipped(history.busy_on({Work.TRAIN}), window)
    turns = [event.event for event in events if isinstance(event.event, TurnEnded)]
    return Figures(
        steps=len(steps),
        seconds=seconds,
        rate=sum(row.batch_tokens for row in steps) / seconds,
        phases=phases,
        engine_busy=busy_share(generated, window),
        trainer_busy=busy_share(trained, window),
        both_busy=total(intersection(generated, trained)) / seconds,
        turn_s=statistics.mean(
            turn.cost.queued_s + turn.cost.prefill_s + turn.cost.decode_s for turn in turns
        ),
        env_s=statistics.mean(turn.env_s for turn in turns),
        lost_tokens=_lost(events, turns),
        mixed=sum(turn.first_version != turn.last_version for turn in turns) / len(turns),
        summary=summary,
    )


def _lost(events: Iterable[Stamped], turns: Iterable[TurnEnded]) -> float:
    sampled: Counter[str] = Counter()
    for turn in turns:
        sampled[turn.trajectory] += turn.sampled_tokens
    tokens: Counter[Disposition] = Counter()
    for stamped in events:
        if isinstance(stamped.event, Disposed):
            tokens[stamped.event.disposition] += sampled[stamped.event.trajectory]
    tokens.pop(Disposition.CANCELLED, None)
    return 1.0 - tokens[Disposition.TRAINED] / max(1, tokens.total())


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (least to most)."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
