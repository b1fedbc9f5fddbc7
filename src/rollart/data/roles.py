"""Worker and the four roles: classes that users derive from.

Invariant: a role's own method is what happens without the user's code; `super()` reaches it.
Which process runs which: `ActorGen` and `ActorTrain` live beside control and must not block (they
only await); a `Reward` and an `Environment` live in killable children and may do anything.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rollart.core.errors import ConfigError


class Worker:
    """User logic in a process of its own, with declarations on its methods.

    `worker` and `hardware` are its name and class of hardware, set before any method is called.
    """

    worker: str = ""
    hardware: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn to sample: for whom (`tag_name`, the domain) and what was asked.

    `call` is the control plane's own record, a `rollart.control.llm_proxy.GenerateCall`, to which
    this module is a stranger. To be read: `trajectory` and `turn` (of whom, and which), `prompt`
    (blocks of token ids), `temperature`, `max_tokens`, `seed`. Only the last two may be changed,
    `max_tokens` to a smaller one:
    ``dataclasses.replace(request, call=dataclasses.replace(request.call, max_tokens=8))``.
    The rest is what training takes the tokens to be sampled from; another fails the trajectory.
    """

    tag_name: str
    call: Any


class ActorGen(Worker):
    """Generation. Every turn that is sampled goes through `generate`, on the control loop."""

    _engines: Callable[[GenerationRequest], Awaitable[Any]] | None = None

    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        """Sample on an engine of the tag's hardware class; the answer is to be returned.

        Raises:
            ConfigError: `tag_name` is another domain's, or there are no engines.
        """
        if tag_name not in ("default", request.tag_name):
            raise ConfigError(
                f"generate(tag_name={tag_name!r}): the request is of domain {request.tag_name!r}; "
                "pass tag_name on as it came"
            )
        if self._engines is None:
            raise ConfigError(
                f"{type(self).__name__}.generate: there are no engines; give the class to "
                "rollart.run(actor_gen=...)"
            )
        return await self._engines(request)

    def attach(self, engines: Callable[[GenerationRequest], Awaitable[Any]]) -> None:
        """What `generate` reaches."""
        self._engines = engines


class ActorTrain(Worker):
    """Training. Every train step goes through `train_step`, on the control loop."""

    _trainer: Callable[[Any], Awaitable[Any]] | None = None

    async def train_step(self, batch: Any, tag_name: str = "default") -> Any:
        """Train on the batch; the statistics are to be returned.

        Raises `ConfigError` when there is no trainer.
        """
        if self._trainer is None:
            raise ConfigError(
                f"{type(self).__name__}.train_step: there is no trainer; give the class to "
                "rollart.run(actor_train=...)"
            )
        return await self._trainer(batch)

    def attach(self, trainer: Callable[[Any], Awaitable[Any]]) -> None:
        """What `train_step` reaches."""
        self._trainer = trainer


class Reward(Worker):
    """Scores finished trajectories, in a killable child: it may block, crash or hang.

    A subclass defines `compute_rewards(self, trajectory)`, plain or ``async``, which returns a
    number or a `Verdict`; what it raises is "no verdict" with the reason.
    """


class Environment(Worker):
    """One episode after another, in a killable child; the domain's `options` are its keywords.

    A subclass defines `reset(self, task, seed)` and `step(self, action)`, plain or ``async``, and
    what else an environment class may have (see `rollart.core.authoring.UserEnvironment`).
    """
