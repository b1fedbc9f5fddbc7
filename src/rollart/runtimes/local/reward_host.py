"""The rewards' child: scores one trajectory after another with a user's function.

Stateless apart from what the user's module holds; the owner kills this process when a call takes
too long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.authoring import as_verdict
from rollart.process.serve import ChildPort
from rollart.runtimes.local.codec import Packed, pack_verdict, unpack_trajectory
from rollart.runtimes.local.user_code import Caller, describe, load, show_prints_at_once

ENTRY = "rollart.runtimes.local.reward_host:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardHostConfig:
    """Import path of the function."""

    reward: str


def entry(port: ChildPort, config: Any) -> None:
    """Serve until stopped: one event ``[True, verdict]`` or ``[False, reason]`` a job."""
    settings = msgspec.convert(config, RewardHostConfig)
    show_prints_at_once()
    function = load(settings.reward)
    caller = Caller()
    port.ready()
    while not port.stopping:
        for request in port.requests(None):
            port.event(judge(function, caller, request.args[0]))


def judge(function: Callable[..., Any], caller: Caller, packed: Packed) -> Packed:
    """Score one packed trajectory; never raises for what user code does."""
    try:
        verdict = as_verdict(caller.call(function, unpack_trajectory(packed)))
        return (True, pack_verdict(verdict))
    except BaseException as error:  # also sys.exit() in user code: it costs one verdict only
        return (False, describe(error))
