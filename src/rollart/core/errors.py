"""Errors that cross modules. Each says what happened, with the value, and what to do.

Invariant: a `FailureKind` is the only vocabulary for why a trajectory was lost; the ledger, the
report and the tests all read it.
"""

from enum import StrEnum
from typing import cast


class FailureKind(StrEnum):
    """Why a trajectory failed or its result cannot be trained."""

    ENV_OPEN = "env_open"
    ENV_RESET = "env_reset"
    ENV_STEP = "env_step"
    ENV_TIMEOUT = "env_timeout"
    ENV_DIED = "env_died"
    ENGINE = "engine"
    ENGINE_TIMEOUT = "engine_timeout"
    REWARD_ERROR = "reward_error"
    REWARD_TIMEOUT = "reward_timeout"
    REWARD_NO_VERDICT = "reward_no_verdict"
    DEADLINE = "deadline"
    TOKENS = "tokens"
    RENDER = "render"
    CONTROL = "control"


class RollartError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RollartError):
    """A configuration that cannot run. The message names key, value, rule and a valid value."""


class TrajectoryFailure(RollartError):
    """One trajectory is lost; the run goes on."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class TokenMismatch(RollartError):
    """An engine's answer whose ids and log-probs disagree in length. It is never trained."""

    def __init__(self, request_id: str, ids: int, logprobs: int) -> None:
        super().__init__(
            f"request {request_id}: the engine returned {ids} ids and {logprobs} log-probs; "
            "an engine must return one log-prob for each sampled id"
        )
        self.request_id = request_id
        self.ids = ids
        self.logprobs = logprobs


class EngineLost(RollartError):
    """An engine died or stopped answering. Its requests move to another."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(f"engine {engine} is lost: {reason}")
        self.engine = engine
        self.reason = reason


class EngineRefused(RollartError):
    """An engine refused a request as impossible (too long, unknown option). Not retried."""


class EnvironmentFailed(TrajectoryFailure):
    """An environment raised; it may be used no more."""


class WorkerFailed(RollartError):
    """A worker of a cluster died, did not answer in time, or its code raised."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"worker {worker}: {reason}")
        self.worker = worker
        self.reason = reason


class WeightSyncFailed(RollartError):
    """No routable engine could take the trainer's version before the deadline."""


class TrainerLost(RollartError):
    """The trainer died or did not answer; without a checkpoint the run ends."""


class RunStalled(RollartError):
    """Nothing can complete the batch: the message counts what was lost, by reason."""


class WeightsMissing(RollartError):
    """A weight version that the store does not hold (never committed, or collected)."""


class WeightsCorrupt(RollartError):
    """A weight version whose content does not match its manifest."""


def first_error(errors: BaseExceptionGroup[BaseException]) -> Exception:
    """The first plain error within, however deep."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return first_error(cast("BaseExceptionGroup[BaseException]", error))
        if isinstance(error, Exception):
            return error
    return RuntimeError(str(errors))
