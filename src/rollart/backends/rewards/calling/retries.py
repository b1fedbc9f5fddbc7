"""When a call is tried again: pure, and equal in every process for equal calls.

Invariant: nothing but the deadline bounds the number of tries of what another try may mend, and
what it may not mend is tried once.
"""

import random

from rollart.backends.rewards.platform import RETRIED, UNANSWERED, Fault, PlatformFault
from rollart.core.identity import derive_seed

FIRST_S = 0.1  # bound of the first pause; it doubles with every try
LONGEST_S = 10.0  # no bound of a pause is above
EARLIER_S = 0.05  # with less left after a time-out there is no time for another try
LEAST_S = 0.01  # with less left no try is begun
CRASHES = 2  # of one call are tried again: a third would be the function's own doing


class GiveUp(Exception):
    """There is no other try. `late`: only because of the deadline."""

    def __init__(self, reason: str, *, late: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.late = late


class Retries:
    """The pauses of one call: exponential with full jitter, seeded by its key."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(derive_seed("retries", key))
        self._faults = 0
        self._crashes = 0
        self.was_down()

    def was_down(self) -> None:
        """The platform was down meanwhile, so that it had no answers was not the call's doing."""
        self._unanswered = 0
        self._signs_before = 0

    def pause_s(
        self,
        fault: PlatformFault,
        left_s: float,
        *,
        told: PlatformFault | None = None,
        signs: int = 0,
    ) -> float:
        """Seconds until the next try, of the `left_s` that the call has left.

        Args:
            told: the fault to name where there is no time; by default this one.
            signs: of life that the platform has given so far; with more of them than at its first
                unanswered try, no answer is the call's own crash.

        Raises `GiveUp`.
        """
        if fault.fault not in RETRIED:
            raise GiveUp(f"{fault.fault}: {fault}", late=False)
        self._crashes += fault.fault is Fault.CRASHED
        if self._crashes > CRASHES:
            raise GiveUp(f"it crashed {self._crashes} times; the last: {fault}", late=False)
        if fault.fault in UNANSWERED:
            self._signs_before = self._signs_before if self._unanswered else signs
            self._unanswered += 1
            if self._unanswered > CRASHES and signs > self._signs_before:
                raise GiveUp(
                    f"{self._unanswered} of its tries had no answer while the platform gave "
                    f"others; the last: {fault.fault}: {fault}",
                    late=False,
                )
        asked_s = fault.retry_after_s or 0.0
        room_s = left_s - asked_s
        if room_s < (EARLIER_S if fault.fault is Fault.TIMEOUT else LEAST_S):
            asks = f", which asks to wait {asked_s:.3g} s" if asked_s else ""
            raise GiveUp(
                f"no time for another try in the {max(left_s, 0.0):.3g} s left after "
                f"{fault.fault}{asks}: {told or fault}",
                late=True,
            )
        bound_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self._faults, 32))
        self._faults += 1
        jitter_s = self._random.uniform(0.0, bound_s)
        # What jitter adds must not be what costs the call its last try.
        return asked_s + (jitter_s if jitter_s < room_s else room_s / 2)


def try_s(left_s: float, function_s: float | None, *, fallback: bool = False) -> float:
    """Seconds that one try may take, of the `left_s` that the call has left.

    It is above the function's own limit, so that the function's own words arrive, and ends before
    the call does, so that a platform that never answers is known for it. With a fallback, half of
    the call is left for that, or what the function does not need by its own word.
    """
    seconds = left_s - min(0.9 * EARLIER_S, left_s / 10)
    if function_s is not None:
        seconds = min(seconds, function_s * 1.25 + 1.0)
    return min(seconds, max(left_s / 2, function_s or 0.0)) if fallback else seconds
