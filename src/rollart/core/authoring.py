"""What a user writes: an environment and a reward, as plain classes.

Invariant: this code runs in child processes only, so it may block, crash or hang; control sees it
through the `Environment` and `Reward` ports. Methods may be plain or `async`.
"""

import inspect
from collections.abc import Awaitable
from typing import ClassVar, Literal, Protocol

from rollart.core.types import (
    Message,
    Observation,
    StepResult,
    Task,
)


class UserEnvironment(Protocol):
    """An environment class: `options` of the job's domain become constructor keywords.

    Optional class attributes and methods:
        replayable: bool. True promises that (task, seed, actions) determine the episode; several
            such environments may share a child, and are rebuilt by replay if that child dies.
        train_tasks(seed, **options) -> Iterator[Task payload]: class or static method; without
            it, tasks are empty payloads with distinct keys and only the seed differs.
        heldout_tasks(count, seed, **options) -> Sequence[Task payload]: tasks for evaluation,
            distinct and never met in training.
        baselines(tasks, **options) -> Mapping[str, float]: success of simple policies on them.

    An environment that needs the agent's tool calls is a `UserMessageEnvironment`.
    """

    def reset(self, task: Task, seed: int) -> Observation | str | Awaitable[Observation | str]:
        """Begin an episode."""
        ...

    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Act; `action` is the agent's text."""
        ...


class UserMessageEnvironment(Protocol):
    """As `UserEnvironment`, but `step` takes the agent's whole message, tool calls and all."""

    wants_message: ClassVar[Literal[True]]

    def reset(self, task: Task, seed: int) -> Observation | str | Awaitable[Observation | str]:
        """Begin an episode; the tools are declared on one of the messages (`Message.tools`)."""
        ...

    def step(self, action: Message) -> StepResult | Awaitable[StepResult]:
        """Act; calls are answered by messages of role `tool` that carry their `tool_call_id`."""
        ...


def wants_message(environment: object) -> bool:
    """Whether the environment's `step` takes the agent's whole message instead of its text."""
    return bool(getattr(environment, "wants_message", False))


def as_observation(value: object) -> Observation:
    """An observation as a user may return it: a string is one user message.

    Raises `TypeError` naming what was returned.
    """
    if isinstance(value, Observation):
        return value
    if isinstance(value, str):
        return Observation(messages=(Message(role="user", content=value),))
    raise TypeError(
        f"an environment returned {type(value).__name__} as observation; "
        "return a str or a rollart Observation"
    )


def environment_misfit(candidate: object) -> str | None:
    """Why `candidate` cannot serve as an environment class, or None."""
    if not inspect.isclass(candidate):
        return f"is {type(candidate).__name__}, not a class"
    for method, parameters in (("reset", ("task", "seed")), ("step", ("action",))):
        found = getattr(candidate, method, None)
        if not callable(found):
            return f"has no method {method}({', '.join(parameters)})"
        try:
            inspect.signature(found).bind(None, *parameters)
        except TypeError:
            return f"has a method {method} that does not take ({', '.join(parameters)})"
    return None


def reward_misfit(candidate: object) -> str | None:
    """Why `candidate` cannot serve as a reward function, or None."""
    if not callable(candidate) or inspect.isclass(candidate):
        return f"is {type(candidate).__name__}, not a function of one trajectory"
    try:
        inspect.signature(candidate).bind(None)
    except TypeError:
        return "does not take exactly one argument, the trajectory"
    return None
