"""What scores on FrozenLake without learning: the bars that a trained agent must clear.

Pure functions over maps; both baselines are scored on the same held-out maps as the agent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollart.backends.envs.frozen_lake_maps import MOVES, SIZE, neighbour, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Success rates in [0, 1] on ``heldout_count`` maps."""

    fixed_sequence: tuple[str, ...]
    fixed_sequence_success: float
    right_else_down_success: float
    heldout_count: int

    @property
    def best(self) -> float:
        """The better of the two."""
        return max(self.fixed_sequence_success, self.right_else_down_success)


def sequence_succeeds(lake: str, actions: Sequence[str]) -> bool:
    """Whether playing ``actions`` without looking reaches the goal."""
    rows = rows_of(lake)
    cell = (0, 0)
    for action in actions:
        cell = neighbour(*cell, action, len(rows)) or cell
        if rows[cell[0]][cell[1]] in "GH":
            break
    return rows[cell[0]][cell[1]] == "G"


def right_else_down_succeeds(lake: str) -> bool:
    """Whether going right where that is free, else down, reaches the goal."""
    rows = rows_of(lake)
    row = column = 0
    while rows[row][column] in "SF":
        right = neighbour(row, column, "right", len(rows))
        if right and rows[right[0]][right[1]] != "H":
            row, column = right
            continue
        down = neighbour(row, column, "down", len(rows))
        if down is None:
            return False
        row, column = down
    return rows[row][column] == "G"


def _simple_paths(
    cell: tuple[int, int] = (0, 0), visited: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every walk from start to goal that enters no cell twice (184), its cells as bits."""
    bit = 1 << (cell[0] * SIZE + cell[1])
    if cell == (SIZE - 1, SIZE - 1):
        yield (), bit
        return
    for action in MOVES:
        there = neighbour(*cell, action)
        if there and there not in visited:
            for actions, cells in _simple_paths(there, (*visited, cell)):
                yield (action, *actions), cells | bit


def best_fixed_sequence(training_maps: Sequence[str]) -> tuple[str, ...]:
    """The action sequence that reaches the goal on most of ``training_maps``.

    Exact: without slipping, a blind sequence visits the same cells on every map and succeeds where
    none of them is a hole, so some walk that enters no cell twice is at least as good as any other.
    """
    holes = [
        sum(1 << at for at, kind in enumerate("".join(rows_of(lake))) if kind == "H")
        for lake in training_maps
    ]
    actions, _ = max(
        _simple_paths(),
        key=lambda path: (sum(not path[1] & hole for hole in holes), -len(path[0])),
    )
    return actions


def measure_baselines(training_maps: Sequence[str], heldout: Iterable[str]) -> Baselines:
    """Search the blind sequence on ``training_maps``, score both baselines on ``heldout``."""
    sequence = best_fixed_sequence(training_maps)
    lakes = tuple(heldout)
    if not lakes:
        raise ValueError("heldout is empty: give at least one held-out map")
    return Baselines(
        fixed_sequence=sequence,
        fixed_sequence_success=sum(sequence_succeeds(m, sequence) for m in lakes) / len(lakes),
        right_else_down_success=sum(map(right_else_down_succeeds, lakes)) / len(lakes),
        heldout_count=len(lakes),
    )
