"""What a platform that runs functions is to a caller: bytes there, bytes back, or a typed fault.

Invariant: a platform knows its own technology and no policy: it tries once, waits no longer than it
is told, and says by kind what went wrong. Who retries, limits, hedges and gives up is `calling`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rollart.core.errors import RollartError


class Fault(StrEnum):
    """Why a try gave no answer.

    LOST is a connection that was closed before a byte of an answer: by a function that took its
    server with it, or by a load balancer with nothing behind it. FOREIGN is an answer that is not
    of our wire, such as a proxy's page; GARBLED one that cannot be this call's answer.
    """

    TIMEOUT = "timeout"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    CRASHED = "crashed"
    LOST = "lost"
    FOREIGN = "foreign"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    GARBLED = "garbled"


UNANSWERED = frozenset({Fault.LOST, Fault.FOREIGN})
"""Faults that are the platform's while it answers nobody, and the call's own while it does."""

DOWN = frozenset({Fault.TIMEOUT, Fault.UNAVAILABLE}) | UNANSWERED
"""Faults that a platform which is gone gives every call."""

RETRIED = DOWN | {Fault.THROTTLED, Fault.CRASHED}
"""Faults that another try may mend: time-outs, 429, 5xx, an instance that died; never other 4xx."""

ALIVE = frozenset({Fault.THROTTLED, Fault.CRASHED, Fault.REFUSED})
"""Faults that only a platform which is there gives. The others say neither."""


class PlatformFault(RollartError):
    """One try failed.

    Attributes:
        fault: by kind.
        retry_after_s: seconds that the platform asked to wait before the next; None if it did not.
    """

    def __init__(self, fault: Fault, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.fault = fault
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """What the platform bears.

    Attributes:
        name: what shares its quota, such as "lambda eu-west-1": one limiter serves all of it.
        body_bytes: the largest request, as encoded.
    """

    name: str
    body_bytes: int


class Platform(Protocol):
    """One function on one platform."""

    @property
    def limits(self) -> PlatformLimits: ...

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """Send a request (see `core.scoring.wire`) once and return the answer's bytes.

        Args:
            key: identity of the call, to be sent along where the platform has a place for it.
            seconds: after which the try is given up with `Fault.TIMEOUT`.

        Raises:
            PlatformFault: by kind. An error that the platform reports of the function is
                `Fault.CRASHED`, whatever the status beside it.
            ConfigError: credentials are missing or wrong; the message says which, and the remedy,
                and no secret.
        """
        ...

    async def close(self) -> None:
        """Let connections go; calls under way end with `Fault.UNAVAILABLE`."""
        ...
