"""What control does for a trajectory does not grow with the cluster, nor for a turn with the turns.

Counted, not timed: lines of `control` and `core` that run, each pass through a loop being one.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import rollart
from rollart.control.assembly import STANDARD, ControlParts
from rollart.control.flight import LiveGroup
from rollart.control.llm_proxy import Answer, GenerateCall, LLMProxy, StartSink
from rollart.control.scheduler import RolloutScheduler
from rollart.core.config import JobConfig
from rollart.core.events import TrajectoryStarted, TurnEnded
from rollart.core.tokens import total_length
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world.sections import World
from rollart.testing.parts import EventRecorder
from rollart.testing.worlds import TAG, small_job, small_world

ROOT = Path(rollart.__file__).parent
COUNTED = (str(ROOT / "control"), str(ROOT / "core"))
MORE = 6
"""How many times as large the larger cluster is."""
FEW, MANY = 20, 120
"""Turns of a trajectory."""
ALIKE = 1.03
"""What costs more than so many times as much has grown."""


class LooksAtEverybody(RolloutScheduler):
    """Looks at all that is under way at each turn."""

    def _may_go_on(self, group: LiveGroup) -> bool:
        return bool(self.waiting()) and super()._may_go_on(group)


class LooksAtEveryEngine(LLMProxy):
    """Looks at all engines for each request."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        slots = self._fleet.routable().values()
        fit = [slot for slot in slots if slot.hardware == call.trajectory.domain]
        self.lightest = min(fit or slots, key=lambda slot: slot.load, default=None)
        return await super().generate(call, on_start)


class CountsEachTime(LLMProxy):
    """Counts a whole prompt at each turn."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        assert total_length(call.prompt) == call.prompt_tokens
        return await super().generate(call, on_start)


def lines_of(work: Callable[[], Any]) -> int:
    """Lines of the counted folders that run in `work`."""
    lines = 0

    def line(frame: FrameType, what: str, value: object) -> Any:
        nonlocal lines
        lines += what == "line"
        return line

    def enter(frame: FrameType, what: str, value: object) -> Any:
        return line if frame.f_code.co_filename.startswith(COUNTED) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def counted(job: JobConfig, world: World, parts: ControlParts) -> tuple[int, EventRecorder]:
    events = EventRecorder()
    lines = lines_of(lambda: simulate(job, world, events=events, parts=parts))
    return lines, events


def lines_a_trajectory(times: int, parts: ControlParts = STANDARD) -> float:
    """In a run whose engines, trainer and batch are so many times those of the small world."""
    lines, events = counted(
        small_job(
            run__steps=2,
            rollout__engines={"H800": 2 * times, "H20": 6 * times},
            rollout__batch_groups=2 * times,
        ),
        small_world(pools={"H800": 10 * times, "H20": 6 * times}, trainer__gpus=8 * times),
        parts,
    )
    return lines / len(events.of(TrajectoryStarted))


def lines_a_turn(turns: int, parts: ControlParts = STANDARD) -> float:
    """In a run whose every trajectory has so many turns."""
    job = small_job(
        run__steps=2,
        rollout__batch_groups=1,
        rollout__group_size=2,
        domains=[{"tag": TAG, "environment": "none:None", "max_turns": MANY, "max_tokens": 512}],
    )
    domain = {"turns": turns, "first_tokens": 100, "observation_tokens": 10, "answer_tokens": 10}
    lines, events = counted(job, small_world(domains={TAG: domain}), parts)
    return lines / len(events.of(TurnEnded))


def test_a_trajectory_costs_control_as_much_in_a_large_cluster_as_in_a_small_one() -> None:
    assert lines_a_trajectory(MORE) < ALIKE * lines_a_trajectory(1)


def test_a_look_at_all_that_is_under_way_or_at_all_engines_would_be_noticed() -> None:
    for parts in (
        ControlParts(scheduler=LooksAtEverybody),
        ControlParts(proxy=LooksAtEveryEngine),
    ):
        assert lines_a_trajectory(MORE, parts) > ALIKE * lines_a_trajectory(1, parts)


def test_the_last_turn_of_a_long_trajectory_costs_control_no_more_than_the_first() -> None:
    assert lines_a_turn(MANY) < ALIKE * lines_a_turn(FEW)
    counting = ControlParts(proxy=CountsEachTime)
    assert lines_a_turn(MANY, counting) > ALIKE * lines_a_turn(FEW, counting)
