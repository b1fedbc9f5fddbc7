"""Tic-tac-toe against a player who moves at random, as compact text.

Owns the wording of observations and the reward; the game itself is in ``tic_tac_toe_game``.
Invariant: (task, actions) determine the episode, so a lost one is rebuilt by replay.
Blocks for microseconds; nothing waits here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rollart.backends.envs.tic_tac_toe_game import (
    AGENT,
    CELLS,
    FREE,
    OPPONENT,
    Begins,
    Opening,
    free_cells,
    heldout_openings,
    placed,
    random_player,
    read_opening,
    rule_player,
    training_openings,
    win_rate,
    wins,
)
from rollart.core.types import JsonValue, Message, Observation, StepResult, Task

ACTIONS = CELLS
OUTCOMES = ("won", "lost", "draw", "invalid")
BASELINE_GAMES = 4


class TicTacToe:
    """Get three of one's marks in a line before the other player does.

    The cells are numbered 1 to 9, row by row. The agent answers with the number of a free cell; an
    observation is the cell that the opponent took, so that the moves so far are the board. Either
    side may begin: where the agent does, it first sees ``begin``. The last observation says
    ``won``, ``lost``, ``draw`` or ``invalid``. The opponent takes every free cell with equal
    chances.

    Each turn's reward is 0 except the last one's: 1 for a win, ``draw_reward`` for a draw,
    ``loss_reward`` for a defeat, ``invalid_reward`` for any answer that is not exactly one free
    cell, which ends the game. Metrics: ``success`` (1 for a win alone: a draw is none), ``draw``,
    ``invalid``.
    """

    replayable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        begins: Begins = "either",
        draw_reward: float = 0.2,
        loss_reward: float = -0.5,
        invalid_reward: float = -1.0,
    ) -> None:
        """Take the domain's options; ``begins`` only shapes which tasks are drawn."""
        if begins not in ("agent", "opponent", "either"):
            raise ValueError(f'begins = {begins!r}: "agent", "opponent" or "either"')
        self._draw_reward = draw_reward
        self._loss_reward = loss_reward
        self._invalid_reward = invalid_reward
        self._opening: Opening | None = None
        self._board = FREE * len(CELLS)

    def reset(self, task: Task, seed: int) -> Observation:
        """Start the game in the payload (``begins``, ``order``); ``seed`` changes nothing.

        ``order`` is the opponent's: all nine cells, of which it always plays the first free one.
        Raises ValueError if the payload holds no such game.
        """
        self._opening = read_opening(task.key, task.payload)
        self._board = FREE * len(CELLS)
        return self._seen(
            "begin" if self._opening.begins == "agent" else self._reply(self._opening)
        )

    def step(self, action: str) -> StepResult:
        """Play one cell and the opponent's answer; raises RuntimeError before a ``reset``."""
        if self._opening is None:
            raise RuntimeError("step before reset: reset the environment with a task first")
        word = action.strip()
        at = CELLS.index(word) if word in CELLS else None
        if at is None or self._board[at] != FREE:
            return self._ended("invalid", self._invalid_reward)
        self._board = placed(self._board, at, AGENT)
        if wins(self._board, AGENT):
            return self._ended("won", 1.0)
        seen = self._reply(self._opening) if free_cells(self._board) else ""
        if wins(self._board, OPPONENT):
            return self._ended("lost", self._loss_reward)
        if not free_cells(self._board):
            return self._ended("draw", self._draw_reward)
        return StepResult(observation=self._seen(seen), reward=0.0)

    @staticmethod
    def train_tasks(
        seed: int, *, begins: Begins = "either", **_options: object
    ) -> Iterator[dict[str, JsonValue]]:
        """The endless training sequence of ``seed``; no held-out game is ever in it."""
        for opening in training_openings(seed, begins=begins):
            yield opening.payload()

    @staticmethod
    def heldout_tasks(
        count: int, seed: int, *, begins: Begins = "either", **_options: object
    ) -> Sequence[dict[str, JsonValue]]:
        """``count`` distinct games of the held-out side."""
        return [opening.payload() for opening in heldout_openings(count, seed, begins=begins)]

    @staticmethod
    def baselines(
        tasks: Sequence[Mapping[str, JsonValue]], **_options: object
    ) -> Mapping[str, float]:
        """Share of ``tasks`` won by a player at random and by one that wins or blocks at sight."""
        openings = [read_opening("baseline", task) for task in tasks]
        return {
            "random free cell": win_rate(openings, random_player, rounds=BASELINE_GAMES),
            "win or block if possible, else random": win_rate(
                openings, rule_player, rounds=BASELINE_GAMES
            ),
        }

    def _reply(self, opening: Opening) -> str:
        """Let the opponent move; the word that tells where."""
        at = opening.reply(self._board)
        self._board = placed(self._board, at, OPPONENT)
        return CELLS[at]

    @staticmethod
    def _seen(text: str) -> Observation:
        return Observation(messages=(Message(role="user", content=text),))

    def _ended(self, how: str, reward: float) -> StepResult:
        return StepResult(
            observation=self._seen(how),
            reward=reward,
            done=True,
            metrics=(
                ("success", float(how == "won")),
                ("draw", float(how == "draw")),
                ("invalid", float(how == "invalid")),
            ),
        )


def vocabulary() -> tuple[str, ...]:
    """Every word that observations and actions can hold, for a tokenizer made for this game."""
    return (*ACTIONS, "begin", *OUTCOMES)
