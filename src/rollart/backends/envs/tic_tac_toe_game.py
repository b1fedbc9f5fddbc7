"""Tic-tac-toe itself: boards, the opponent, simple players, and the split of the games.

A board is nine marks, row by row. Pure and single-threaded; nothing waits here. Owns the rule that
keeps evaluation honest: a game belongs to the held-out side or to the training side by its hash.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollart.core.types import JsonValue

CELLS = tuple("123456789")
AGENT, OPPONENT, FREE = "X", "O", "."
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
HELDOUT_BUCKETS = 4
MOST_HELDOUT = 10_000
"""Of some 90,000 on that side: distinct ones are still found quickly."""

Begins = Literal["agent", "opponent", "either"]
Player = Callable[[str, random.Random], int]
"""Chooses one of the free cells 0..8 of a board for the agent."""


def wins(board: str, mark: str) -> bool:
    """Whether ``mark`` holds a whole line."""
    return any(board[a] == board[b] == board[c] == mark for a, b, c in LINES)


def free_cells(board: str) -> list[int]:
    """The free cells, 0 to 8, ascending."""
    return [at for at, mark in enumerate(board) if mark == FREE]


def placed(board: str, at: int, mark: str) -> str:
    """The board after ``mark`` is put into cell ``at``."""
    return f"{board[:at]}{mark}{board[at + 1 :]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One game against the player at random: who begins, and all of its choices beforehand.

    The opponent plays the first free cell of ``order``, a permutation of the nine cells. Drawn
    uniformly and unseen, that is a uniform choice among the free cells at every turn.
    """

    begins: Literal["agent", "opponent"]
    order: str

    def reply(self, board: str) -> int:
        """The free cell, 0 to 8, that the opponent takes; there must be one."""
        return next(at for at in map(CELLS.index, self.order) if board[at] == FREE)

    def payload(self) -> dict[str, JsonValue]:
        """This game as a task's payload."""
        return {"begins": self.begins, "order": self.order}


def read_opening(key: str, payload: Mapping[str, JsonValue]) -> Opening:
    """The game in a task's payload; raises ValueError naming what is wrong with it."""
    begins, order = payload.get("begins"), payload.get("order")
    if begins not in ("agent", "opponent") or sorted(str(order)) != list(CELLS):
        raise ValueError(
            f"task {key!r} has begins {begins!r} and order {order!r}: say who begins and the "
            "order in which the opponent takes the nine cells, for example "
            "{'begins': 'agent', 'order': '531798264'}"
        )
    return Opening(begins="agent" if begins == "agent" else "opponent", order=str(order))


def is_heldout(opening: Opening) -> bool:
    """Whether the opponent's order is on the held-out side: one in ``HELDOUT_BUCKETS``."""
    digest = hashlib.blake2b(opening.order.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % HELDOUT_BUCKETS == 0


def draw_opening(rng: random.Random, *, begins: Begins) -> Opening:
    """One of the 362,880 orders, and who begins."""
    first = rng.choice(("agent", "opponent")) if begins == "either" else begins
    return Opening(begins=first, order="".join(rng.sample(CELLS, len(CELLS))))


def training_openings(seed: int, *, begins: Begins = "either") -> Iterator[Opening]:
    """The endless training sequence of ``seed``; never a held-out game."""
    rng = random.Random(f"tic-tac-toe-train:{seed}")
    while True:
        opening = draw_opening(rng, begins=begins)
        if not is_heldout(opening):
            yield opening


def heldout_openings(n: int, seed: int, *, begins: Begins = "either") -> tuple[Opening, ...]:
    """``n`` distinct held-out games; raises ValueError for more than ``MOST_HELDOUT``."""
    if n > MOST_HELDOUT:
        raise ValueError(f"n = {n}: use {MOST_HELDOUT} held-out games or less")
    rng = random.Random(f"tic-tac-toe-heldout:{seed}")
    found: dict[Opening, None] = {}
    while len(found) < n:
        opening = draw_opening(rng, begins=begins)
        if is_heldout(opening):
            found[opening] = None
    return tuple(found)


def random_player(board: str, rng: random.Random) -> int:
    """Any free cell with equal chances."""
    return rng.choice(free_cells(board))


def rule_player(board: str, rng: random.Random) -> int:
    """The cell that wins, else the one that keeps the opponent from winning, else any."""
    for mark in (AGENT, OPPONENT):
        for at in free_cells(board):
            if wins(placed(board, at, mark), mark):
                return at
    return random_player(board, rng)


def agent_wins(opening: Opening, player: Player, rng: random.Random) -> bool:
    """Play one game to its end; a draw is no win."""
    board = FREE * len(CELLS)
    if opening.begins == "opponent":
        board = placed(board, opening.reply(board), OPPONENT)
    while free_cells(board):
        board = placed(board, player(board, rng), AGENT)
        if wins(board, AGENT):
            return True
        if free_cells(board):
            board = placed(board, opening.reply(board), OPPONENT)
            if wins(board, OPPONENT):
                return False
    return False


def win_rate(openings: Sequence[Opening], player: Player, *, rounds: int) -> float:
    """Share of games won when each of ``openings`` is played ``rounds`` times."""
    rng = random.Random(f"baseline:{player.__name__}")
    games = [opening for opening in openings for _ in range(rounds)]
    if not games:
        raise ValueError("openings is empty: give at least one game")
    return sum(agent_wins(opening, player, rng) for opening in games) / len(games)
