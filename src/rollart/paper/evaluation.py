"""All rows, in the paper's order, and those that somebody asks for."""

from collections.abc import Sequence

from rollart.core.errors import ConfigError
from rollart.paper import (
    affinity,
    asynchrony,
    causes,
    pd,
    protocols,
    redundancy,
    rewards,
    scaling,
    weights,
)
from rollart.paper.effort import Effort
from rollart.paper.rows import Row


def all_rows(effort: Effort) -> list[Row]:
    """Micro-benchmarks, then end-to-end results, then their misses' causes taken away.

    Controls and sweeps stand behind their rows. A quick evaluation leaves the causes out.
    """
    return [
        *affinity.micro_rows(effort),
        *asynchrony.micro_rows(effort),
        *redundancy.micro_rows(effort),
        *weights.micro_rows(effort),
        *affinity.end_rows(effort),
        *rewards.end_rows(effort),
        *protocols.end_rows(effort),
        *scaling.end_rows(effort),
        *asynchrony.end_rows(effort),
        *weights.end_rows(effort),
        *pd.end_rows(effort),
        *([] if effort.is_quick else causes.cause_rows(effort)),
    ]


def chosen_rows(effort: Effort, wanted: Sequence[str]) -> list[Row]:
    """Rows by id, with what belongs to them; all, if none is named.

    Raises:
        ConfigError: a row is not known.
    """
    rows = all_rows(effort)
    known = [row.id for row in rows]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--rows {name}: no such row; use {', '.join(known)}")
    return [row for row in rows if not wanted or row.id in wanted or row.of in wanted]
