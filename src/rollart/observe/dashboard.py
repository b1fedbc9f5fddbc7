"""Live progress of a run: a panel on a terminal, one line a step anywhere else.

Invariant: drawn from events, in the caller's thread, at most four times a second of event time;
what has to be said for good (steps, evaluations, warnings) is printed as lines.
"""

from typing import TYPE_CHECKING, Protocol

from rollart.core.events import (
    Baseline,
    DomainClosed,
    EngineDown,
    Evaluated,
    Event,
    Phase,
    RunEnded,
    RunStarted,
    Stamped,
    Warned,
)
from rollart.observe.progress import PAUSING, WAITS, DomainView, EngineView, Progress
from rollart.observe.steps import StepRow
from rollart.observe.words import count, duration, number, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DRAW_EVERY_S = 0.25


class View(Protocol):
    """A consumer of events that shows them."""

    def take(self, stamped: Stamped) -> None: ...

    def close(self) -> None:
        """Leave the terminal as a program should. Idempotent."""
        ...


def make_view(*, live: bool, console: "Console | None" = None) -> View:
    """A `Dashboard` if `live` and the console is a terminal, else `PlainLines`.

    Plain lines to something that is no terminal are never wrapped.
    """
    from rich.console import Console

    console = console or Console(highlight=False)
    return Dashboard(console) if live and console.is_terminal else PlainLines(console)


class PlainLines:
    """One line for each step, evaluation, baseline, lost engine and warning, and for the end."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._progress = Progress()

    def take(self, stamped: Stamped) -> None:
        row = self._progress.take(stamped)
        line = step_line(self._progress, row) if row is not None else event_line(stamped.event)
        if line:
            self._console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put back."""


class Dashboard:
    """A panel that is drawn anew in place, with lasting lines above it."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self._console = console
        self._progress = Progress()
        self._drawn_at = float("-inf")
        # No thread: rich draws when told to, and only then.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._closed = False
        self._live.start()

    def take(self, stamped: Stamped) -> None:
        self._progress.take(stamped)
        if (line := event_line(stamped.event)) is not None and not self._closed:
            self._console.print(line, markup=False)
        if stamped.time - self._drawn_at >= DRAW_EVERY_S and not self._closed:
            self._drawn_at = stamped.time
            self._live.update(panel(self._progress), refresh=True)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._live.stop()


def step_line(progress: Progress, row: StepRow) -> str:
    """A train step on one line."""
    several = [
        f"{tag} {_domain_state(view)}"
        for tag, view in progress.domains.items()
        if len(progress.domains) > 1
    ]
    return "  ".join(
        (
            f"step {progress.steps_done}/{progress.steps_planned}",
            f"reward {number(row.reward, 3)}",
            f"success {percent(row.success)}",
            f"{count(row.tokens_per_s)} tokens/s",
            f"lag start {number(row.start_lag_max, 0)} token {row.token_lag_max} "
            f"mean {number(row.token_lag_mean)}",
            f"step {duration(row.seconds)}, of it {duration(progress.batch_wait_s)} for the batch",
            f"left {duration(progress.left_s)}",
            *([f"[{'; '.join(several)}]"] if several else ()),
        )
    )


def _domain_state(view: DomainView) -> str:
    """How a domain does, in a few words."""
    if view.closed:
        return "closed"
    state = "nothing ended yet"
    if view.row is not None:
        state = f"reward {number(view.row.reward, 3)} success {percent(view.row.success)}"
        if view.row.failed:
            state += f" failed {view.row.failed} of {view.row.ended}"
    if view.starving:
        state += f" STARVES: nothing of it in {view.steps_without} steps"
    return state


def event_line(event: Event) -> str | None:
    """What is said for good about an event that is not a step; None for most."""
    match event:
        case RunStarted():
            return (
                f"run {event.run}: {event.protocol} with alpha {event.alpha}, seed {event.seed}, "
                f"{event.steps} steps of {event.batch_groups} x {event.group_size} trajectories, "
                f"runtime {event.runtime}"
            )
        case Evaluated():
            return (
                f"held-out {event.domain}, {event.when}: success {percent(event.success)} "
                f"{event.mode}, {event.scored} of {event.tasks} tasks, version {event.version}, "
                f"{duration(event.seconds)}"
            )
        case Baseline():
            return (
                f"baseline on {event.domain}: success {percent(event.success)}, {event.name}, "
                f"{event.tasks} tasks"
            )
        case DomainClosed():
            return f"domain {event.domain} is closed, the others go on: {event.reason}"
        case EngineDown():
            return (
                f"engine {event.engine} is down: {event.reason}; "
                f"{event.moved_requests} requests moved"
            )
        case Warned():
            return f"warning: {event.message}"
        case RunEnded():
            how = "ended" if event.ok else "FAILED"
            return (
                f"run {how} after {event.steps} steps and {duration(event.seconds)}: {event.reason}"
            )
        case _:
            return None


def panel(progress: Progress) -> "RenderableType":
    """The panel: how far, how well, and what each part waits for."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    top = Table.grid(padding=(0, 2))
    top.add_row(
        f"step [bold]{progress.steps_done}[/]/{progress.steps_planned}",
        ProgressBar(total=max(1, progress.steps_planned), completed=progress.steps_done, width=32),
        f"left {duration(progress.left_s)}",
    )
    parts = Table.grid(padding=(0, 2))
    parts.add_column(style="dim", no_wrap=True)
    parts.add_column()
    if progress.row is not None:
        parts.add_row("last step", _last_step(progress.row))
    if len(progress.domains) > 1:
        for tag, view in progress.domains.items():
            parts.add_row(f"domain {tag}", _domain(view))
    parts.add_row("trainer", _trainer(progress))
    for name, engine in progress.engines.items():
        parts.add_row(f"engine {name}", _engine(progress, name, engine))
    parts.add_row("rollout", _rollout(progress))
    if (shares := progress.turn_shares) is not None:
        parts.add_row(
            "turns",
            f"queued {percent(shares.queued)}, prefill {percent(shares.prefill)}, decode "
            f"{percent(shares.decode)}, environment {percent(shares.environment)} of their time",
        )
    return Panel(
        Group(top, parts), title=f"RollArt: {progress.run or 'starting'}", title_align="left"
    )


def _last_step(row: StepRow) -> str:
    return (
        f"reward [bold]{number(row.reward, 3)}[/], success [bold]{percent(row.success)}[/], "
        f"{count(row.tokens_per_s)} tokens/s, lag start {number(row.start_lag_max, 0)} token "
        f"{row.token_lag_max}, {duration(row.seconds)}"
    )


def _domain(view: DomainView) -> str:
    from rich.markup import escape

    if view.closed:
        return f"[red]closed[/]: {escape(view.closed)}"
    state = f"{_domain_state(view)}, {view.in_flight} in flight"
    return f"[yellow]{state}[/]" if view.starving else state


def _trainer(progress: Progress) -> str:
    phase = progress.phase
    if phase is None:
        return "between steps" if progress.steps_done else "waits for the first step"
    since = duration(progress.now - progress.open_phases[phase])
    have = ""
    if phase is Phase.GET_BATCH:
        have = f": {progress.buffered_groups} of {progress.batch_groups} groups"
    return f"{WAITS[phase]}{have} ({since})"


def _engine(progress: Progress, name: str, engine: EngineView) -> str:
    from rich.markup import escape

    if engine.down:
        return f"[red]down[/]: {escape(engine.down)}"
    version = "no version yet" if engine.version is None else f"version {engine.version}"
    if PAUSING & progress.open_phases.keys():
        state = "paused, waits for the new weights"
    elif progress.in_flight or progress.evaluating:
        state = f"busy {percent(progress.busy_of(name))} since the last step"
    else:
        state = "idle, waits for requests"
    return f"{version}, {state}"


def _rollout(progress: Progress) -> str:
    said = (
        f"{progress.in_flight} trajectories in flight, {progress.buffered_groups} groups ready, "
        f"credits {progress.outstanding}/{progress.capacity}"
    )
    if progress.evaluating:
        said += f", {progress.evaluating} in evaluation"
    if progress.resetting:
        said += f", {progress.resetting} wait for their environment"
    if progress.capacity and progress.outstanding >= progress.capacity and not progress.in_flight:
        said += ", waits for the trainer (staleness bound)"
    return said
