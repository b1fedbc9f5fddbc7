"""Environments of GEM (package ``gem-llm``) as text environments; actions in ``\\boxed{}``.

Owns the translation and the random state. GEM draws from Python's and numpy's global generators;
here each environment has states of its own, so that (task, seed, actions) determine an episode
also where several share a process. Importing this module imports GEM (4 s): a process that forks
environments pays once. May block in the environment, and so belongs in a child process.
"""

import difflib
import importlib
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from rollart.core.types import JsonValue, Message, Observation, StepResult, Task

BOXED = "Put your final answer inside \\boxed{}."
_GENERATED = "rg:"
_GAME = "game:"


def _import_gem() -> Any:
    """GEM, without the root logger's handler that it installs on import."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return importlib.import_module("gem")
    except ImportError as error:
        raise ImportError(
            f"GEM cannot be imported ({error}); install rollart's extra `gem`, then "
            "pip install --no-deps gem-llm==0.1.0"
        ) from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


gem: Any = _import_gem()


class GemEnvironment:
    """One GEM environment.

    Options:
        env: the registered id, such as ``game:GuessTheNumber-v0-easy`` or ``rg:basic_arithmetic``.
            Ids of ``math:``, ``code:`` and ``qa:`` download their data on first use.
        kwargs: keywords for ``gem.make``.
        instructions: a line after each episode's first text; by default `BOXED`, except in games,
            which explain themselves.
        success_reward: reward of a turn from which the episode counts as a success.

    A task is a seed: even ones for training, odd ones for evaluation. ``rg:`` environments make
    each question from it; a game with few worlds shows the same world under several seeds.
    Metrics: ``return``, ``steps``, ``success``.
    """

    replayable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        env: str,
        kwargs: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        success_reward: float = 1.0,
    ) -> None:
        """Take the options; raises ValueError for an id that GEM does not know."""
        known = importlib.import_module("gem.envs.registration").ENV_REGISTRY
        if env not in known:
            alike = difflib.get_close_matches(env, known, n=3, cutoff=0.4) or list(known)[:3]
            raise ValueError(f"env = {env!r}: GEM has no such environment; try {', '.join(alike)}")
        self._id = env
        self._kwargs = dict(kwargs or {})
        default = "" if env.startswith(_GAME) else BOXED
        self._instructions = default if instructions is None else instructions
        self._success_reward = success_reward
        self._env: Any = None
        self._random: tuple[Any, Any] | None = None
        self._steps = 0
        self._return = 0.0

    def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode of the payload's ``seed``, or of ``seed`` where it has none."""
        given = task.payload.get("seed")
        seed = (given if isinstance(given, int) else seed) % 2**32
        self._steps, self._return, self._random = 0, 0.0, None
        with self._own_random():
            if self._id.startswith(_GENERATED):
                # Its questions follow from a seed given when it is made, not from reset's.
                self._env = gem.make(self._id, **{"size": 1, "seed": seed, **self._kwargs})
            elif self._env is None:
                self._env = gem.make(self._id, **self._kwargs)
            text, info = self._env.reset(seed=seed)
        return _as_user("\n".join(filter(None, (_text(text, info), self._instructions))))

    def step(self, action: str) -> StepResult:
        """Give GEM the agent's text; raises RuntimeError before the first ``reset``."""
        if self._env is None:
            raise RuntimeError("step before reset: reset the environment with a task first")
        with self._own_random():
            text, reward, terminated, truncated, info = self._env.step(action)
        self._steps += 1
        self._return += float(reward)
        return StepResult(
            observation=_as_user(_text(text, info)),
            reward=float(reward),
            done=bool(terminated or truncated),
            metrics=(
                ("return", self._return),
                ("steps", float(self._steps)),
                ("success", float(float(reward) >= self._success_reward)),
            ),
        )

    @staticmethod
    def train_tasks(seed: int, **_options: object) -> Iterator[dict[str, JsonValue]]:
        """Endless even seeds."""
        rng = random.Random(f"gem-train:{seed}")
        while True:
            yield {"seed": 2 * rng.randrange(2**31)}

    @staticmethod
    def heldout_tasks(count: int, seed: int, **_options: object) -> Sequence[dict[str, JsonValue]]:
        """``count`` distinct odd seeds."""
        rng = random.Random(f"gem-heldout:{seed}")
        return [{"seed": 2 * number + 1} for number in rng.sample(range(2**31), count)]

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Global generators in this environment's state within, in their own after."""
        outside = random.getstate(), np.random.get_state()
        if self._random is not None:
            random.setstate(self._random[0])
            np.random.set_state(self._random[1])
        try:
            yield
        finally:
            self._random = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])


def _text(text: object, info: Mapping[str, Any]) -> str:
    """An observation with the request that GEM's own wrappers put after it."""
    suffix = info.get("suffix")
    return f"{text}\n{suffix}" if suffix and not str(text).endswith(str(suffix)) else str(text)


def _as_user(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))
