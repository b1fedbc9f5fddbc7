"""The environments' child: holds several environments of one domain and serves them in a row.

Owns the instances, one a place, reused from episode to episode; one whose code raised is dropped
and built anew for the next episode. Blocks in user code, which is the reason for its existence:
the owner kills this process when that takes too long.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.authoring import as_observation, wants_message
from rollart.core.errors import FailureKind
from rollart.core.types import StepResult
from rollart.process.serve import ChildPort
from rollart.runtimes.local.codec import (
    Packed,
    pack_observation,
    pack_step_result,
    unpack_message,
    unpack_task,
)
from rollart.runtimes.local.user_code import Caller, describe, load, show_prints_at_once

ENTRY = "rollart.runtimes.local.env_host:entry"
RESET, STEP = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvHostConfig:
    """Import path of the class, and its constructor's keywords."""

    environment: str
    options: dict[str, Any]


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: one event ``[True, result]`` or ``[False, kind, detail]`` a job."""
    settings = msgspec.convert(config, EnvHostConfig)
    show_prints_at_once()
    host = EnvironmentHost(load(settings.environment), settings.options)
    port.ready()
    while not port.stopping:
        for request in port.requests(None):
            port.event(host.perform(*request.args))


class EnvironmentHost:
    """The environments of this process, by place."""

    def __init__(self, environment: Any, options: Mapping[str, Any]) -> None:
        self._environment = environment
        self._options = options
        self._whole_message = wants_message(environment)
        self._instances: dict[int, Any] = {}
        self._caller = Caller()

    def perform(self, place: int, operation: int, *args: Any) -> Packed:
        """Reset or step one environment; never raises for what user code does."""
        kind = FailureKind.ENV_RESET if operation == RESET else FailureKind.ENV_STEP
        try:
            if operation == STEP:
                message = unpack_message(*args)
                action = message if self._whole_message else message.content
                result = self._caller.call(self._instances[place].step, action)
                return (True, pack_step_result(fit_step_result(result)))
            kind = FailureKind.ENV_OPEN
            instance = self._instance(place)
            kind = FailureKind.ENV_RESET
            task, seed = args
            observation = self._caller.call(instance.reset, unpack_task(task), seed)
            return (True, pack_observation(as_observation(observation)))
        except BaseException as error:  # also sys.exit() in user code: it fails one episode only
            self._instances.pop(place, None)
            return (False, kind.value, describe(error))

    def _instance(self, place: int) -> Any:
        if place not in self._instances:
            self._instances[place] = self._environment(**self._options)
        return self._instances[place]


def fit_step_result(value: object) -> StepResult:
    """What a user's step returned, checked, a bare string as observation accepted.

    Raises:
        TypeError, ValueError: it is unfit; the message says what to return.
    """
    if not isinstance(value, StepResult):
        raise TypeError(
            f"step returned {type(value).__name__}; "
            "return StepResult(observation=..., reward=..., done=..., metrics=...)"
        )
    metrics: Any = value.metrics
    if isinstance(metrics, Mapping):
        metrics = tuple(metrics.items())
    for name, number in (("reward", value.reward), *metrics):
        if number is not None and not math.isfinite(number):
            raise ValueError(f"step returned {name} = {number}; return finite numbers")
    return StepResult(
        observation=as_observation(value.observation),
        reward=value.reward,
        done=value.done,
        metrics=tuple(metrics),
    )
