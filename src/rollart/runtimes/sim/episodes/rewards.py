"""Modelled rewards: a score, or no verdict, after a wait and some computing.

Invariant: score and time follow from the trajectory's identity; a reward never raises, and gives no
verdict with the reason where its time is over.
"""

import asyncio

from rollart.core.errors import FailureKind
from rollart.core.ports import EventSink
from rollart.core.types import Trajectory, Verdict
from rollart.runtimes.sim.episodes.reward_pools import (
    Anywhere,
    Dedicated,
    RewardPool,
    Scaling,
    Serverless,
)
from rollart.runtimes.sim.episodes.workload import DomainWorkload
from rollart.runtimes.sim.hardware.catalogue import serverless
from rollart.runtimes.sim.world.sections import RewardSection, ServerlessSection


class ModelledReward:
    """The `Reward` port of one domain.

    Args:
        pool: where it is computed; several rewards may share one. Whoever made it closes it.
        limit_s: seconds, waiting included, after which there is no verdict.
    """

    def __init__(self, workload: DomainWorkload, pool: RewardPool, *, limit_s: float) -> None:
        self._workload = workload
        self._pool = pool
        self._limit_s = limit_s

    async def score(self, trajectory: Trajectory) -> Verdict:
        """A score from 0 to 1."""
        ident = trajectory.id
        name = str(ident)
        span = self._workload.scoring(name)
        scope = asyncio.timeout(self._limit_s)
        try:
            async with scope:
                await self._pool.compute(span.seconds)
        except TimeoutError:
            return Verdict(
                score=None,
                reason=f"no answer within {self._limit_s:g} s",
                failure=FailureKind.REWARD_TIMEOUT,
            )
        if span.fails:
            return Verdict(score=None, reason="the reward failed", failure=FailureKind.REWARD_ERROR)
        group = f"{ident.domain}/{ident.task}/g{ident.group}"
        return Verdict(score=self._workload.score(name, group))

    async def close(self) -> None:
        """Its pool belongs to whoever made it."""


def make_pool(name: str, section: RewardSection, events: EventSink) -> RewardPool:
    """The pool of a world's reward; call it on the running loop. Raises `ConfigError`."""
    if section.dedicated is not None:
        own = section.dedicated
        return Dedicated(
            name, hardware=own.hardware, gpus=own.gpus, at_once=own.at_once, events=events
        )
    if section.serverless is not None:
        given = section.serverless
        return Serverless(
            name,
            hardware=given.hardware or given.platform,
            at_once=given.at_once,
            scaling=scaling_of(given),
            events=events,
        )
    return Anywhere()


def scaling_of(given: ServerlessSection) -> Scaling:
    """What the section says, and its platform where it says nothing. Raises `ConfigError`."""
    platform = serverless(given.platform)
    return Scaling(
        cold_start_s=platform.cold_start_s if given.cold_start_s is None else given.cold_start_s,
        keep_s=platform.keep_s if given.keep_s is None else given.keep_s,
        limit=given.limit or platform.limit,
        burst=platform.burst,
        growth_per_min=platform.growth_per_min,
    )
