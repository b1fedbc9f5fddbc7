"""A small job and a small world for tests of simulated runs."""

from collections.abc import Mapping
from typing import Any

from rollart.core.config import JobConfig
from rollart.core.jobfile import Table, parse_job
from rollart.runtimes.sim.world.file import parse_world
from rollart.runtimes.sim.world.sections import World

TAG = "lake"


def small_job(**overrides: Any) -> JobConfig:
    """Two H800 and six H20; keys are dotted names with `__` for the dot."""
    table: Table = {
        "schema": 1,
        "run": {"steps": 3},
        "model": {"path": "none", "context": 8192},
        "rollout": {
            "batch_groups": 4,
            "group_size": 4,
            "engines": {"H800": 2, "H20": 6},
            "affinity": {"default": "H20"},
        },
        "train": {
            "correction": "behaviour",
            "drop_zero_variance": False,
            "microbatch_tokens": 8192,
        },
        "domains": [{"tag": TAG, "environment": "none:None", "max_turns": 30, "max_tokens": 512}],
        "timeouts": {
            "env_reset_s": 600.0,
            "env_step_s": 60.0,
            "episode_s": 3600.0,
            "weights_s": 300.0,
            "train_s": 3600.0,
            "stall_s": 3600.0,
        },
    }
    return parse_job(_set(table, overrides))


def small_table(**overrides: Any) -> Table:
    """A world for it, as TOML gives it."""
    table: Table = {
        "schema": 1,
        "model": {"name": "Qwen3-8B"},
        "pools": {"H800": 10, "H20": 6},
        "trainer": {"hardware": "H800", "gpus": 8, "fixed_s": 20.0},
        "engines": {"H800": {"gpus": 1}, "H20": {"gpus": 1}},
        "domains": {
            TAG: {
                "turns": {"uniform": [2, 8]},
                "first_tokens": {"uniform": [100, 200]},
                "observation_tokens": {"exponential": 50},
                "answer_tokens": {"lognormal": {"median": 60, "sigma": 0.6}},
                "prefix_hit": 0.5,
                "step_s": {"exponential": 0.3},
                "reset_s": {"lognormal": {"median": 3, "sigma": 0.4}},
            }
        },
    }
    return _set(table, overrides)


def small_world(**overrides: Any) -> World:
    """The same, read."""
    return parse_world(small_table(**overrides))


def _set(table: Table, overrides: Mapping[str, Any]) -> Table:
    for key, value in overrides.items():
        at = table
        *path, last = key.split("__")
        for part in path:
            at = at.setdefault(part, {})
        if value is None:
            del at[last]
        else:
            at[last] = value
    return table
