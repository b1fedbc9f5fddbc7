"""FrozenLake 4x4 as compact text, on random solvable maps that do not slip.

Owns the wording of observations and the reward; the dynamics are Gymnasium's ``FrozenLake-v1``.
Invariant: (task, seed, actions) determine the episode, so a lost one is rebuilt by replay.
Blocks for microseconds; nothing waits here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rollart.backends.envs.frozen_lake_baselines import measure_baselines
from rollart.backends.envs.frozen_lake_maps import (
    FROZEN_PROBABILITY,
    MOVES,
    SIZE,
    distances,
    heldout_maps,
    neighbour,
    rows_of,
    training_map,
    training_maps,
)
from rollart.core.types import JsonValue, Message, Observation, StepResult, Task

if TYPE_CHECKING:
    import gymnasium

ACTIONS = tuple(MOVES)
EDGE = "#"
BASELINE_TRAINING_MAPS = 500


class FrozenLake:
    """Walk from the top left to the bottom right of a frozen lake without entering a hole.

    The first observation tells the whole map, a word a cell (``12H``: row 1, column 2 is a hole),
    then, as every later one, the position (``@10``) and the four neighbours (``left:#`` is the
    edge). The agent answers with one word: left, down, right or up.

    Each turn's reward is 0 except the last one's: at the goal 1 - ``step_cost`` * steps taken,
    ``invalid_reward`` for any answer that is not exactly one action (which ends the episode); in a
    hole or after ``max_steps``, ``progress`` times the share of the way from start to goal that the
    last safe cell has made, so that members of a group who all fail still differ by who came
    further, and who strayed into a dead end. Metrics: ``success``, ``steps``, ``invalid``.
    """

    replayable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        frozen: float = FROZEN_PROBABILITY,
        max_steps: int = 20,
        step_cost: float = 0.02,
        invalid_reward: float = -0.5,
        progress: float = 0.0,
    ) -> None:
        """Take the domain's options; ``frozen`` only shapes which maps are drawn.

        Raises ValueError for a probability outside (0, 1], an episode without steps, or a progress
        that would pay as much as the latest success.
        """
        if not 0 < frozen <= 1:
            raise ValueError(f"frozen = {frozen}: a probability in (0, 1], for example 0.7")
        if max_steps < 1:
            raise ValueError(f"max_steps = {max_steps}: at least 1, for example 20")
        latest = 1.0 - step_cost * max_steps
        if progress and not 0 < progress < latest:
            raise ValueError(
                f"progress = {progress}: 0, or above 0 and below the {latest:g} that a success "
                f"after max_steps = {max_steps} is worth, for example {max(latest / 2, 0):g}"
            )
        self._max_steps = max_steps
        self._progress = progress
        self._step_cost = step_cost
        self._invalid_reward = invalid_reward
        self._lake = ""
        self._rows: list[str] = []
        self._to_goal: dict[tuple[int, int], int] = {}
        self._env: gymnasium.Env | None = None
        self._cell = (0, 0)
        self._steps = 0

    def reset(self, task: Task, seed: int) -> Observation:
        """Start on the map in the payload's ``map``; raises ValueError if that is no 4x4 map."""
        lake = task.payload.get("map")
        rows = rows_of(lake) if isinstance(lake, str) else []
        if len(rows) != SIZE:
            raise ValueError(
                f"task {task.key!r} has map {lake!r}: give {SIZE} rows joined by '/', "
                "for example {'map': 'SFFF/FHFH/FFFH/HFFG'}"
            )
        if self._env is None or lake != self._lake:
            import gymnasium

            # Building costs 0.25 ms, a reset 0.02 ms: keep the environment while the map stays.
            self.close()
            self._env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False).unwrapped
            self._lake, self._rows, self._to_goal = str(lake), rows, distances(rows)
        state, _ = self._env.reset(seed=seed)
        self._cell = divmod(int(state), SIZE)
        self._steps = 0
        return _as_user(f"{self._map_words()} {self._view()}")

    def step(self, action: str) -> StepResult:
        """Play one action; raises RuntimeError before the first ``reset``."""
        if self._env is None:
            raise RuntimeError("step before reset: reset the environment with a task first")
        self._steps += 1
        word = action.strip()
        if word not in MOVES:
            return self._result(reward=self._invalid_reward, invalid=True)
        state, goal_reward, ended, _, _ = self._env.step(ACTIONS.index(word))
        before, self._cell = self._cell, divmod(int(state), SIZE)
        if float(goal_reward) > 0:
            reward = 1.0 - self._step_cost * self._steps
            return self._result(reward=reward, success=True)
        if not ended and self._steps < self._max_steps:
            return self._result(reward=0.0, done=False)
        return self._result(reward=self._progress * self._way_made(before if ended else self._cell))

    def close(self) -> None:
        """Let Gymnasium's environment go; another ``reset`` builds a new one."""
        if self._env is not None:
            self._env.close()
            self._env = None

    @staticmethod
    def train_tasks(
        seed: int, *, frozen: float = FROZEN_PROBABILITY, **_options: object
    ) -> Iterator[dict[str, JsonValue]]:
        """The endless training sequence of ``seed``; no held-out map is ever in it."""
        for lake in training_maps(seed, frozen=frozen):
            yield {"map": lake}

    @staticmethod
    def heldout_tasks(
        count: int, seed: int, *, frozen: float = FROZEN_PROBABILITY, **_options: object
    ) -> Sequence[dict[str, JsonValue]]:
        """``count`` distinct maps of the held-out side; raises ValueError if there are fewer."""
        return [{"map": lake} for lake in heldout_maps(count, seed, frozen=frozen)]

    @staticmethod
    def baselines(
        tasks: Sequence[Mapping[str, JsonValue]],
        *,
        frozen: float = FROZEN_PROBABILITY,
        **_options: object,
    ) -> Mapping[str, float]:
        """Success on ``tasks`` of the best blind sequence and of "right if free, else down"."""
        searched = [
            training_map(0, index, frozen=frozen) for index in range(BASELINE_TRAINING_MAPS)
        ]
        measured = measure_baselines(searched, [str(task["map"]) for task in tasks])
        return {
            "best fixed action sequence": measured.fixed_sequence_success,
            "right if free, else down": measured.right_else_down_success,
        }

    def _map_words(self) -> str:
        return " ".join(
            f"{row}{column}{kind}"
            for row, cells in enumerate(self._rows)
            for column, kind in enumerate(cells)
        )

    def _view(self) -> str:
        words = [f"@{self._cell[0]}{self._cell[1]}"]
        for action in ACTIONS:
            there = neighbour(*self._cell, action)
            words.append(f"{action}:{self._rows[there[0]][there[1]] if there else EDGE}")
        return " ".join(words)

    def _way_made(self, cell: tuple[int, int]) -> float:
        """Share of the start's distance to the goal that is behind this cell; may be below 0."""
        start = self._to_goal.get((0, 0))
        return 0.0 if not start else 1.0 - self._to_goal[cell] / start

    def _result(
        self, *, reward: float, done: bool = True, success: bool = False, invalid: bool = False
    ) -> StepResult:
        return StepResult(
            observation=_as_user(self._view()),
            reward=reward,
            done=done,
            metrics=(
                ("success", float(success)),
                ("steps", float(self._steps)),
                ("invalid", float(invalid)),
            ),
        )


def _as_user(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))


def vocabulary() -> tuple[str, ...]:
    """Every word that observations and actions can hold, for a tokenizer made for this lake."""
    cells = [f"{row}{column}" for row in range(SIZE) for column in range(SIZE)]
    return (
        *ACTIONS,
        *(f"{cell}{kind}" for cell in cells for kind in "SFHG"),
        *(f"@{cell}" for cell in cells),
        *(f"{action}:{kind}" for action in ACTIONS for kind in f"SFHG{EDGE}"),
    )
