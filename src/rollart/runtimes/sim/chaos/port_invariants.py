"""Promises checked at the ports: what control was given, what it let go, how it took its losses.

Invariant: as in `invariants`, each check returns sentences and shares no code with control.
"""

from collections.abc import Iterator

import numpy as np

from rollart.control.controller import RunResult
from rollart.core.events import EngineDown
from rollart.core.tokens import TokenBlock, join
from rollart.core.types import Trajectory
from rollart.runtimes.sim.chaos.checking import told_by
from rollart.runtimes.sim.chaos.driver import FaultDriver
from rollart.runtimes.sim.chaos.evidence import Evidence
from rollart.runtimes.sim.chaos.faults import ENGINE_FAULTS, FaultKind
from rollart.runtimes.sim.chaos.faulty_launcher import FaultyLauncher
from rollart.runtimes.sim.chaos.request_invariants import by_turn

SOON_S = 1.0
"""Seconds within which a death that is told must be noticed."""

WEIGHT_FAULTS = frozenset(
    {FaultKind.PULL_FAILS_ON_ONE, FaultKind.PULL_FAILS_ON_ALL, FaultKind.STORE_LOST}
)

ENDS = (
    ("the trainer died", frozenset({FaultKind.TRAINER_DIES})),
    ("the trainer is gone", frozenset({FaultKind.TRAINER_DIES})),
    ("the weight store is gone", frozenset({FaultKind.STORE_LOST})),
    ("no engine acknowledged", WEIGHT_FAULTS | ENGINE_FAULTS),
    ("no engine is left", WEIGHT_FAULTS | ENGINE_FAULTS),
)
"""How a run may end early: the words of the reason, and the faults that account for them."""


def broken_at_ports(
    run: Evidence, result: RunResult, driver: FaultDriver, launcher: FaultyLauncher
) -> list[str]:
    """Every promise that was broken where control meets the world."""
    return [
        *driver.accusations,
        *told_by(ids_are_what_engines_said, run, launcher),
        *told_by(verdicts_are_what_rewards_said, run, launcher),
        *told_by(everything_is_let_go, launcher),
        *told_by(deaths_are_noticed, run, launcher),
        *told_by(the_end_is_accounted_for, run, result, driver),
    ]


def ids_are_what_engines_said(run: Evidence, launcher: FaultyLauncher) -> Iterator[str]:
    """Promise 2: trained ids are those that control took from engines, in order.

    Blocks without content are compared by length.
    """
    said = dict[str, bytes | int]()
    sent = {id(sent): sent for engine in launcher.engines for sent in engine.dispatches}
    for turn, dispatches in by_turn(run).items():
        blocks = [block for d in dispatches for block in sent[id(d)].ids]
        said[turn] = _content(join(blocks))
    for _, batch in run.batches:
        for trajectory in batch.trajectories:
            for turn, ids in enumerate(_sampled(trajectory)):
                name = f"{trajectory.id.session}/t{turn}"
                if ids != said.get(name, 0):
                    yield f"tokens: {name} was trained with other ids than its engines sampled"


def _sampled(trajectory: Trajectory) -> list[bytes | int]:
    pieces = [p for s in trajectory.segments for p in s.pieces if p.sampled]
    return [_content(piece.ids) for piece in pieces]


def _content(block: TokenBlock) -> bytes | int:
    return block.tobytes() if isinstance(block, np.ndarray) else len(block)


def verdicts_are_what_rewards_said(run: Evidence, launcher: FaultyLauncher) -> Iterator[str]:
    """Promises 1 and 9: each is trained with the verdict given for it; no verdict is not 0."""
    given = {
        name: v for reward in launcher.rewards_of.values() for name, v in reward.verdicts.items()
    }
    for _, batch in run.batches:
        for trajectory in batch.trajectories:
            verdict = given.get(str(trajectory.id))
            if trajectory.verdict != verdict:
                yield f"numbers: {trajectory.id} has {trajectory.verdict}, given was {verdict}"


def everything_is_let_go(launcher: FaultyLauncher) -> Iterator[str]:
    """Promises 7 and 10: at the end nothing is held for what is over."""
    for engine in launcher.engines:
        if engine.left:
            yield f"memory: {engine.id} was left with {len(engine.left)}: {engine.left[:3]}"
    for domain, environments in launcher.environments_of.items():
        if environments.open_now:
            yield f"liveness: {len(environments.open_now)} environments of {domain} left open"
    for domain, reward in launcher.rewards_of.items():
        if reward.running:
            yield f"liveness: {reward.running} rewards of {domain} still run"


def deaths_are_noticed(run: Evidence, launcher: FaultyLauncher) -> Iterator[str]:
    """Promise 7: a dead engine is given up within a second, a dead trainer ends the run in time."""
    ended = run.events[-1][0]
    downs = [(time, event.engine) for time, event in run.events if isinstance(event, EngineDown)]
    for engine in launcher.engines:
        died = engine.died_at
        if died is None or ended <= died + SOON_S:
            continue
        if not any(name == engine.id and abs(time - died) <= SOON_S for time, name in downs):
            yield f"liveness: {engine.id} died at {died:.1f} s, and nobody noticed"
    patience = 3 * run.job.timeouts.engine_s + SOON_S
    for trainer in launcher.trainers:
        if trainer.died_at is not None and ended > trainer.died_at + patience:
            yield f"liveness: the trainer died {ended - trainer.died_at:.1f} s before the run's end"


def the_end_is_accounted_for(
    run: Evidence, result: RunResult, driver: FaultDriver
) -> Iterator[str]:
    """Promise 7: the run goes to its end, or says which loss ended it."""
    if result.ok and run.steps == run.job.run.steps:
        return
    felt = {placed.fault.kind for placed in driver.placed if placed.felt}
    if result.ok or not any(w in result.reason and felt & kinds for w, kinds in ENDS):
        yield (
            f"liveness: the run ended after {run.steps} of {run.job.run.steps} steps, and no fault "
            f"accounts for it: {result.reason}"
        )
