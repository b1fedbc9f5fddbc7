"""Runs side by side: what each came to, and what their jobs and worlds differ in.

Invariant: everything follows from the runs' event logs, and from the world file beside that of a
simulation; a value that a run does not have is None.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollart.core.errors import RollartError
from rollart.observe.cost import Cost, cost_of
from rollart.observe.idle import ClassAccount
from rollart.observe.idle_causes import Cause
from rollart.observe.report import WORLD_FILE, load_history
from rollart.observe.summary import RunSummary, summary_of
from rollart.observe.words import UNKNOWN, count, duration, number

if TYPE_CHECKING:
    from rich.console import RenderableType

Value = str | int | float | bool | None
PricesOf = Callable[[Path], Mapping[str, float]]
"""Prices by GPU class of the run in a directory."""
WORLD = "world"
"""Begins the keys of a run's world."""


class CompareError(RollartError):
    """Runs that cannot be put side by side: the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run: how it is called here, its result, and its job's keys as they were in force.

    Those of its world, if it has one, begin with `world.`.
    """

    name: str
    summary: RunSummary
    cost: Cost
    keys: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measure of all runs; `shown` is `values` as people read them."""

    section: str
    name: str
    values: tuple[Value, ...]
    shown: tuple[str, ...]


def compared(
    directories: Sequence[Path], *, prices_of: PricesOf = lambda run: {}
) -> tuple[Compared, ...]:
    """The runs in these directories.

    Raises:
        CompareError: fewer than two, or a world file that cannot be read.
        ReportError: a directory that holds no run.
        LogError: a log cannot be read.
    """
    if len(directories) < 2:
        raise CompareError(
            f"compare needs two runs or more, and got {len(directories)}; "
            "give their directories: rollart compare RUN RUN"
        )
    return tuple(
        _load(directory, name, prices_of(directory))
        for directory, name in zip(directories, names_of(directories), strict=True)
    )


def _load(directory: Path, name: str, prices: Mapping[str, float]) -> Compared:
    history = load_history(directory)
    config = history.started.config if history.started else ""
    keys = {**keys_of(config), **_world_keys(directory / WORLD_FILE)}
    summary = summary_of(history)
    return Compared(
        name=name,
        summary=summary,
        cost=cost_of(history, summary, prices),
        keys=tuple(keys.items()),
    )


def names_of(directories: Sequence[Path]) -> tuple[str, ...]:
    """The directories' own names, or as much of their paths as tells them apart."""
    parts = [directory.resolve().parts for directory in directories]
    longest = max((len(one) for one in parts), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            return tuple(names)
    return tuple(str(directory) for directory in directories)


# -- the job's keys ------------------------------------------------------------------------------


def keys_of(config: str) -> dict[str, str]:
    """Dotted keys and values of a run's configuration as JSON; none if it is no JSON object.

    Domains are known by their tags.
    """
    try:
        table = json.loads(config)
    except ValueError:
        return {}
    return dict(_flat("", table)) if isinstance(table, dict) else {}


def _world_keys(file: Path) -> dict[str, str]:
    """Those of a world file, after `world.`; none where there is no file."""
    if not file.is_file():
        return {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CompareError(
            f"{file}: cannot be read ({error}); give it back as it was, or remove it"
        ) from error
    return dict(_flat(WORLD, table))


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, inner)
    elif isinstance(value, list) and (tagged := _by_tag(cast("list[Any]", value))):
        yield from _flat(prefix, tagged)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _by_tag(items: list[Any]) -> dict[str, Any]:
    """A list of tables that have tags, by tag; empty for any other list."""
    tables = [item for item in items if isinstance(item, dict) and isinstance(item.get("tag"), str)]
    if len(tables) < len(items):
        return {}
    return {
        item["tag"]: {name: value for name, value in item.items() if name != "tag"}
        for item in tables
    }


def differences(runs: Sequence[Compared]) -> dict[str, tuple[str | None, ...]]:
    """Keys in which the runs' jobs or worlds are not all equal; None where a run has no such key.

    A run whose log tells no configuration has none of the keys. Where some runs have a world and
    others are on real hardware, that is all that is said of worlds.
    """
    tables = [dict(run.keys) for run in runs]
    if any(_of_world(table) for table in tables) and not all(_of_world(table) for table in tables):
        tables = [
            {name: value for name, value in table.items() if name not in _of_world(table)}
            | ({WORLD: "modelled"} if _of_world(table) else {})
            for table in tables
        ]
    names = dict.fromkeys(name for table in tables for name in table)
    found = {name: tuple(table.get(name) for table in tables) for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _of_world(table: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name in table if name.startswith(f"{WORLD}."))


# -- the measures --------------------------------------------------------------------------------


def rows_of(runs: Sequence[Compared]) -> tuple[Row, ...]:
    """All measures, in order; shares are 0..1, times seconds."""
    return (*_results(runs), *_speeds(runs), *_costs(runs), *_ledgers(runs), *_classes(runs))


def _results(runs: Sequence[Compared]) -> Iterable[Row]:
    summaries = [run.summary for run in runs]
    yield _row("run", "runtime", [one.runtime for one in summaries])
    yield _row("run", "protocol", [one.protocol for one in summaries])
    yield _row("run", "alpha", [one.alpha for one in summaries])
    yield _row("run", "seed", [one.seed for one in summaries])
    yield _row("run", "ended", [one.ended for one in summaries])
    if any(one.partial for one in summaries):
        yield _row("run", "partial", [one.partial for one in summaries])
    domains = dict.fromkeys(domain.domain for one in summaries for domain in one.domains)
    for tag in domains:
        found = [next((d for d in one.domains if d.domain == tag), None) for one in summaries]
        if any(domain and domain.heldout_tasks for domain in found):
            after = [d.success_at("after", "sampled") if d else None for d in found]
            yield _row("success", f"{tag}, held out", after, digits=3)
        yield _row("success", f"{tag}, training", [d.success if d else None for d in found], 3)
        yield _row("success", f"{tag}, reward", [d.reward if d else None for d in found], 3)


def _speeds(runs: Sequence[Compared]) -> Iterable[Row]:
    summaries = [run.summary for run in runs]
    yield _row("speed", "steps", [one.steps for one in summaries])
    yield Row(
        section="speed",
        name="step time",
        values=(times := tuple(_step_s(one) for one in summaries)),
        shown=_each(duration, times),
    )
    walls = tuple(one.wall_s for one in summaries)
    yield Row(section="speed", name="wall time", values=walls, shown=_each(duration, walls))
    speeds = tuple(one.tokens_per_s for one in summaries)
    yield Row(section="speed", name="tokens/s", values=speeds, shown=_each(count, speeds))
    trained = tuple(one.trained_tokens for one in summaries)
    yield Row(section="speed", name="trained tokens", values=trained, shown=_each(count, trained))
    yield _row("staleness", "start lag, maximum", [one.start_lag_max for one in summaries])
    yield _row("staleness", "token lag, maximum", [one.token_lag_max for one in summaries])
    yield _row("staleness", "token lag, mean", [one.token_lag_mean for one in summaries])


def _costs(runs: Sequence[Compared]) -> Iterable[Row]:
    """Of the GPUs that a run holds, where each has a price: an hour of an H20 is 1."""
    costs = [run.cost for run in runs]
    if all(cost.price is None for cost in costs):
        return
    yield _row("cost", "GPUs", [cost.words or None for cost in costs])
    yield _row("cost", "price of an hour, H20 = 1", [cost.price for cost in costs])
    bought = tuple(cost.trained_tokens_per_s for cost in costs)
    name = "trained tokens/s for a price of 1"
    yield Row(section="cost", name=name, values=bought, shown=_each(count, bought))


def _step_s(summary: RunSummary) -> float | None:
    return summary.train_s / summary.steps if summary.steps else None


def _ledgers(runs: Sequence[Compared]) -> Iterable[Row]:
    ledgers = [run.summary.ledger for run in runs]
    yield _row("ledger", "started", [ledger.started for ledger in ledgers])
    names = dict.fromkeys(name for ledger in ledgers for name, _ in ledger.dispositions)
    for name in names:
        shares = [
            dict(ledger.dispositions).get(name, 0) / ledger.started if ledger.started else None
            for ledger in ledgers
        ]
        if any(shares):
            yield _shares("ledger", name.replace("_", " "), shares)


def _classes(runs: Sequence[Compared]) -> Iterable[Row]:
    """What devices did and waited for, by hardware class and role."""
    tables = [{_class(one): one for one in run.summary.idle.classes} for run in runs]
    for name in dict.fromkeys(name for table in tables for name in table):
        members = [table.get(name) for table in tables]
        yield _row(name, "devices", [one.devices if one else None for one in members])
        for cause in Cause:
            shares = [dict(one.shares)[cause.value] if one else None for one in members]
            if cause is Cause.BUSY or any(shares):
                yield _shares(name, cause.value.replace("_", " "), shares)
        wasted = [sum(share for _, share in one.wasted) if one else None for one in members]
        if any(wasted):
            yield _shares(name, "of busy, untrained", wasted)


def _class(one: ClassAccount) -> str:
    return f"{one.hardware} {one.role}"


def _row(section: str, name: str, values: Sequence[Value], digits: int = 2) -> Row:
    return Row(
        section=section,
        name=name,
        values=tuple(values),
        shown=tuple(_written(value, digits) for value in values),
    )


def _written(value: Value, digits: int) -> str:
    if isinstance(value, float):
        return number(value, digits)
    return UNKNOWN if value is None else str(value)


def _shares(section: str, name: str, values: Sequence[float | None]) -> Row:
    shown = tuple(UNKNOWN if value is None else f"{100 * value:.1f} %" for value in values)
    return Row(section=section, name=name, values=tuple(values), shown=shown)


def _each(write: Callable[[float | None], str], values: Iterable[float | None]) -> tuple[str, ...]:
    return tuple(write(value) for value in values)


# -- forms ---------------------------------------------------------------------------------------


def json_object(runs: Sequence[Compared]) -> dict[str, object]:
    """The object that `rollart compare --json` prints: lists follow the order of `runs`."""
    measures: dict[str, dict[str, list[Value]]] = {}
    for row in rows_of(runs):
        measures.setdefault(row.section, {})[row.name] = list(row.values)
    return {
        "runs": [run.name for run in runs],
        "measures": measures,
        "keys": {name: list(values) for name, values in differences(runs).items()},
    }


def tables(runs: Sequence[Compared]) -> "RenderableType":
    """The comparison for a terminal: measures, then the keys that differ."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def begun(title: str, first: str) -> Table:
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        table.add_column(first)
        for run in runs:
            table.add_column(Text(run.name), justify="right", overflow="fold")
        return table

    measures = begun("Runs side by side", "what")
    section = ""
    for row in rows_of(runs):
        if row.section != section:
            section = row.section
            measures.add_section()
            measures.add_row(Text(section, style="bold"))
        measures.add_row(Text(f"  {row.name}"), *(Text(value) for value in row.shown))
    found = differences(runs)
    if not found:
        return Group(measures, Text("Neither jobs nor worlds differ in a key that is known."))
    keys = begun("What the jobs and worlds differ in", "key")
    for name, values in found.items():
        keys.add_row(Text(name), *(Text(UNKNOWN if v is None else v) for v in values))
    return Group(measures, keys)
