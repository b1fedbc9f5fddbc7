"""What every run must keep, checked from its events and from the fakes behind it.

Invariant: the checks share no code with the control plane they judge; each returns the broken
promises as sentences, none when all hold.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rollart.core.events import (
    BatchTaken,
    Committed,
    Disposed,
    LedgerClosed,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    StepTrained,
    TrajectoryStarted,
    TurnEnded,
)
from rollart.core.identity import request_seed
from rollart.testing.dispatch_promises import (
    continuations_lose_nothing,
    engines_serve_the_committed_version,
    tokens_keep_their_version,
)
from rollart.testing.harness import ScriptedRun
from rollart.testing.scheduling_promises import (
    admission_is_bounded,
    group_of,
    nothing_outlives_its_deadline,
    oldest_starts_go_first,
    spares_are_no_more_than_that,
    stale_tasks_go_first,
)

OVERLAPPED = (
    Phase.GET_BATCH,
    Phase.ABORT_STALE,
    Phase.SUSPEND,
    Phase.UPDATE,
    Phase.RESUME,
    Phase.TRAIN_STEP,
    Phase.PUBLISH,
)
SYNCHRONOUS = (
    Phase.GET_BATCH,
    Phase.ABORT_STALE,
    Phase.SUSPEND,
    Phase.TRAIN_STEP,
    Phase.PUBLISH,
    Phase.UPDATE,
    Phase.RESUME,
)

TOKEN_BOUND: Mapping[str, Callable[[int], float]] = {
    "rollart": lambda alpha: alpha + 1 if alpha else 0,
    "sync": lambda alpha: 0,
    "sync_plus": lambda alpha: 0,
    "one_off": lambda alpha: 1,
    "areal": lambda alpha: math.inf,
}
"""Versions by which a trained token may lag behind the version that trains on it."""


def broken_promises(run: ScriptedRun) -> list[str]:
    """Every promise that `run` broke."""
    checks = (
        ledger_closes,
        trained_ids_are_sampled_ids,
        the_bound_holds,
        six_steps_are_in_order,
        every_step_is_committed_first,
        admission_is_bounded,
        oldest_starts_go_first,
        stale_tasks_go_first,
        engines_serve_the_committed_version,
        continuations_lose_nothing,
        tokens_keep_their_version,
        nothing_outlives_its_deadline,
        spares_are_no_more_than_that,
        everything_is_let_go,
    )
    return [problem for check in checks for problem in check(run)]


def ledger_closes(run: ScriptedRun) -> Iterator[str]:
    """Promise 1, counted again from the trajectories' own events."""
    started = Counter(
        event.trajectory for event in run.events.of(TrajectoryStarted) if event.purpose == "train"
    )
    left = Counter(event.trajectory for event in run.events.of(Disposed))
    twice = [name for name, count in (started + left).items() if count > 2]
    if twice or any(count > 1 for count in left.values()):
        yield f"ledger: left or started more than once: {twice or left.most_common(1)}"
    if missing := started - left:
        yield f"ledger: {len(missing)} trajectories never left, such as {next(iter(missing))}"
    if unknown := left - started:
        yield f"ledger: {len(unknown)} trajectories left without a start"
    for balance in run.events.of(LedgerClosed):
        total = sum(count for _, count in balance.dispositions)
        if balance.started != total + balance.buffered + balance.in_flight:
            yield f"ledger: not balanced at step {balance.step}: {balance}"
        if not balance.balanced:
            yield f"ledger: says itself that it is not balanced at step {balance.step}"
    trained = sum(event.disposition == "trained" for event in run.events.of(Disposed))
    given = sum(len(b.trajectories) for t in run.launcher.trainers for _, b in t.batches)
    if trained != given:
        yield f"ledger: {trained} trajectories count as trained, the trainer was given {given}"


def trained_ids_are_sampled_ids(run: ScriptedRun) -> Iterator[str]:
    """Promise 2 and 5: a scripted engine's tokens follow from the request's seed and offset."""
    for trainer in run.launcher.trainers:
        for _, batch in trainer.batches:
            for trajectory in batch.trajectories:
                sampled = [
                    piece
                    for segment in trajectory.segments
                    for piece in segment.pieces
                    if piece.sampled
                ]
                for turn, piece in enumerate(sampled):
                    seed = request_seed(trajectory.id, run_seed=run.job.run.seed, turn=turn)
                    wanted = [(seed + i) % 97 for i in range(1, len(piece.ids) + 1)]
                    if not np.array_equal(np.asarray(piece.ids), wanted):
                        yield f"tokens: {trajectory.id} turn {turn}: {piece.ids} for {wanted}"


def the_bound_holds(run: ScriptedRun) -> Iterator[str]:
    """Promise 3, with starts and versions taken from turns, and lags from what was trained."""
    alpha, token_bound = run.job.alpha, TOKEN_BOUND[run.job.protocol.name](run.job.alpha)
    if run.job.protocol.name == "areal":  # which checks the start only
        return
    yield from _no_turn_ends_in_a_stale_group(run)
    for taken in run.events.of(BatchTaken):
        if taken.start_lag_max > alpha:
            yield f"alpha: step {taken.step} took a start lag of {taken.start_lag_max}"
    for trainer in run.launcher.trainers:
        for version, batch in trainer.batches:
            lags = [
                version - sampled
                for trajectory in batch.trajectories
                for sampled, _ in trajectory.version_runs()
            ]
            if max(lags, default=0) > token_bound:
                yield f"alpha: step {batch.step} trained a token lag of {max(lags)}"
            for group in batch.groups:
                first = min(v for t in group.members for v, _ in t.version_runs())
                if group.start_version > first:
                    yield f"alpha: group {group.id} says {group.start_version}, began at {first}"
    trained = run.events.of(StepTrained)
    if any(step.token_lag_max > token_bound for step in trained):
        yield f"alpha: a reported token lag exceeds {token_bound}"


def _no_turn_ends_in_a_stale_group(run: ScriptedRun) -> Iterator[str]:
    """A group's start is the oldest of its trajectories that have not left."""
    alpha = run.job.alpha
    committed, starts = 0, dict[int, dict[str, int]]()
    for _, event in run.events.events:
        if isinstance(event, Committed):
            committed = event.version
        elif isinstance(event, Disposed):
            starts.get(group_of(event.trajectory), {}).pop(event.trajectory, None)
        elif isinstance(event, TurnEnded) and not event.trajectory.startswith("eval:"):
            group = starts.setdefault(group_of(event.trajectory), {})
            group.setdefault(event.trajectory, event.first_version)
            if min(group.values()) < committed - alpha:
                yield (
                    f"alpha: {event.trajectory} ended a turn at version {committed}, "
                    f"its group began at {min(group.values())}"
                )


def six_steps_are_in_order(run: ScriptedRun) -> Iterator[str]:
    """Promise 4: the order of the phases, and a resume after every suspend."""
    order = OVERLAPPED if run.job.alpha else SYNCHRONOUS
    begun = dict[int, list[Phase]]()
    for _, event in run.events.events:
        if isinstance(event, PhaseBegan):
            begun.setdefault(event.step, []).append(event.phase)
    for step in range(run.result.steps):
        phases = begun[step]
        start = phases.index(Phase.GET_BATCH)
        found = tuple(p for p in phases[start:] if p is not Phase.RECOMPUTE)[: len(order)]
        if found != order:
            yield f"six steps: step {step} went {[p.value for p in found]}"
    suspended = False
    for _, event in run.events.events:
        if isinstance(event, PhaseEnded) and event.phase in (Phase.SUSPEND, Phase.RESUME):
            suspended = event.phase is Phase.SUSPEND
    if suspended:
        yield "six steps: the run ended suspended"
    for engine in run.launcher.engines:
        yield from _engine_order(engine.id, engine.log.calls)


def _engine_order(engine: str, calls: list[str]) -> Iterator[str]:
    paused = False
    for call in calls:
        verb = call.partition(" ")[0]
        if verb in ("pause", "resume"):
            paused = verb == "pause"
        elif verb == "update" and not paused:
            yield f"six steps: {engine} was updated while running"
        elif verb == "add" and paused:
            yield f"six steps: {engine} was given {call} while paused"
    if paused and calls[-1] == "pause" and "resume" in calls:
        yield f"six steps: {engine} was left paused"


def every_step_is_committed_first(run: ScriptedRun) -> Iterator[str]:
    """Promise 4: before each train step an engine has acknowledged the trainer's version."""
    committed, trained = -1, 0
    for _, event in run.events.events:
        if isinstance(event, Committed):
            committed = event.version
        elif isinstance(event, PhaseBegan) and event.phase is Phase.TRAIN_STEP:
            if committed != trained:
                yield f"commit: step {event.step} trained {trained} with {committed} committed"
        elif isinstance(event, StepTrained):
            trained += 1


def everything_is_let_go(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: nothing is left behind, and the run says how it ended."""
    for engine in run.launcher.engines:
        held = engine.live_requests + engine.log.left_at_close
        if held:
            yield f"liveness: {engine.id} was left with {held} requests"
        if engine.log.stale_kv_reads:
            yield f"kv: {engine.id} read {engine.log.stale_kv_reads} times from stale KV"
    for domain, environments in run.launcher.environments_of.items():
        if environments.open_now:
            yield f"liveness: {len(environments.open_now)} environments of {domain} left open"
    for domain, reward in run.launcher.rewards_of.items():
        if reward.running:
            yield f"liveness: {reward.running} rewards of {domain} still run"
    if len(run.events.of(RunEnded)) != 1:
        yield "liveness: the run did not say that it ended"
