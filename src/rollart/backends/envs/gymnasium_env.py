"""Any Gymnasium environment as a text environment: actions by name, observations as text.

Owns the translation only; what happens is the environment's own. It may block or crash and so
belongs in a child process. Not declared replayable: a seed does not determine every environment.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rollart.core.types import Message, Observation, StepResult, Task

if TYPE_CHECKING:
    import gymnasium

ActionParser = Callable[[str], Any]
"""The agent's text to an action; None where the text is no action."""

Formatter = Callable[[object, str | None], str]
"""(observation, `ansi` rendering or None) to what the agent reads."""

_HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]*m(.)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def default_format(observation: object, rendering: str | None) -> str:
    """The rendering, a highlighted character in brackets, then the raw observation.

    Terminals show the agent's place as a colour, which text would lose: ``[S]FFF``.
    """
    lines = [f"observation: {observation}"]
    if rendering is not None:
        lines.insert(0, _ESCAPE.sub("", _HIGHLIGHTED.sub(r"[\1]", rendering)).strip("\n"))
    return "\n".join(lines)


class GymnasiumEnvironment:
    """One Gymnasium environment.

    Options:
        env: the registered id, such as ``CliffWalking-v1``.
        kwargs: keywords for ``gymnasium.make``.
        actions: a name for each discrete action, in order; the default names are 0, 1, 2, ...
        action_parser: import path ``module:function`` of an `ActionParser`, for other spaces.
        formatter: import path of a `Formatter`; the default is `default_format`.
        max_steps: answers an episode may have, invalid ones included; default the environment's
            own limit.
        invalid: what text that names no action does. ``end``: the episode ends with
            ``invalid_reward``. ``retry``: the environment does not move, the turn's reward is
            ``invalid_reward`` and the agent is told the valid names.
        invalid_reward: see above.
        success_return: the sum of rewards from which an episode counts as a success; default the
            environment's registered threshold, and without one no ``success`` is reported.

    Metrics: ``return``, ``steps``, ``invalid`` (answers that named no action), ``success``.
    """

    replayable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        env: str,
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        action_parser: str | None = None,
        formatter: str | None = None,
        max_steps: int | None = None,
        invalid: Literal["end", "retry"] = "end",
        invalid_reward: float = 0.0,
        success_return: float | None = None,
    ) -> None:
        """Build the environment; raises ValueError for options that do not fit it."""
        if invalid not in ("end", "retry"):
            raise ValueError(f"invalid = {invalid!r}: use 'end' or 'retry'")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps = {max_steps}: at least 1, or leave it out")
        self._env = _make(env, dict(kwargs or {}), max_steps)
        self._names = _action_names(self._env, actions) if action_parser is None else ()
        self._parse: ActionParser = _resolve(action_parser) if action_parser else self._by_name
        self._format: Formatter = _resolve(formatter) if formatter else default_format
        self._max_steps = max_steps
        self._retry = invalid == "retry"
        self._invalid_reward = invalid_reward
        threshold = self._env.spec.reward_threshold if self._env.spec else None
        self._success_return = success_return if success_return is not None else threshold
        self._steps = self._invalid = 0
        self._return = 0.0

    def reset(self, task: Task, seed: int) -> Observation:
        """Start an episode from ``seed``; the payload's ``options`` go to the environment."""
        options = task.payload.get("options")
        observation, _ = self._env.reset(
            seed=seed, options=dict(options) if isinstance(options, Mapping) else None
        )
        self._steps = self._invalid = 0
        self._return = 0.0
        text = self._text(observation)
        return _as_user(f"{text}\n{self._instruction()}" if self._names else text)

    def step(self, action: str) -> StepResult:
        """Play the action that ``action`` names."""
        self._steps += 1
        parsed = self._parse(action)
        if parsed is None:
            return self._refuse(action)
        observation, reward, terminated, truncated, _ = self._env.step(parsed)
        self._return += float(reward)
        return self._result(self._text(observation), float(reward), terminated or truncated)

    def close(self) -> None:
        """Close the environment; it cannot be reset afterwards."""
        self._env.close()

    def _refuse(self, action: str) -> StepResult:
        self._invalid += 1
        self._return += self._invalid_reward
        shown = action if len(action) <= 40 else f"{action[:40]}..."
        said = f"{shown!r} is no action. {self._instruction()}".rstrip()
        return self._result(said, self._invalid_reward, not self._retry)

    def _result(self, text: str, reward: float, ended: bool) -> StepResult:
        metrics = [
            ("return", self._return),
            ("steps", float(self._steps)),
            ("invalid", float(self._invalid)),
        ]
        if self._success_return is not None:
            metrics.append(("success", float(self._return >= self._success_return)))
        return StepResult(
            observation=_as_user(text),
            reward=reward,
            done=ended or self._steps == self._max_steps,
            metrics=tuple(metrics),
        )

    def _by_name(self, text: str) -> int | None:
        word = text.strip().lower()
        return self._names.index(word) if word in self._names else None

    def _text(self, observation: object) -> str:
        rendering = self._env.render() if self._env.render_mode == "ansi" else None
        return self._format(observation, rendering if isinstance(rendering, str) else None)

    def _instruction(self) -> str:
        return f"Answer with one action: {', '.join(self._names)}." if self._names else ""


def _make(env: str, kwargs: dict[str, Any], max_steps: int | None) -> "gymnasium.Env":
    """The environment, rendering text where it can."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    creator = gymnasium.spec(env).entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    if "ansi" in getattr(creator, "metadata", {}).get("render_modes", ()):
        kwargs.setdefault("render_mode", "ansi")
    return gymnasium.make(env, max_episode_steps=max_steps, disable_env_checker=True, **kwargs)


def _action_names(env: "gymnasium.Env", actions: Sequence[str] | None) -> tuple[str, ...]:
    import gymnasium

    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Discrete) or int(space.start) != 0:
        raise ValueError(
            f"the environment's actions are {space}, not Discrete(n) from 0: "
            "give action_parser as 'module:function'"
        )
    names = tuple(str(name).lower() for name in actions or range(int(space.n)))
    if len(names) != int(space.n) or len(set(names)) != len(names):
        raise ValueError(
            f"actions = {list(names)}: the environment has {int(space.n)} actions; "
            "give that many different names, in the environment's order"
        )
    return names


def _resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name, None) if name else None
    if not callable(found):
        raise ValueError(f"{path!r} is no function: give an import path such as 'package:function'")
    return found


def _as_user(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))
