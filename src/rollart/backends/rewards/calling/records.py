"""Records between a caller and whoever asks it."""

from collections.abc import Callable
from dataclasses import dataclass

from rollart.core.scoring.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """How one function is called.

    Attributes:
        function_s: seconds the function says a call may take; a try waits a little longer. None:
            a try may take all that is left of its call.
        hedge: send a second request when the first takes longer than 95 % of those before.
        breaker_failures: calls whose faults in a row take the platform down.
        breaker_s: seconds until a platform that is down is tried again.
    """

    function_s: float | None = None
    hedge: bool = False
    breaker_failures: int = 5
    breaker_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one call ended. `verdict` has a failure's kind and reason where there is no score.

    Attributes:
        served_by: URL that the answer, or the last fault, came from.
        tries: requests sent, hedges included; waited_s: seconds not spent on any of them.
        function_s: that the function itself took; None where no answer says so.
    """

    verdict: Verdict
    served_by: str
    tries: int = 0
    waited_s: float = 0.0
    function_s: float | None = None
    instance: str = ""
    cold: bool = False
    sent_bytes: int = 0
    by_reference: bool = False
    hedged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformState:
    """A platform went down, or answers again.

    Attributes:
        fallback: URL that calls go to meanwhile; empty where they wait.
        down_s: seconds that it was down, once it is up.
    """

    url: str
    down: bool
    reason: str = ""
    fallback: str = ""
    down_s: float = 0.0


StateSink = Callable[[PlatformState], None]
"""Takes changes of a platform's state; must not block and must not raise."""
