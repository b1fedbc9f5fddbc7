"""The result of a run as tables for a terminal.

Invariant: drawn from a `RunSummary` alone; nothing is computed here but formats.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollart.core.types import Disposition
from rollart.observe.bias import DomainBias, worth_showing
from rollart.observe.idle import ClassAccount, DeviceAccount, IdleAccount
from rollart.observe.idle_causes import Cause
from rollart.observe.summary import RunSummary
from rollart.observe.words import UNKNOWN, count, duration, number, part, percent, small

MOST_DEVICES = 8
"""More of them are shown by hardware class."""

THROWN_AWAY = (Disposition.STALE.value, Disposition.SURPLUS.value)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def result(summary: RunSummary) -> "RenderableType":
    """Success beside the baselines, training by domain, bias, then speed, lags and ledger."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if summary.partial is not None:
        parts.append(Text(f"partial report: {summary.partial}", style="bold yellow"))
    if any(domain.heldout_tasks for domain in summary.domains):
        parts.append(_success(summary))
    if any(domain.started for domain in summary.domains):
        parts.append(_domains(summary))
    if worth_showing([domain.bias for domain in summary.domains], summary.redundancy):
        parts += _bias(summary)
    if summary.functions:
        parts.append(_functions(summary))
    if summary.idle.devices:
        parts.append(_idle(summary.idle))
    parts.append(_numbers(summary))
    parts.append(_ledger(summary))
    return Group(*parts)


def _table(title: str) -> "Table":
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", header_style="dim")


def _success(summary: RunSummary) -> "Table":
    from rich.text import Text

    table = _table("Success on held-out tasks")
    for heading in ("domain", "tasks", "policy"):
        table.add_column(heading)
    for heading in ("before", "after"):
        table.add_column(heading, justify="right")
    for domain in summary.domains:
        tasks = str(domain.heldout_tasks)
        table.add_row(
            domain.domain,
            tasks,
            "trained, sampled",
            number(domain.success_at("before", "sampled"), 3),
            f"[bold]{number(domain.success_at('after', 'sampled'), 3)}[/]",
        )
        table.add_row(
            "",
            "",
            "trained, greedy",
            number(domain.success_at("before", "greedy"), 3),
            number(domain.success_at("after", "greedy"), 3),
        )
        for name, success in domain.baselines:
            table.add_row("", "", Text(f"baseline: {name}"), number(success, 3), number(success, 3))
        table.add_section()
    return table


def _domains(summary: RunSummary) -> "Table":
    """Training by domain: how it went, and what became of it."""
    from rich.text import Text

    table = _table("Training by domain")
    table.add_column("what")
    for domain in summary.domains:
        table.add_column(Text(domain.domain), justify="right", overflow="fold")
    failed = dict.fromkeys(kind for d in summary.domains for kind, _ in d.failures)
    left = [name for name, _ in summary.ledger.dispositions]
    rows: list[tuple[str, list[str]]] = [
        ("reward", [number(d.reward, 3) for d in summary.domains]),
        ("success", [number(d.success, 3) for d in summary.domains]),
        ("turns", [number(d.turns, 1) for d in summary.domains]),
        ("sampled tokens", [number(d.sampled_tokens, 1) for d in summary.domains]),
        ("seconds", [number(d.elapsed_s) for d in summary.domains]),
        ("in train steps", [f"{d.steps_trained} of {summary.steps}" for d in summary.domains]),
        ("started", [str(d.started) for d in summary.domains]),
    ]
    for name in left:
        counts = [dict(d.dispositions).get(name, 0) for d in summary.domains]
        if any(counts):
            rows.append((name.replace("_", " "), [str(count) for count in counts]))
    for kind in failed:
        counts = [dict(d.failures).get(kind, 0) for d in summary.domains]
        rows.append((f"  failure: {kind.replace('_', ' ')}", [str(count) for count in counts]))
    if any(d.closed for d in summary.domains):
        rows.append(("closed", [d.closed or "no" for d in summary.domains]))
    for name, values in rows:
        table.add_row(Text(name), *(Text(value) for value in values))
    return table


def _bias(summary: RunSummary) -> "list[Table]":
    """What was kept against what was started; by duration where that decides."""
    from rich.text import Text

    spare = summary.redundancy
    declared = (
        f"{spare.members} spare members, {spare.groups} spare groups, {spare.mode}"
        if spare
        else "no redundancy"
    )
    table = _table(f"Kept against started ({declared})")
    table.add_column("domain")
    for heading in ("started", "kept", "slow: of started", "of kept"):
        table.add_column(heading, justify="right")
    for heading in ("reward: kept", "finished", "started*"):
        table.add_column(heading, justify="right")
    table.caption = (
        "* estimated (± standard error), had none been ended early; slow: longer than the middle"
    )
    table.caption_justify = "left"
    parts = [table]
    for domain in summary.domains:
        bias = domain.bias
        mark = "[bold yellow]biased[/] " if bias.notable else ""
        table.add_row(
            Text.from_markup(mark).append(domain.domain),
            str(bias.started),
            str(bias.kept),
            percent(bias.slow_started),
            percent(bias.slow_kept),
            number(bias.reward_kept, 3),
            number(bias.reward_finished, 3),
            _estimate(bias),
        )
        if bias.notable:
            parts.append(_durations(bias))
    return parts


def _estimate(bias: DomainBias) -> str:
    """With its standard error, if that can be told."""
    error = bias.reward_started_error
    spread = "" if error is None else f" ± {error:.3f}"
    return f"{number(bias.reward_started, 3)}{spread}"


def _durations(bias: DomainBias) -> "Table":
    """Kept and dropped by deciles of the time at which trajectories left."""
    from rich.text import Text

    table = _table(f"{bias.domain}: by duration")
    kinds = [name for name, _ in bias.dropped]
    for heading in ("up to", "left", "kept", *kinds, "ended early"):
        table.add_column(Text(heading.replace("_", " ")), justify="right")
    for one in bias.bins:
        dropped = dict(one.dropped)
        table.add_row(
            f"{one.upto_s:.3g} s",
            str(one.left),
            str(one.kept),
            *(str(dropped.get(kind, 0)) for kind in kinds),
            str(one.censored),
        )
    return table


def _idle(idle: IdleAccount) -> "Table":
    """Where each device's time went; by hardware class where there are many devices."""
    from rich.text import Text

    many = len(idle.devices) > MOST_DEVICES
    columns: list[tuple[str, DeviceAccount | ClassAccount]] = (
        [(f"{one.hardware} {one.role} x {one.slots:g}", one) for one in idle.classes]
        if many
        else [(one.device, one) for one in idle.devices]
    )
    table = _table(f"Where {duration(idle.window_s)} of training went")
    table.add_column("what")
    for name, _ in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    shares = [dict(one.shares) for _, one in columns]
    for cause in Cause:
        if any(share[cause.value] > 0 for share in shares):
            values = [part(share[cause.value]) for share in shares]
            table.add_row(cause.value.replace("_", " "), *values)
    wasted = [dict(one.wasted) for _, one in columns]
    for how in THROWN_AWAY:
        if any(how in share for share in wasted):
            values = [part(share.get(how, 0.0)) for share in wasted]
            table.add_row(f"  of busy, left as {how}", *values)
    return table


def _functions(summary: RunSummary) -> "Table":
    """Serverless rewards: what they were asked, how long it took, what was kept for them."""
    from rich.text import Text

    table = _table("Serverless rewards")
    table.add_column("what")
    for use in summary.functions:
        table.add_column(Text(use.url), justify="right", overflow="fold")
    kinds = dict.fromkeys(kind for use in summary.functions for kind, _ in use.outcomes)

    def row(name: str, values: Iterable[str]) -> None:
        shown = list(values)
        if any(value not in ("0", UNKNOWN, "0.0 s") for value in shown):
            table.add_row(Text(name), *map(Text, shown))

    uses = summary.functions
    row("calls", (str(use.calls) for use in uses))
    for kind in kinds:
        counts = (str(dict(use.outcomes).get(kind, 0)) for use in uses)
        row(f"  {kind.replace('_', ' ')}", counts)
    row("latency, p50 / p99", (_pair_ms(use.latency_p50_s, use.latency_p99_s) for use in uses))
    row("overhead, p50 / p99", (_pair_ms(use.overhead_p50_s, use.overhead_p99_s) for use in uses))
    row("computed", (duration(use.busy_s) for use in uses))
    row("kept processes", (duration(use.reserved_s) for use in uses))
    row("busy of kept", (percent(use.busy_share) for use in uses))
    row("processes", (str(use.processes) for use in uses))
    row("cold starts", (str(use.cold_starts) for use in uses))
    row("tries beyond one", (str(max(use.tries - use.calls, 0)) for use in uses))
    row("by reference", (str(use.by_reference) for use in uses))
    row("hedged", (str(use.hedged) for use in uses))
    row("answered elsewhere", (str(use.elsewhere) for use in uses))
    row("platform down", (duration(use.down_s) for use in uses))
    return table


def _pair_ms(first: float | None, second: float | None) -> str:
    """Two times in milliseconds."""
    if first is None or second is None:
        return UNKNOWN
    return f"{1e3 * first:.1f} / {1e3 * second:.1f} ms"


def _numbers(summary: RunSummary) -> "Table":
    from rich.text import Text

    table = _table(f"Run {summary.run or '(unknown)'}")
    table.add_column("what")
    table.add_column("value", justify="right")
    planned = "" if summary.steps_planned is None else f" of {summary.steps_planned}"
    shown = summary.devices if len(summary.devices) <= MOST_DEVICES else ()
    rows = (
        ("protocol", f"{summary.protocol or UNKNOWN}, alpha {number(summary.alpha, 0)}"),
        ("seed", number(summary.seed, 0)),
        ("steps", f"{summary.steps}{planned}"),
        ("wall time", duration(summary.wall_s)),
        ("tokens/s (prompt and response)", count(summary.tokens_per_s)),
        ("trained tokens", count(summary.trained_tokens)),
        ("start lag, maximum", number(summary.start_lag_max, 0)),
        ("token lag, maximum", number(summary.token_lag_max, 0)),
        ("token lag, mean", number(summary.token_lag_mean)),
        ("log-prob gap, float32 check", small(summary.logprob_gap_scored)),
        ("log-prob gap, while training", small(summary.logprob_gap_trained)),
        ("training and generation at once", duration(summary.overlap_s)),
        *((f"busy: {share.device}", percent(share.busy)) for share in shown),
        ("interruptions", str(summary.interruptions)),
        ("engines lost", str(summary.engines_lost)),
        ("warnings", str(summary.warnings)),
        ("ended", summary.ended or UNKNOWN),
    )
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _ledger(summary: RunSummary) -> "Table":
    ledger = summary.ledger
    table = _table("Ledger of trajectories")
    table.add_column("what became of them")
    table.add_column("count", justify="right")
    table.add_row("started", str(ledger.started))
    table.add_section()
    for name, number_of in ledger.dispositions:
        table.add_row(name.replace("_", " "), str(number_of))
        if name == "failed":
            for kind, failures in summary.failures:
                table.add_row(f"  {kind.replace('_', ' ')}", f"[dim]{failures}[/]")
    table.add_row("buffered", str(ledger.buffered))
    table.add_row("in flight", str(ledger.in_flight))
    table.add_section()
    table.add_row("balanced", "yes" if ledger.balanced else "[bold red]NO[/]")
    return table
