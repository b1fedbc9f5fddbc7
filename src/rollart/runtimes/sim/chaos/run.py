"""One run under faults: what came of it, and which promises it broke.

Invariant: a run follows from its scene, its faults and control's parts; the same again gives the
same events at the same times. An error in judging is never taken for one of the run: it is told of
the check that raised, and the other checks are heard.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rollart.control.assembly import STANDARD, ControlParts, assemble, declared_placement
from rollart.control.controller import RunResult
from rollart.core.events import Event
from rollart.runtimes.sim.chaos.checking import CHECK, told_by
from rollart.runtimes.sim.chaos.driver import FaultDriver, Placed
from rollart.runtimes.sim.chaos.evidence import EngineSeen, Evidence
from rollart.runtimes.sim.chaos.faults import Fault
from rollart.runtimes.sim.chaos.faulty_launcher import FaultyLauncher
from rollart.runtimes.sim.chaos.invariants import broken_invariants
from rollart.runtimes.sim.chaos.port_invariants import broken_at_ports
from rollart.runtimes.sim.chaos.scene import Scene
from rollart.runtimes.sim.loop import SimulationStuck, run_virtual

LONGEST_S = 200_000.0
"""Virtual seconds; all the deadlines of a small job, one after another, take less."""

MOST_CALLBACKS = 200_000
"""Callbacks within one instant, after which a run counts as one that spins."""

CONTROL = "/rollart/control/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRun:
    """What came of a run.

    Attributes:
        end: the reason that it gave for its end.
        ended_early: it did not do all of its steps.
        placed: its faults, with when they came and who met them.
        broken: the promises that it broke, as sentences; each begins with a word for the promise,
            or with `CHECK` where a check failed itself.
    """

    end: str
    ended_early: bool
    placed: tuple[Placed, ...]
    events: tuple[tuple[float, Event], ...]
    broken: tuple[str, ...]

    @property
    def broken_words(self) -> frozenset[str]:
        """Which promises, without the particulars."""
        return frozenset(sentence.partition(":")[0] for sentence in self.broken)

    @property
    def misjudged(self) -> bool:
        """Whether a check failed itself, so that what was found says too little of control."""
        return CHECK in self.broken_words

    @property
    def digest(self) -> str:
        """Equal for equal events at equal times."""
        return blake2b(repr(self.events).encode(), digest_size=8).hexdigest()


def play(scene: Scene, faults: Sequence[Fault], *, parts: ControlParts = STANDARD) -> ChaosRun:
    """Run the scene's job under `faults`, and judge it."""
    driver = FaultDriver(faults)
    end, early, broken = "", True, list[str]()

    async def main() -> None:
        nonlocal end, early
        launcher = FaultyLauncher(scene.launcher(driver), driver)
        controller = await assemble(
            scene.job,
            launcher,
            run_id="chaos",
            placement=declared_placement(scene.job),
            save_to=None,
            events=driver,
            parts=parts,
        )
        result = await controller.run()
        end, early = result.reason, result.steps < scene.job.run.steps
        broken.extend(await _left_behind())
        broken.extend(told_by(_judge, scene, result, driver, launcher))
        await launcher.close()

    try:
        run_virtual(main, max_virtual_time=LONGEST_S, max_callbacks_per_instant=MOST_CALLBACKS)
    except SimulationStuck as stuck:
        end = f"never ended: {stuck.reason}"
        broken.append(f"liveness: the run {end}")
    except Exception as error:
        end = f"raised {error!r}"
        broken.append(f"liveness: the run {end}")
    return ChaosRun(
        end=end,
        ended_early=early,
        placed=tuple(driver.placed),
        events=tuple(driver.events),
        broken=tuple(broken),
    )


async def _left_behind() -> list[str]:
    """Tasks of control that outlive the run."""
    for _ in range(3):
        await asyncio.sleep(0)
    left = [
        task.get_name()
        for task in sorted(asyncio.all_tasks(), key=hash)
        if CONTROL in getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "")
    ]
    return [f"memory: {len(left)} tasks of control outlive the run: {left[:3]}"] if left else []


def _judge(
    scene: Scene, result: RunResult, driver: FaultDriver, launcher: FaultyLauncher
) -> list[str]:
    evidence = Evidence(
        job=scene.job,
        steps=result.steps,
        events=driver.events,
        batches=[batch for trainer in launcher.trainers for batch in trainer.batches],
        engines=[
            EngineSeen(id=engine.id, calls=engine.calls, dispatches=engine.dispatches)
            for engine in launcher.engines
        ],
    )
    return [*broken_invariants(evidence), *broken_at_ports(evidence, result, driver, launcher)]
