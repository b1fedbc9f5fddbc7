"""The rewards' child: scores one trajectory after another with a user's function or class.

Stateless apart from what the user's module and instance hold; the owner kills this process when a
call takes too long.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.errors import FailureKind
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.verdict import as_verdict
from rollart.data.decorators import declared_by
from rollart.process.serve import ChildPort
from rollart.runtimes.local.codec import Packed, pack_verdict
from rollart.runtimes.local.function_host import tell
from rollart.runtimes.local.reward_asks import Asks, CallFailed
from rollart.runtimes.local.user_code import Caller, describe, load, show_prints_at_once

ENTRY = "rollart.runtimes.local.reward_host:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardHostConfig:
    """Import path of the function, or of a `Reward` class."""

    reward: str
    hardware: str = ""


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: one event a job, ``[True, verdict]`` or ``[False, reason, kind]``."""
    settings = msgspec.convert(config, RewardHostConfig)
    show_prints_at_once()
    asks = Asks(port)
    function = scorer(load(settings.reward), asks, worker=port.name, hardware=settings.hardware)
    caller = Caller()
    port.ready()
    for request in asks.jobs():
        outcome = judge(function, caller, request.args[0])
        tell(port, outcome, FailureKind.REWARD_ERROR.value)


def scorer(found: Any, asks: Asks, *, worker: str, hardware: str) -> Callable[..., Any]:
    """The function that scores; of a class, `compute_rewards` of an instance made ready for it."""
    if not inspect.isclass(found):
        return found
    instance: Any = found()
    instance.worker, instance.hardware = worker, hardware
    for name, declared in declared_by(found).items():
        method = getattr(found, name)
        make = asks.awaited if inspect.iscoroutinefunction(method) else asks.blocking
        for one in declared.serverless:
            setattr(instance, one.attribute, make(one.url))
    return instance.compute_rewards


def judge(function: Callable[..., Any], caller: Caller, packed: Packed) -> Packed:
    """Score one packed trajectory; never raises for what user code does."""
    try:
        document = TrajectoryDocument.from_json(packed)
        verdict = as_verdict(caller.call(function, document), turns=len(document.turns))
        return (True, pack_verdict(verdict))
    except CallFailed as failed:
        kind = FailureKind.REWARD_TIMEOUT if failed.overran else FailureKind.REWARD_ERROR
        return (False, str(failed), kind.value)
    except BaseException as error:  # also sys.exit() in user code: it costs one verdict only
        return (False, describe(error), FailureKind.REWARD_ERROR.value)
