"""Flights and live groups: starts, condemnation, and what becomes of a group that has ended."""

import asyncio

import pytest

from rollart.control.flight import Fate, Flight, LiveGroup, fate_of
from rollart.control.task_queue import QueuedTask
from rollart.core.types import Disposition, Task, Trajectory
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.rig import identity
from rollart.testing.samples import sample_trajectory

TASK = Task(domain="lake", key="task-0")


def flight(member: int = 0, start: int | None = None) -> Flight:
    return Flight(id=identity(member), task=TASK, started_at=0.0, start_version=start)


def group() -> LiveGroup:
    return LiveGroup(id=0, entry=QueuedTask(task=TASK), size=4)


def test_a_flight_starts_with_the_first_engine_it_was_sent_to() -> None:
    one = flight()
    for version in (3, 2, 5):
        one.begin(version)
    assert one.start_version == 3


def test_a_groups_start_is_the_oldest_of_its_members_finished_ones_included() -> None:
    async def main() -> None:
        live = group()
        assert live.start_version is None
        live.flights[0] = flight(0)
        assert live.start_version is None
        live.flights[1] = flight(1, start=5)
        live.done[2] = sample_trajectory(member=2, version=4)
        assert live.start_version == 4
        assert live.trajectories == 3

    run_virtual(main)


def test_a_group_is_condemned_once_so_that_its_members_may_wait_for_their_engines() -> None:
    async def member(let_go: asyncio.Event) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            let_go.set()

    async def main() -> None:
        live, let_go = group(), asyncio.Event()
        live.members[0] = asyncio.get_running_loop().create_task(member(let_go))
        await asyncio.sleep(1)
        live.condemn(Disposition.STALE, "first")
        await asyncio.sleep(0.5)
        live.condemn(Disposition.CANCELLED, "second")
        await asyncio.wait([live.members[0]])
        assert let_go.is_set()
        assert (live.doom, live.doom_reason) == (Disposition.STALE, "first")

    run_virtual(main)


def scored(*scores: float | None) -> list[Trajectory]:
    return [sample_trajectory(score=score, member=i) for i, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "needed", "drop", "fate"),
    [
        ((1.0, 0.0), 2, True, Fate.READY),
        ((1.0, None), 2, True, Fate.INCOMPLETE),
        ((1.0,), 1, False, Fate.READY),
        ((1.0,), 1, True, Fate.FILTERED),
        ((), 1, True, Fate.INCOMPLETE),
        ((0.5, 0.5, 0.5), 2, True, Fate.FILTERED),
        ((0.5, 0.5, 0.5), 2, False, Fate.READY),
        ((0.1 + 0.2, 0.3), 2, True, Fate.FILTERED),
        ((0.5, None, 0.6), 2, True, Fate.READY),
    ],
)
def test_the_fate_of_a_group_follows_from_the_members_that_have_a_score(
    scores: tuple[float | None, ...], needed: int, drop: bool, fate: Fate
) -> None:
    assert fate_of(scored(*scores), needed=needed, drop_zero_variance=drop) is fate


def test_no_score_is_not_a_score_of_zero() -> None:
    members = scored(1.0, 1.0, None)
    assert fate_of(members, needed=2, drop_zero_variance=True) is Fate.FILTERED
    members[2] = sample_trajectory(score=0.0, member=2)
    assert fate_of(members, needed=2, drop_zero_variance=True) is Fate.READY
