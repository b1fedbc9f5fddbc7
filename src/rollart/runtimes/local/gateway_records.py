"""What control and the gateway say to each other; light, so that control loads nothing of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollart.backends.rewards.calling.records import Outcome
from rollart.core.errors import FailureKind
from rollart.core.scoring.places import RewardPlace
from rollart.core.scoring.verdict import Verdict
from rollart.runtimes.local.codec import Packed, pack_verdict, unpack_verdict

INSTANCE, STATE = "instance", "state"
"""First elements of its events: (instance, url, name, begin, end), (state, PlatformState)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What the gateway is told at its start.

    Attributes:
        children: the whole environment of local functions' processes.
        logs: folder of local functions' logs.
    """

    children: Mapping[str, str]
    python_path: tuple[str, ...]
    logs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place of a function: how it says it is called there, and what the function declares.

    Attributes:
        version: that the function there must have; empty: whatever is deployed will do.
        timeout_s: seconds that a call may take.
    """

    at: RewardPlace
    version: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionWish:
    """One function to be opened, at the first of its places that is up."""

    places: tuple[Place, ...]

    @property
    def url(self) -> str:
        """What it is called by, between control and the gateway."""
        return self.places[0].at.platform

    @property
    def shown(self) -> str:
        """The same for events and messages."""
        return self.places[0].at.shown


_OUTCOME_FIELDS = tuple(name for name in Outcome.__dataclass_fields__ if name != "verdict")


def pack_outcome(outcome: Outcome) -> Packed:
    """For the channel."""
    return (pack_verdict(outcome.verdict), *(getattr(outcome, name) for name in _OUTCOME_FIELDS))


def unpack_outcome(packed: Packed) -> Outcome:
    """What `pack_outcome` made."""
    verdict, *rest = packed
    fields: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, rest, strict=True))
    return replace(Outcome(verdict=unpack_verdict(verdict), served_by=""), **fields)


def no_verdict(kind: FailureKind, reason: str) -> Verdict:
    """No score, and why."""
    return Verdict(score=None, reason=reason, failure=kind)


def lost(url: str, kind: FailureKind, reason: str) -> Outcome:
    """An outcome without an answer."""
    return Outcome(verdict=no_verdict(kind, reason), served_by=url)
