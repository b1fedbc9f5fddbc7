"""Serverless rewards of a run: what a function was asked, how long it took, what was kept for it.

Invariant: every number follows from `RewardCalled`, `FunctionInstance` and the two events of a
platform's state; what no event says is None. A function's reserved seconds are those of its
processes on this machine; of a platform that bills by the call nothing is reserved.
"""

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollart.core.events import CANCELLED, FunctionInstance, PlatformDown, PlatformUp, RewardCalled


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionUse:
    """One function in a run.

    Attributes:
        outcomes: calls by outcome: "verdict", or why there is none; times are of those that were
            not cancelled.
        latency_p50_s, latency_p99_s: from the end of a trajectory to its verdict.
        overhead_p50_s, overhead_p99_s: of the same, what was neither the function's own time nor
            waiting for a limit, a pause or a platform that was down; warm calls of one try only.
        busy_s: that functions computed; reserved_s: that processes were kept for them.
        busy_share: busy_s of reserved_s; above 1 where a process serves several calls at once.
        elsewhere: calls that a fallback answered; down_s: that the platform was down.
    """

    url: str
    calls: int
    outcomes: tuple[tuple[str, int], ...]
    latency_p50_s: float | None
    latency_p99_s: float | None
    overhead_p50_s: float | None
    overhead_p99_s: float | None
    busy_s: float
    reserved_s: float | None
    busy_share: float | None
    processes: int
    cold_starts: int
    tries: int
    by_reference: int
    hedged: int
    elsewhere: int
    down_s: float


@dataclass(slots=True)
class FunctionBook:
    """What is noted of one function while events come."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    overheads: "array[float]" = field(default_factory=lambda: array("d"))
    busy_s: float = 0.0
    reserved_s: float = 0.0
    processes: int = 0
    cold_starts: int = 0
    tries: int = 0
    by_reference: int = 0
    hedged: int = 0
    elsewhere: int = 0
    down_s: float = 0.0

    def called(self, event: RewardCalled) -> None:
        """Note one call."""
        took = event.end - event.begin
        self.outcomes[event.outcome] += 1
        if event.outcome == CANCELLED:
            return
        self.latencies.append(took)
        self.busy_s += event.function_s or 0.0
        if event.function_s is not None and event.tries == 1 and not event.cold:
            self.overheads.append(max(took - event.function_s - event.waited_s, 0.0))
        self.cold_starts += event.cold
        self.tries += event.tries
        self.by_reference += event.by_reference
        self.hedged += event.hedged
        self.elsewhere += event.served_by != event.url

    def use(self, url: str) -> FunctionUse:
        """What it came to."""
        reserved = self.reserved_s if self.processes else None
        return FunctionUse(
            url=url,
            calls=self.outcomes.total(),
            outcomes=tuple(sorted(self.outcomes.items())),
            latency_p50_s=quantile(self.latencies, 0.5),
            latency_p99_s=quantile(self.latencies, 0.99),
            overhead_p50_s=quantile(self.overheads, 0.5),
            overhead_p99_s=quantile(self.overheads, 0.99),
            busy_s=self.busy_s,
            reserved_s=reserved,
            busy_share=self.busy_s / reserved if reserved else None,
            processes=self.processes,
            cold_starts=self.cold_starts,
            tries=self.tries,
            by_reference=self.by_reference,
            hedged=self.hedged,
            elsewhere=self.elsewhere,
            down_s=self.down_s,
        )


@dataclass(slots=True)
class FunctionBooks:
    """The books of a run, by URL."""

    by_url: dict[str, FunctionBook] = field(default_factory=dict[str, FunctionBook])

    def take(self, event: object) -> bool:
        """Note an event; whether it is one of these."""
        match event:
            case RewardCalled():
                self._book(event.url).called(event)
            case FunctionInstance():
                book = self._book(event.url)
                book.processes += 1
                book.reserved_s += event.end - event.begin
            case PlatformUp():
                self._book(event.url).down_s += event.down_s
            case PlatformDown():
                self._book(event.url)
            case _:
                return False
        return True

    def uses(self) -> tuple[FunctionUse, ...]:
        """Each function that was asked for, by URL."""
        return tuple(book.use(url) for url, book in sorted(self.by_url.items()))

    def _book(self, url: str) -> FunctionBook:
        return self.by_url.setdefault(url, FunctionBook())


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def as_object(use: FunctionUse) -> Mapping[str, object]:
    """For `rollart report --json`."""
    plain = {name: getattr(use, name) for name in FunctionUse.__dataclass_fields__}
    return {**plain, "outcomes": dict(use.outcomes)}
