"""One call on one platform, while it lasts: what it sends, and what became of it so far."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollart.backends.rewards.calling.answers import document_bytes, no_verdict, verdict_of
from rollart.backends.rewards.calling.records import Outcome
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.calling.retries import GiveUp, Retries
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.core.errors import FailureKind
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Reference, Request, encode_request

_DIGITS = 32  # bytes by which two requests of one call may differ: the digits of its seconds


class Call:
    """A call of `key` with `seconds` to go, and its figures (s, bytes)."""

    def __init__(self, key: str, document: Mapping[str, Any], *, url: str, seconds: float) -> None:
        self.document = document
        self._url = url
        self._began = asyncio.get_running_loop().time()
        self.seconds = seconds
        self._ready = False
        self.key = key
        self.deadline = self._began + seconds
        self.retries = Retries(key)
        self.fault: PlatformFault | None = None
        self.reference: Reference | None = None
        self.by_reference = False
        self.hedged = False
        self.tries = 0
        self.spent_s = 0.0
        self.sent_bytes = 0

    @property
    def left_s(self) -> float:
        """Seconds until its deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    async def prepare(self, limits: PlatformLimits, store: References | None) -> None:
        """See to it that its request is no larger than the platform bears; once is enough.

        Raises `GiveUp` for what can never be sent, `PlatformFault` where the store fails.
        """
        if self._ready:
            return
        try:
            size = len(encode_request(self.request(self.seconds)))
            if size + _DIGITS > limits.body_bytes:
                data = document_bytes(self.document)
                if store is None:
                    raise GiveUp(
                        f"its request of {size} bytes is above the {limits.body_bytes} that "
                        f"{limits.name} takes; name a folder that both sides reach in the "
                        "reward's URL: ?store=s3://bucket/rewards",
                        late=False,
                    )
                self.reference = await store.put(data)
                self.by_reference = True
        except (TypeError, ValueError) as error:
            raise GiveUp(f"its trajectory is no JSON: {error}", late=False) from error
        self._ready = True

    def request(self, seconds: float) -> Request:
        """The request, of which `seconds` are waited for."""
        by_value = None if self.reference is not None else self.document
        return Request(
            key=self.key, seconds=round(seconds, 3), trajectory=by_value, reference=self.reference
        )

    def body(self) -> bytes:
        """A request to be sent now; counts as a try."""
        body = encode_request(self.request(max(self.left_s, 0.0)))
        self.tries += 1
        self.sent_bytes = len(body)
        return body

    def noted(self, fault: PlatformFault) -> PlatformFault:
        """The fault to tell: of time-outs in a row the first, since each try has less time."""
        if self.fault is None or not self.fault.fault is fault.fault is Fault.TIMEOUT:
            self.fault = fault
        return self.fault

    def answered(self, answer: Answer) -> Outcome:
        """It ends with an answer."""
        seconds = answer.seconds if math.isfinite(answer.seconds) else None
        return self._outcome(
            verdict_of(answer), function_s=seconds, instance=answer.instance, cold=answer.cold
        )

    def gave_up(self, end: GiveUp) -> Outcome:
        """It ends with no answer before its deadline."""
        kind = FailureKind.REWARD_TIMEOUT if end.late else FailureKind.REWARD_ERROR
        return self._outcome(no_verdict(kind, f"{self._url}: {end.reason}"))

    def ran_out(self, why: str) -> Outcome:
        """It ends with no answer at its deadline; `why` it waited."""
        parts = [f"{self._url}: no verdict within {self.seconds:.3g} s", why]
        if self.fault is not None:
            parts.append(f"{self.tries} tries; the fault: {self.fault.fault}: {self.fault}")
        reason = "; ".join(part for part in parts if part)
        return self._outcome(no_verdict(FailureKind.REWARD_TIMEOUT, reason))

    def elsewhere(self, outcome: Outcome, seconds: float) -> Outcome:
        """It ends as its fallback did, which took `seconds`; the figures are those of both."""
        self.spent_s += max(seconds - outcome.waited_s, 0.0)
        whole_s = asyncio.get_running_loop().time() - self._began
        return replace(
            outcome,
            tries=self.tries + outcome.tries,
            waited_s=max(whole_s - self.spent_s, 0.0),
            hedged=self.hedged or outcome.hedged,
        )

    def _outcome(
        self,
        verdict: Verdict,
        *,
        function_s: float | None = None,
        instance: str = "",
        cold: bool = False,
    ) -> Outcome:
        whole_s = asyncio.get_running_loop().time() - self._began
        return Outcome(
            verdict=verdict,
            served_by=self._url,
            tries=self.tries,
            waited_s=max(whole_s - self.spent_s, 0.0),
            function_s=function_s,
            instance=instance,
            cold=cold,
            sent_bytes=self.sent_bytes,
            by_reference=self.by_reference,
            hedged=self.hedged,
        )
