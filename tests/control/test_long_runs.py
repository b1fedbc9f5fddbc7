"""Five hundred steps: what is stored stays the same, and the books are closed at the end."""

import gc
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field

from rollart.control.assembly import STANDARD, ControlParts, assemble, declared_placement
from rollart.control.ledger import Ledger
from rollart.core.events import Event, LedgerClosed, RunEnded
from rollart.core.identity import TrajectoryId
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.harness import scripted_job
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.script import Script

STEPS = 500
SETTLED = 100
"""Steps after which everything that is filled once has been filled."""


@dataclass
class Counted:
    """An event sink that keeps counts, and the last balance and end."""

    kinds: Counter[type[Event]] = field(default_factory=Counter[type[Event]])
    last: LedgerClosed | None = None
    end: RunEnded | None = None

    def emit(self, event: Event) -> None:
        self.kinds[type(event)] += 1
        if isinstance(event, LedgerClosed):
            self.last = event
        elif isinstance(event, RunEnded):
            self.end = event


@dataclass
class Measured:
    """Bytes of Python objects at some steps, and how the run ended."""

    events: Counted
    bytes_at: dict[int, int]

    @property
    def growth(self) -> int:
        return self.bytes_at[STEPS] - self.bytes_at[SETTLED]


def measured_run(parts: ControlParts = STANDARD) -> Measured:
    """A run of `STEPS` with losses of every kind and an engine that dies now and then."""
    events, bytes_at = Counted(), dict[int, int]()

    class Weighs(parts.sync):
        async def iteration(self, step: int) -> None:
            await super().iteration(step)
            if step + 1 in (SETTLED, STEPS):
                gc.collect()
                bytes_at[step + 1] = tracemalloc.get_traced_memory()[0]

    script = Script(
        turns=(1, 2),
        tokens_per_turn=(1, 3),
        step_fails=0.02,
        reward_refuses=0.05,
        equal_scores=0.1,
        engine_deaths=(("engine-0", 500), ("engine-0", 2000)),
    )
    job = scripted_job(
        run__steps=STEPS,
        rollout__batch_groups=2,
        rollout__group_size=2,
        train__drop_zero_variance=True,
    )

    async def main() -> None:
        controller = await assemble(
            job,
            ScriptedLauncher(script, keeps_batches=False),
            run_id="run",
            placement=declared_placement(job),
            save_to=None,
            events=events,
            parts=ControlParts(sync=Weighs, ledger=parts.ledger),
        )
        await controller.run()

    tracemalloc.start()
    try:
        run_virtual(main)
    finally:
        tracemalloc.stop()
    return Measured(events=events, bytes_at=bytes_at)


def test_memory_is_flat_over_500_steps_and_the_ledger_is_closed() -> None:
    measured = measured_run()
    assert measured.events.end is not None
    assert (measured.events.end.ok, measured.events.end.steps) == (True, STEPS)
    assert measured.growth < 200_000, f"{measured.growth} bytes in {STEPS - SETTLED} steps"
    last = measured.events.last
    assert last is not None
    assert (last.balanced, last.buffered, last.in_flight) == (True, 0, 0)
    assert dict(last.dispositions)["trained"] >= 2 * 2 * STEPS - STEPS
    assert all(dict(last.dispositions)[name] > 0 for name in ("failed", "filtered", "cancelled"))


class RemembersAll(Ledger):
    """Keeps the identity of everything that ever started."""

    def start(self, trajectory: TrajectoryId) -> None:
        super().start(trajectory)
        self.__dict__.setdefault("seen", []).append(trajectory)


def test_a_ledger_that_remembers_everything_is_found_by_the_same_measure() -> None:
    assert measured_run(ControlParts(ledger=RemembersAll)).growth > 200_000
