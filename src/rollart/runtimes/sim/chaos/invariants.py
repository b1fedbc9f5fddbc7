"""What every run must keep, checked from its events and from what passed through its ports.

Invariant: the checks share no code with the control plane they judge; each returns the broken
promises as sentences that begin with a word for the promise, none when all hold. One that raises is
told as that (`checking`), and the others judge on.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rollart.core.events import (
    BatchTaken,
    Committed,
    Disposed,
    EngineAcknowledged,
    EngineDown,
    EnvironmentReset,
    LedgerClosed,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    StepTrained,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
)
from rollart.core.types import Disposition
from rollart.runtimes.sim.chaos.checking import told_by
from rollart.runtimes.sim.chaos.evidence import Evidence, group_of
from rollart.runtimes.sim.chaos.request_invariants import (
    continuations_lose_nothing,
    engines_serve_the_committed_version,
    tokens_keep_their_version,
)
from rollart.runtimes.sim.chaos.scheduling_invariants import (
    admission_is_bounded,
    credits_add_up,
    oldest_starts_go_first,
    spares_are_no_more_than_that,
    stale_tasks_go_first,
    surplus_is_not_carried_over,
    tasks_come_again_once,
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


def broken_invariants(run: Evidence) -> list[str]:
    """Every promise that `run` broke, as far as its evidence goes."""
    checks = (
        ledger_closes,
        the_bound_holds,
        six_steps_are_in_order,
        every_step_is_committed_first,
        admission_is_bounded,
        credits_add_up,
        oldest_starts_go_first,
        stale_tasks_go_first,
        tasks_come_again_once,
        engines_serve_the_committed_version,
        continuations_lose_nothing,
        tokens_keep_their_version,
        nothing_outlives_its_deadline,
        no_step_outlives_its_deadline,
        spares_are_no_more_than_that,
        surplus_is_not_carried_over,
        scores_are_numbers,
        events_tell_a_whole_story,
    )
    return [sentence for check in checks for sentence in told_by(check, run)]


def ledger_closes(run: Evidence) -> Iterator[str]:
    """Promise 1, counted again from the trajectories' own events."""
    started = Counter(
        event.trajectory for event in run.of(TrajectoryStarted) if event.purpose == "train"
    )
    left = Counter(event.trajectory for event in run.of(Disposed))
    twice = [name for name, count in (started + left).items() if count > 2]
    if twice or any(count > 1 for count in left.values()):
        yield f"ledger: left or started more than once: {twice or left.most_common(1)}"
    if missing := started - left:
        yield f"ledger: {len(missing)} trajectories never left, such as {next(iter(missing))}"
    if unknown := left - started:
        yield f"ledger: {len(unknown)} trajectories left without a start"
    for balance in run.of(LedgerClosed):
        total = sum(count for _, count in balance.dispositions)
        if balance.started != total + balance.buffered + balance.in_flight:
            yield f"ledger: not balanced at step {balance.step}: {balance}"
        if not balance.balanced:
            yield f"ledger: says itself that it is not balanced at step {balance.step}"
    trained = sum(event.disposition is Disposition.TRAINED for event in run.of(Disposed))
    given = sum(len(batch.trajectories) for _, batch in run.batches)
    if trained != given:
        yield f"ledger: {trained} trajectories count as trained, the trainer was given {given}"


def the_bound_holds(run: Evidence) -> Iterator[str]:
    """Promise 3, with starts and versions taken from turns, and lags from what was trained."""
    alpha, token_bound = run.job.alpha, TOKEN_BOUND[run.job.protocol.name](run.job.alpha)
    if run.job.protocol.name == "areal":  # which checks the start only
        return
    yield from _no_turn_ends_in_a_stale_group(run)
    for taken in run.of(BatchTaken):
        if taken.start_lag_max > alpha:
            yield f"alpha: step {taken.step} took a start lag of {taken.start_lag_max}"
    for version, batch in run.batches:
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
    if any(step.token_lag_max > token_bound for step in run.of(StepTrained)):
        yield f"alpha: a reported token lag exceeds {token_bound}"


def _no_turn_ends_in_a_stale_group(run: Evidence) -> Iterator[str]:
    """A group's start is the oldest of its trajectories that have not left."""
    alpha = run.job.alpha
    committed, starts = 0, dict[int, dict[str, int]]()
    for _, event in run.events:
        if isinstance(event, Committed):
            committed = event.version
        elif isinstance(event, Disposed):
            starts.get(event.group, {}).pop(event.trajectory, None)
        elif isinstance(event, TurnEnded) and not event.trajectory.startswith("eval:"):
            group = starts.setdefault(group_of(event.trajectory), {})
            group.setdefault(event.trajectory, event.first_version)
            if min(group.values()) < committed - alpha:
                yield (
                    f"alpha: {event.trajectory} ended a turn at version {committed}, "
                    f"its group began at {min(group.values())}"
                )


def six_steps_are_in_order(run: Evidence) -> Iterator[str]:
    """Promise 4: the order of the phases, and a resume after every suspend."""
    order = OVERLAPPED if run.job.alpha else SYNCHRONOUS
    begun = dict[int, list[Phase]]()
    for event in run.of(PhaseBegan):
        begun.setdefault(event.step, []).append(event.phase)
    for step in range(run.steps):
        phases = begun.get(step, [])
        if Phase.RECOMPUTE not in phases:
            yield f"six steps: step {step} did not recompute"
        start = phases.index(Phase.GET_BATCH) if Phase.GET_BATCH in phases else len(phases)
        found = tuple(p for p in phases[start:] if p is not Phase.RECOMPUTE)[: len(order)]
        if found != order:
            yield f"six steps: step {step} went {[p.value for p in found]}"
    suspended = False
    for event in run.of(PhaseEnded):
        if event.phase in (Phase.SUSPEND, Phase.RESUME):
            suspended = event.phase is Phase.SUSPEND
    if suspended:
        yield "six steps: the run ended suspended"
    current = _current_engines(run)
    latest = {engine.id: number for number, engine in enumerate(run.engines)}
    for number, engine in enumerate(run.engines):
        in_use = engine.id in current and latest[engine.id] == number
        yield from _engine_order(engine.id, engine.calls, in_use=in_use)


def _current_engines(run: Evidence) -> set[str]:
    """Those that at the end live and hold the committed version; the others may be catching up."""
    committed, held = -1, dict[str, int]()
    for _, event in run.events:
        if isinstance(event, Committed):
            committed = event.version
        elif isinstance(event, EngineAcknowledged):
            held[event.engine] = event.version
        elif isinstance(event, EngineDown):
            held.pop(event.engine, None)
    return {engine for engine, version in held.items() if version >= committed}


def _engine_order(engine: str, calls: Sequence[str], *, in_use: bool) -> Iterator[str]:
    paused = False
    for call in calls:
        verb = call.partition(" ")[0]
        if verb in ("pause", "resume"):
            paused = verb == "pause"
        elif verb == "update" and not paused:
            yield f"six steps: {engine} was updated while running"
        elif verb == "add" and paused:
            yield f"six steps: {engine} was given {call} while paused"
    if paused and in_use and calls[-1] == "pause" and "resume" in calls:
        yield f"six steps: {engine} was left paused"


def every_step_is_committed_first(run: Evidence) -> Iterator[str]:
    """Promise 4: before each train step an engine has acknowledged the trainer's version."""
    committed, trained = -1, 0
    for _, event in run.events:
        if isinstance(event, Committed):
            committed = event.version
        elif isinstance(event, PhaseBegan) and event.phase is Phase.TRAIN_STEP:
            if committed != trained:
                yield f"commit: step {event.step} trained {trained} with {committed} committed"
        elif isinstance(event, StepTrained):
            trained += 1


def nothing_outlives_its_deadline(run: Evidence) -> Iterator[str]:
    """Promise 7: an episode ends by its deadline, but for an engine's time to let go of it."""
    times = run.job.timeouts
    longest = times.episode_s + times.engine_s + 1e-6
    began = dict[str, float]()
    for time, event in run.events:
        if isinstance(event, TrajectoryStarted):
            began[event.trajectory] = time
        elif isinstance(event, TrajectoryEnded | Disposed):
            lasted = time - began.pop(event.trajectory, time)
            if lasted > longest:
                yield f"deadline: {event.trajectory} lasted {lasted:.1f} s of {longest:.1f} s"


def no_step_outlives_its_deadline(run: Evidence) -> Iterator[str]:
    """Promise 7: each step ends by the deadlines of what it waits for."""
    times = run.job.timeouts
    most = {
        Phase.ABORT_STALE: 2 * times.engine_s,
        Phase.SUSPEND: times.engine_s,
        Phase.UPDATE: times.weights_s,
        Phase.RESUME: 2 * times.engine_s,
        Phase.RECOMPUTE: times.engine_s,
        Phase.TRAIN_STEP: times.train_s,
        Phase.PUBLISH: times.weights_s,
    }
    for event in run.of(PhaseEnded):
        longest = most.get(event.phase, math.inf) + 1e-6
        if event.seconds > longest:
            yield (
                f"deadline: {event.phase} of step {event.step} took {event.seconds:.1f} s "
                f"of {longest:.1f} s"
            )


def scores_are_numbers(run: Evidence) -> Iterator[str]:
    """Promise 9: whatever is trained has a finite score."""
    for _, batch in run.batches:
        for trajectory in batch.trajectories:
            if trajectory.score is None or not math.isfinite(trajectory.score):
                yield f"numbers: {trajectory.id} was trained with score {trajectory.score}"


def events_tell_a_whole_story(run: Evidence) -> Iterator[str]:
    """Promise 11: what begins ends, turns are counted, and nothing follows a leaving."""
    yield from _phases_end(run)
    turns, sampled = Counter[str](), Counter[str]()
    left, under_way = set[str](), set[str]()
    for _, event in run.events:
        if isinstance(event, Disposed):
            left.add(event.trajectory)
        elif isinstance(event, TrajectoryStarted):
            under_way.add(event.trajectory)
            turns[event.trajectory] = sampled[event.trajectory] = 0
        elif isinstance(event, TurnEnded | EnvironmentReset | TrajectoryEnded):
            name = event.trajectory
            if name in left or name not in under_way:
                yield f"events: {type(event).__name__} of {name}, which is not under way"
            if isinstance(event, TurnEnded):
                told = sum(count for _, count in event.versions)
                if event.turn != turns[name] or told != event.sampled_tokens:
                    yield f"events: turn {turns[name]} of {name} is told as {event}"
                turns[name] += 1
                sampled[name] += event.sampled_tokens
            elif isinstance(event, TrajectoryEnded):
                under_way.discard(name)
                if event.sampled_tokens != sampled[name]:
                    yield (
                        f"events: {name} sampled {event.sampled_tokens} tokens, its turns tell of "
                        f"{sampled[name]}"
                    )


def _phases_end(run: Evidence) -> Iterator[str]:
    open_now = Counter[tuple[int, Phase]]()
    for _, event in run.events:
        if isinstance(event, PhaseBegan):
            open_now[event.step, event.phase] += 1
        elif isinstance(event, PhaseEnded):
            open_now[event.step, event.phase] -= 1
    for (step, phase), count in open_now.items():
        if count:
            yield f"events: {phase} of step {step} began and ended {count} times apart"
    ends = len(run.of(RunEnded))
    if ends != 1 or not isinstance(run.events[-1][1], RunEnded):
        yield f"events: {ends} ends of the run are told, the last event is {run.events[-1][1]}"
