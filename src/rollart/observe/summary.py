"""What a run came to: events in, one frozen record out.

Invariant: pure, and every number follows from events; what no event says is None, never 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollart.core.events import Phase, is_computing
from rollart.core.types import Disposition
from rollart.observe.bias import Redundancy, redundancy_of
from rollart.observe.domains import DomainResult, Named, domain_results
from rollart.observe.eventlog import why_partial
from rollart.observe.functions import FunctionUse
from rollart.observe.history import History
from rollart.observe.idle import IdleAccount, account
from rollart.observe.intervals import busy_share, total


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBalance:
    """Where every started trajectory is. `balanced` is what control said and what the sum says."""

    started: int
    dispositions: tuple[tuple[str, int], ...]
    buffered: int
    in_flight: int
    balanced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """Share of the training window (0..1) that a device computed, and by every kind of work."""

    device: str
    hardware: str
    busy: float
    by_work: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in numbers.

    Times are seconds, lags versions, shares 0..1. `wall_s` is the whole run with evaluations,
    `train_s` from the first get_batch to the end of the last train step. `tokens_per_s` is
    prompt and response tokens of all trained batches over `train_s`, the throughput of arXiv
    2512.22560; `trained_tokens` counts only those with a loss. `overlap_s` is how long some
    device trained while some device generated. `logprob_gap_scored` was measured for its own sake
    on `logprob_gap_tokens` tokens, `logprob_gap_trained` in the train steps, in the arithmetic of
    training; `logprob_gap_max` is the larger. `partial` says why the log is not the whole run,
    None if it is.
    """

    run: str | None
    runtime: str | None
    protocol: str | None
    alpha: int | None
    seed: int | None
    domains: tuple[DomainResult, ...]
    redundancy: Redundancy
    steps: int
    steps_planned: int | None
    trained_tokens: int
    batch_tokens: int
    wall_s: float
    train_s: float
    tokens_per_s: float | None
    start_lag_max: int | None
    token_lag_max: int | None
    token_lag_mean: float | None
    ledger: LedgerBalance
    logprob_gap_max: float | None
    logprob_gap_scored: float | None
    logprob_gap_trained: float | None
    logprob_gap_tokens: int
    phase_seconds: Named
    devices: tuple[DeviceShare, ...]
    idle: IdleAccount
    functions: tuple[FunctionUse, ...]
    overlap_s: float
    failures: tuple[tuple[str, int], ...]
    interruptions: int
    engines_lost: int
    requests_moved: int
    late_results: int
    warnings: int
    ended: str | None
    ok: bool
    partial: str | None


def summary_of(history: History) -> RunSummary:
    """The summary of a gathered run."""
    started, ended, steps = history.started, history.ended, history.steps
    batch_tokens = sum(row.batch_tokens for row in steps)
    window = history.training_window
    train_s = window[1] - window[0]
    scored_gap = _largest([gap.maximum for gap in history.gaps])
    trained_gap = _largest([row.stats.same_version_gap for row in steps])
    return RunSummary(
        run=started.run if started else None,
        runtime=started.runtime if started else None,
        protocol=started.protocol if started else None,
        alpha=started.alpha if started else None,
        seed=started.seed if started else None,
        domains=domain_results(
            started.domains if started else (),
            history.domains,
            history.evaluations,
            history.baselines,
        ),
        redundancy=redundancy_of(started.config if started else ""),
        steps=len(steps),
        steps_planned=started.steps if started else None,
        trained_tokens=sum(row.stats.trained_tokens for row in steps),
        batch_tokens=batch_tokens,
        wall_s=max(0.0, history.last_time - history.first_time),
        train_s=train_s,
        tokens_per_s=batch_tokens / train_s if train_s > 0 else None,
        start_lag_max=max(
            (row.start_lag_max for row in steps if row.start_lag_max is not None), default=None
        ),
        token_lag_max=max((row.token_lag_max for row in steps if row.lag_tokens), default=None),
        token_lag_mean=_token_lag_mean(history),
        ledger=_ledger(history),
        logprob_gap_max=_largest([scored_gap, trained_gap]),
        logprob_gap_scored=scored_gap,
        logprob_gap_trained=trained_gap,
        logprob_gap_tokens=sum(gap.tokens for gap in history.gaps),
        phase_seconds=_phase_seconds(history),
        devices=_devices(history),
        idle=account(history.idle, history.busy, window),
        functions=history.functions.uses(),
        overlap_s=total(history.overlap),
        failures=tuple(sorted(history.failures.items())),
        interruptions=history.interruptions,
        engines_lost=history.engines_lost,
        requests_moved=history.requests_moved,
        late_results=history.late_results,
        warnings=len(history.warnings),
        ended=ended.reason if ended else None,
        ok=ended.ok if ended else False,
        partial=why_partial(
            history.sequence.faults,
            begun=history.started is not None,
            ended=history.ended is not None,
        ),
    )


def _token_lag_mean(history: History) -> float | None:
    """Over tokens, not over steps."""
    rows = [row for row in history.steps if row.lag_tokens]
    if not rows:
        return None
    weighted = sum(row.token_lag_mean * row.lag_tokens for row in rows)
    return weighted / sum(row.lag_tokens for row in rows)


def _largest(gaps: Sequence[float | None]) -> float | None:
    """The largest gap; NaN if any is, for a gap that is not a number is no small one."""
    known = [gap for gap in gaps if gap is not None]
    if any(math.isnan(gap) for gap in known):
        return math.nan
    return max(known, default=None)


def _phase_seconds(history: History) -> Named:
    seconds = dict.fromkeys(Phase, 0.0)
    for span in history.phases:
        seconds[span.phase] += span.end - span.begin
    return tuple((phase.value, spent) for phase, spent in seconds.items())


def _devices(history: History) -> tuple[DeviceShare, ...]:
    window = history.training_window
    shares: list[DeviceShare] = []
    for device, hardware in sorted(history.hardware.items()):
        works = {work: spans for (name, work), spans in history.busy.items() if name == device}
        shares.append(
            DeviceShare(
                device=device,
                hardware=hardware,
                busy=busy_share(
                    [span for work, spans in works.items() if is_computing(work) for span in spans],
                    window,
                ),
                by_work=tuple(
                    (work, busy_share(spans, window)) for work, spans in sorted(works.items())
                ),
            )
        )
    return tuple(shares)


def _ledger(history: History) -> LedgerBalance:
    """The last balance that control closed; in a log without one, what its events add up to."""
    closed = history.ledger
    if closed is None:
        counts = {d.value: history.disposed[d.value] for d in Disposition}
        started, buffered = history.train_started, 0
        in_flight = started - sum(counts.values())
        said = in_flight >= 0
    else:
        counts = {d.value: 0 for d in Disposition} | dict(closed.dispositions)
        started, buffered = closed.started, closed.buffered
        in_flight, said = closed.in_flight, closed.balanced
    adds_up = started == sum(counts.values()) + buffered + in_flight
    return LedgerBalance(
        started=started,
        dispositions=tuple(counts.items()),
        buffered=buffered,
        in_flight=in_flight,
        balanced=said and adds_up,
    )
