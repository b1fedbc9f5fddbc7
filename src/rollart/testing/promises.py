"""What every scripted run must keep: the invariants of any run, and what only fakes can tell.

Invariant: as in `rollart.runtimes.sim.chaos.invariants`, the checks share no code with the control
plane they judge; each returns the broken promises as sentences, none when all hold.
"""

from collections.abc import Iterator

import numpy as np

from rollart.core.identity import request_seed
from rollart.runtimes.sim.chaos.checking import told_by
from rollart.runtimes.sim.chaos.evidence import EngineSeen, Evidence
from rollart.runtimes.sim.chaos.invariants import broken_invariants
from rollart.testing.harness import ScriptedRun


def broken_promises(run: ScriptedRun) -> list[str]:
    """Every promise that `run` broke."""
    return [
        *broken_invariants(evidence_of(run)),
        *told_by(trained_ids_are_sampled_ids, run),
        *told_by(everything_is_let_go, run),
    ]


def evidence_of(run: ScriptedRun) -> Evidence:
    """What is known of a scripted run."""
    return Evidence(
        job=run.job,
        steps=run.result.steps,
        events=run.events.events,
        batches=[batch for trainer in run.launcher.trainers for batch in trainer.batches],
        engines=[
            EngineSeen(id=engine.id, calls=engine.log.calls, dispatches=engine.log.dispatches)
            for engine in run.launcher.engines
        ],
    )


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


def everything_is_let_go(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: nothing is left behind."""
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
