"""Conformance of a `Reward`: a verdict always comes, and no verdict is not 0."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollart.core.ports import Reward
from rollart.core.types import Trajectory, Verdict
from rollart.testing.conformance.contract import Contract, Latency, cancelled
from rollart.testing.conformance.environments import BLOCKED_S

MakeReward = Callable[[], Awaitable[Reward]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTrial:
    """What the suite may assume about the reward it is given.

    Attributes:
        trajectory: one that gets a score.
        unscorable: one that gets no verdict (the code raises, say); else not checked.
        hanging: one whose scoring does not return; without it that is not checked.
        overruns: whether the reward itself ends such a call, with no verdict.
    """

    trajectory: Trajectory
    unscorable: Trajectory | None = None
    hanging: Trajectory | None = None
    overruns: bool = False
    concurrent: int = 16
    patience_s: float = 30.0
    quiet_s: float = 0.2


async def check_reward(make: MakeReward, trial: RewardTrial) -> None:
    """Every clause of the `Reward` port; raises `ConformanceError` at the first broken one."""
    contract = Contract("Reward", trial.patience_s)
    reward = await contract.soon(make(), "a reward can be made")
    async with Latency() as latency:
        score = await _scores(contract, trial, reward)
        await _refuses(contract, trial, reward)
        await _hangs(contract, trial, reward)
        again = await contract.soon(reward.score(trial.trajectory), "score returns")
        contract.require(again == score, "a reward keeps no state", f"{score}, then {again}")
    stood = latency.longest_s
    contract.require(stood < BLOCKED_S, "the event loop goes on", f"it stood for {stood:.2f} s")
    for _ in range(2):
        await contract.soon(reward.close(), "close returns, also twice")


async def _scores(contract: Contract, trial: RewardTrial, reward: Reward) -> Verdict:
    verdict = await contract.soon(reward.score(trial.trajectory), "score returns")
    good = isinstance(verdict, Verdict) and verdict.score is not None
    good = good and math.isfinite(verdict.score or 0.0)
    contract.require(good, "a trajectory that can be scored gets a finite score", f"{verdict}")
    calls = [asyncio.ensure_future(reward.score(trial.trajectory)) for _ in range(trial.concurrent)]
    await asyncio.sleep(0)
    await cancelled(calls.pop())
    for call in calls:
        other = await contract.soon(call, "a cancelled call costs the others nothing")
        contract.require(other == verdict, "equal trajectories score equally", f"{other}")
    return verdict


async def _refuses(contract: Contract, trial: RewardTrial, reward: Reward) -> None:
    if trial.unscorable is None:
        return
    clause = "what cannot be scored gets no verdict, with the reason, and no error"
    verdict = await contract.soon(reward.score(trial.unscorable), clause)
    contract.require(verdict.score is None and bool(verdict.reason), clause, f"{verdict}")


async def _hangs(contract: Contract, trial: RewardTrial, reward: Reward) -> None:
    if trial.hanging is None:
        return
    hung = asyncio.ensure_future(reward.score(trial.hanging))
    await contract.waits(hung, trial.quiet_s, "that call hangs")
    await contract.soon(reward.score(trial.trajectory), "a call that hangs holds back no other")
    if trial.overruns:
        clause = "a call that hangs ends by itself, with no verdict and the reason"
        verdict = await contract.soon(hung, clause)
        contract.require(verdict.score is None and bool(verdict.reason), clause, f"{verdict}")
    else:
        await contract.soon(cancelled(hung), "a call that hangs can be cancelled")
