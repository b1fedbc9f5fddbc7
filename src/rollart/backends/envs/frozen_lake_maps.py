"""FrozenLake maps as text: drawing, solvability, and the split between training and held-out maps.

Owns the one rule that keeps evaluation honest: a map belongs to the held-out side or to the
training side by its own hash, whatever seed drew it. Pure and single-threaded; nothing waits here.

A map is written row by row, rows separated by a slash: ``SFFF/FHFH/FFFH/HFFG`` (start, frozen,
hole, goal).
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

SIZE = 4
FROZEN_PROBABILITY = 0.7
HELDOUT_BUCKETS = 4
MOVES: dict[str, tuple[int, int]] = {
    "left": (0, -1),
    "down": (1, 0),
    "right": (0, 1),
    "up": (-1, 0),
}


def derived_rng(*parts: object) -> random.Random:
    """A generator seeded by the text of ``parts``: the same in every process and hash seed."""
    return random.Random(":".join(str(part) for part in parts))


def rows_of(lake: str) -> list[str]:
    """Split a map into its rows.

    Raises ValueError unless the map is square, starts top left and has its goal bottom right.
    """
    rows = lake.split("/")
    square = all(len(row) == len(rows) for row in rows)
    if not square or set(lake) - set("SFHG/") or lake[0] != "S" or lake[-1] != "G":
        raise ValueError(
            f"{lake!r} is not a lake map: write square rows of S, F, H, G joined by '/', "
            "S first and G last, for example 'SFFF/FHFH/FFFH/HFFG'"
        )
    return rows


def neighbour(row: int, column: int, action: str, size: int = SIZE) -> tuple[int, int] | None:
    """The cell one move away, or None beyond the edge."""
    row_step, column_step = MOVES[action]
    there = (row + row_step, column + column_step)
    return there if 0 <= there[0] < size and 0 <= there[1] < size else None


def distances(rows: Sequence[str]) -> dict[tuple[int, int], int]:
    """Moves to the goal on the shortest way without a hole, by cell; only cells that have one."""
    size = len(rows)
    found = {(size - 1, size - 1): 0}
    frontier = list(found)
    for cell in frontier:  # it grows while it is walked: breadth first
        for action in MOVES:
            there = neighbour(*cell, action, size=size)
            if there and there not in found and rows[there[0]][there[1]] != "H":
                found[there] = found[cell] + 1
                frontier.append(there)
    return found


def is_solvable(lake: str) -> bool:
    """Whether the goal can be reached from the start without touching a hole."""
    return (0, 0) in distances(rows_of(lake))


def is_heldout(lake: str) -> bool:
    """Whether the map's hash puts it on the held-out side: one map in ``HELDOUT_BUCKETS``."""
    digest = hashlib.blake2b(lake.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % HELDOUT_BUCKETS == 0


def draw_map(rng: random.Random, *, frozen: float = FROZEN_PROBABILITY) -> str:
    """One solvable map; every inner cell is frozen with probability ``frozen``, else a hole."""
    while True:
        cells = "".join("F" if rng.random() < frozen else "H" for _ in range(SIZE * SIZE - 2))
        cells = f"S{cells}G"
        lake = "/".join(cells[start : start + SIZE] for start in range(0, SIZE * SIZE, SIZE))
        if is_solvable(lake):
            return lake


def training_map(seed: int, index: int, *, frozen: float = FROZEN_PROBABILITY) -> str:
    """Map ``index`` of the training sequence of ``seed``; never a held-out one."""
    rng = derived_rng("frozen-lake-train", seed, index)
    while is_heldout(lake := draw_map(rng, frozen=frozen)):
        pass
    return lake


def heldout_maps(n: int, seed: int, *, frozen: float = FROZEN_PROBABILITY) -> tuple[str, ...]:
    """``n`` distinct held-out maps, in the order in which ``seed`` first draws them.

    Raises ValueError when 200 draws a wanted map do not bring that many distinct ones.
    """
    rng = derived_rng("frozen-lake-heldout", seed)
    found: dict[str, None] = {}
    for _ in range(200 * n):
        if len(found) == n:
            break
        lake = draw_map(rng, frozen=frozen)
        if is_heldout(lake):
            found[lake] = None
    if len(found) < n:
        raise ValueError(
            f"n = {n}: only {len(found)} distinct held-out maps were found at frozen = {frozen}; "
            f"ask for at most {len(found)}, or bring frozen nearer to 0.6"
        )
    return tuple(found)


def training_maps(
    seed: int, *, start: int = 0, frozen: float = FROZEN_PROBABILITY
) -> Iterator[str]:
    """The endless training sequence of ``seed`` from map ``start`` on; maps may come again."""
    index = start
    while True:
        yield training_map(seed, index, frozen=frozen)
        index += 1
