"""A whole run of the real control plane over scripted parts, under virtual time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollart.control.assembly import STANDARD, ControlParts, assemble, declared_placement
from rollart.control.controller import Controller, RunResult
from rollart.core.config import JobConfig
from rollart.core.jobfile import Table, parse_job
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.parts import EventRecorder, ScriptedLauncher
from rollart.testing.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRun:
    """What came of a run: its result, its events with their times, and the fakes behind it."""

    job: JobConfig
    result: RunResult
    events: EventRecorder
    launcher: ScriptedLauncher


def scripted_job(**overrides: Any) -> JobConfig:
    """A small valid job. Keys are dotted names with `__` for the dot: `protocol__alpha=0`."""
    table: Table = {
        "schema": 1,
        "run": {"steps": 5},
        "model": {"path": "none"},
        "rollout": {"batch_groups": 4, "group_size": 4},
        "train": {"correction": "behaviour", "drop_zero_variance": False},
        "domains": [{"tag": "lake", "environment": "none:None", "max_turns": 8}],
        "timeouts": {
            "env_reset_s": 4.0,
            "env_step_s": 2.0,
            "reward_s": 2.0,
            "episode_s": 60.0,
            "engine_s": 10.0,
            "weights_s": 10.0,
            "train_s": 60.0,
            "stall_s": 120.0,
        },
    }
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        if name:
            table.setdefault(section, {})[name] = value
        else:
            table[section] = value
    return parse_job(table)


def run_scripted(
    job: JobConfig,
    script: Script | None = None,
    *,
    tasks: int | None = None,
    launcher: Callable[[Script], ScriptedLauncher] | None = None,
    parts: ControlParts = STANDARD,
    meddle: Callable[[Controller, ScriptedLauncher], None] | None = None,
    max_virtual_time: float = math.inf,
) -> ScriptedRun:
    """Run `job` to its end over fakes.

    Args:
        tasks: how many tasks a domain has; endless without it.
        launcher: makes the launcher, for a test that brings parts of its own.
        parts: the control plane's own classes, to plant a bug or try a policy.
        meddle: called before the run starts, to schedule interference.
        max_virtual_time: seconds after which the run counts as one that never ends.

    Raises:
        SimulationStuck: the run cannot end, or not within `max_virtual_time`.
    """

    async def main() -> ScriptedRun:
        events = EventRecorder()
        played = script or Script()
        fakes = launcher(played) if launcher else ScriptedLauncher(played, tasks=tasks)
        controller = await assemble(
            job,
            fakes,
            run_id="run",
            placement=declared_placement(job),
            save_to="weights",
            events=events,
            parts=parts,
        )
        if meddle is not None:
            meddle(controller, fakes)
        return ScriptedRun(job=job, result=await controller.run(), events=events, launcher=fakes)

    return run_virtual(main, max_virtual_time=max_virtual_time)
