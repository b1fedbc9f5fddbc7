"""Worlds for chaos: modelled hardware in which not everything is plain.

Invariant: a world follows from its seed and its job, and fits that job; whatever queues in it is
short against the job's deadlines, so that without a fault a run ends well.
"""

import random

from rollart.core.config import JobConfig
from rollart.core.identity import derive_seed
from rollart.runtimes.sim.world.defaults import default_world
from rollart.runtimes.sim.world.distributions import uniform
from rollart.runtimes.sim.world.fitting import gpus_wanted
from rollart.runtimes.sim.world.sections import (
    DedicatedSection,
    EngineSection,
    ImageSection,
    PhaseSection,
    RegistrySection,
    RewardSection,
    ServerlessSection,
    World,
)

SPLIT = EngineSection(
    prefill=PhaseSection(hardware="H800"), decode=PhaseSection(hardware="H20", count=2)
)
SCORING_S = uniform(0.1, 1.0)
DEDICATED = RewardSection(
    seconds=SCORING_S, dedicated=DedicatedSection(hardware="H20", gpus=1, at_once=2)
)
SERVERLESS = RewardSection(
    seconds=SCORING_S, serverless=ServerlessSection(cold_start_s=2.0, keep_s=20.0, limit=4)
)
IMAGE = ImageSection(hit=0.5, pull_s=uniform(0.5, 3.0))
FEATURE = 0.4
"""The chance of each."""


def draw_world(seed: int, job: JobConfig) -> World:
    """The plain world of a job, with some of: engines split into prefill and decode, rewards on
    GPUs of their own or serverless, images to pull through a narrow registry, blocking weights.
    """
    rng = random.Random(derive_seed(seed, "world"))
    plain = default_world(job).world
    engines, domains, rewards = dict(plain.engines), dict(plain.domains), dict(plain.rewards)
    weights, tags = plain.weights, list(domains)
    if rng.random() < FEATURE:
        engines[rng.choice(list(engines))] = SPLIT
    if rng.random() < FEATURE:
        rewards[tags[0]] = DEDICATED
    if rng.random() < FEATURE:
        rewards[tags[-1]] = SERVERLESS
    if rng.random() < FEATURE:
        tag = rng.choice(tags)
        domains[tag] = domains[tag].model_copy(update={"image": IMAGE})
    if rng.random() < FEATURE:
        weights = weights.model_copy(update={"mode": "blocking"})
    world = plain.model_copy(
        update={
            "engines": engines,
            "domains": domains,
            "rewards": rewards,
            "weights": weights,
            "registry": RegistrySection(pulls_at_once=2),
        }
    )
    wanted = gpus_wanted(job, world)
    pools = {name: sum(gpus for _, gpus in wishes) for name, wishes in wanted.items()}
    return world.model_copy(update={"pools": pools})
