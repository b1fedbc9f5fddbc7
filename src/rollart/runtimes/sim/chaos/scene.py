"""What chaos runs over: a small job drawn from a seed, and whoever launches its parts.

Invariant: a job follows from its seed; neighbouring seeds differ in protocol, spares and domains.
Times are short (virtual seconds), so that whatever hangs meets its deadline within a run.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollart.core.config import LAG_OF_ONE_BATCH, JobConfig
from rollart.core.identity import derive_seed
from rollart.core.jobfile import parse_job
from rollart.core.ports import EventSink, Launcher

PROTOCOLS = ("rollart", "areal", "one_off", "rollart", "sync", "sync_plus", "rollart")
TIMEOUTS = {
    "env_reset_s": 4.0,
    "env_step_s": 2.0,
    "reward_s": 2.0,
    "episode_s": 60.0,
    "engine_s": 10.0,
    "weights_s": 10.0,
    "train_s": 60.0,
    "stall_s": 240.0,
}
"""Seconds, at pace 1. Whatever an episode may wait for lies well within the stall."""

MODES = ("race", "race", "adaptive", "unbiased")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job and what it runs over. `launcher` is called within the run's loop, once a run."""

    job: JobConfig
    launcher: Callable[[EventSink], Launcher]


MakeScene = Callable[[int], Scene]
"""The scene of a seed."""


def draw_job(seed: int, *, pace: float = 1.0, max_tokens: int = 24) -> JobConfig:
    """A job of three or four steps over two engines and two domains.

    Args:
        pace: how many times longer everything may take.
        max_tokens: of a turn.
    """
    rng = random.Random(derive_seed(seed, "job"))
    steps = rng.randint(3, 4)
    protocol = PROTOCOLS[seed % len(PROTOCOLS)]
    alpha = 0 if protocol in LAG_OF_ONE_BATCH else rng.choice((1, 1, 2))
    if protocol == "rollart" and rng.random() < 0.2:
        alpha = 0
    mixed = rng.random() < 0.5
    evaluates = rng.random() < 0.2
    return parse_job(
        {
            "schema": 1,
            "run": {"steps": steps, "seed": seed},
            "model": {"path": "none", "context": 1024 + 8 * max_tokens},
            "rollout": {
                "batch_groups": rng.randint(1, 3),
                "group_size": 2,
                "engines": {"H800": 1, "H20": 1} if mixed else 2,
                "affinity": {"lake": "H800", "default": "H20"} if mixed else {},
            },
            "protocol": {"name": protocol, "alpha": alpha},
            "redundancy": _spares(rng),
            "train": {"correction": "behaviour", "drop_zero_variance": rng.random() < 0.5},
            "domains": [
                _domain("lake", 2.0, rng.randint(2, 3), max_tokens),
                _domain("shop", 1.0, rng.randint(2, 3), max_tokens),
            ],
            "timeouts": {name: pace * seconds for name, seconds in TIMEOUTS.items()},
            "faults": {"attempts": rng.randint(3, 4)},
            "eval": {"tasks": 2, "every": 2} if evaluates else {},
        }
    )


def _spares(rng: random.Random) -> dict[str, Any]:
    """Half of the jobs have some."""
    if rng.random() < 0.5:
        return {}
    mode = rng.choice(MODES)
    members, groups = rng.choice(((1, 0), (0, 1), (1, 1), (2, 2)))
    if mode == "adaptive":
        members = members or 2
    return {"members": members, "groups": groups, "mode": mode}


def _domain(tag: str, weight: float, size: int, max_tokens: int) -> dict[str, Any]:
    return {
        "tag": tag,
        "environment": "none:None",
        "weight": weight,
        "group_size": size,
        "max_turns": 6,
        "max_tokens": max_tokens,
    }
