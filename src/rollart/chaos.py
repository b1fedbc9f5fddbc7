"""Chaos as the command runs it: seeds over scripted and modelled parts, and bugs planted by name.

Invariant: everything follows from the seeds. Scripted parts sample token ids, so that it shows when
others are trained than were sampled; modelled ones have lengths only, and the timing of hardware.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from rollart.control.assembly import STANDARD, ControlParts
from rollart.core.errors import ConfigError
from rollart.core.identity import derive_seed
from rollart.core.ports import EventSink, Launcher
from rollart.runtimes.sim.chaos.run import ChaosRun
from rollart.runtimes.sim.chaos.scene import Scene, draw_job
from rollart.runtimes.sim.chaos.search import (
    Coverage,
    Failure,
    Hunt,
    hunt,
    needed,
    play_seed,
)
from rollart.runtimes.sim.chaos.worlds import draw_world
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.plants import PLANTS
from rollart.testing.script import Script

__all__ = [
    "ChaosRun",
    "Coverage",
    "Failure",
    "Hunt",
    "drawn_scene",
    "hunt_seeds",
    "modelled_scene",
    "parts_of",
    "play_again",
    "scripted_scene",
]

CALM = Script(
    turns=(1, 3),
    tokens_per_turn=(2, 8),
    token_s=(0.02, 0.2),
    reset_s=(0.0, 1.0),
    step_s=(0.0, 1.0),
    reward_s=(0.0, 1.0),
    train_s=(1.0, 3.0),
    publish_s=(0.0, 0.5),
    update_s=(0.05, 1.0),
    equal_scores=0.05,
)
ROUGH = Script(
    turns=(1, 6),
    tokens_per_turn=(4, 16),
    token_s=(0.05, 0.4),
    reset_s=(0.0, 2.0),
    step_s=(0.0, 1.5),
    reward_s=(0.0, 1.5),
    train_s=(2.0, 4.0),
    publish_s=(0.0, 0.5),
    update_s=(0.5, 3.0),
    reset_fails=0.03,
    step_fails=0.03,
    reward_refuses=0.03,
)
"""Trajectories that outlast a step, and some that fail by themselves."""


def scripted_scene(seed: int) -> Scene:
    """A small job over scripted parts; half of the seeds are rough."""
    rng = random.Random(derive_seed(seed, "script"))
    script = replace(rng.choice((CALM, ROUGH)), seed=seed)

    def launcher(events: EventSink) -> Launcher:
        return ScriptedLauncher(script)

    return Scene(job=draw_job(seed), launcher=launcher)


def modelled_scene(seed: int) -> Scene:
    """A small job on modelled hardware, some of it split, shared or slow."""
    job = draw_job(seed, pace=10.0, max_tokens=256)
    world = draw_world(seed, job)

    def launcher(events: EventSink) -> Launcher:
        return SimLauncher(job, world, events=events)

    return Scene(job=job, launcher=launcher)


def drawn_scene(seed: int) -> Scene:
    """Every third seed or so is over modelled hardware, the others over scripted parts."""
    modelled = derive_seed(seed, "scene") % 3 == 0
    return modelled_scene(seed) if modelled else scripted_scene(seed)


def hunt_seeds(
    seeds: Iterable[int],
    *,
    plant: str | None = None,
    most: int = 10,
    told: Callable[[int, ChaosRun], None] = lambda seed, run: None,
) -> Hunt:
    """Hunt for broken promises, in control as it is or with a planted bug.

    Raises:
        ConfigError: there is no plant of that name.
    """
    return hunt(seeds, drawn_scene, parts=parts_of(plant), most=most, told=told)


def play_again(seed: int, *, plant: str | None = None) -> tuple[ChaosRun, Failure | None]:
    """One seed, and what it breaks, shrunk.

    Raises:
        ConfigError: there is no plant of that name.
    """
    parts = parts_of(plant)
    run = play_seed(seed, drawn_scene, parts=parts)
    if not run.broken:
        return run, None
    return run, Failure(seed=seed, run=run, needed=needed(seed, run, drawn_scene, parts))


def parts_of(plant: str | None) -> ControlParts:
    """Control's classes, with the named bug planted."""
    if plant is None:
        return STANDARD
    if plant not in PLANTS:
        raise ConfigError(f"--plant {plant}: no such bug is known; use one of {', '.join(PLANTS)}")
    return PLANTS[plant].parts
