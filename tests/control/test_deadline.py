"""Deadlines: as `asyncio.timeout` would have it, under one timer a task."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.control.deadline import Deadline, Deadlines, now
from rollart.runtimes.sim.loop import run_virtual

# No two sums of these are equal: what happens first at one instant is nobody's promise.
DEADLINES = st.sampled_from((1.0, 2.0, 3.0, 5.0, 8.0))
WORK = st.sampled_from((0.0, 0.31, 1.37, 2.71, 6.59))
CLEANUP = st.sampled_from((0.0, 0.0113, 3.0237))


@dataclass(frozen=True, slots=True)
class Wait:
    """Under a deadline: work that takes `work` seconds, and `cleanup` seconds if cancelled."""

    deadline: float
    work: float
    cleanup: float


@dataclass(frozen=True, slots=True)
class Case:
    """Waits one after another under one outer deadline; cancelled from outside at `cancelled`."""

    outer: float
    waits: tuple[Wait, ...]
    cancelled: float


CASES = st.builds(
    Case,
    outer=st.sampled_from((1.0, 4.0, 6.0, 10.0, 100.0)),
    waits=st.lists(st.builds(Wait, DEADLINES, WORK, CLEANUP), min_size=1, max_size=5).map(tuple),
    cancelled=st.sampled_from((0.50071, 2.00071, 4.00071, 7.00071, 1000.0)),
)
Log = list[tuple[float, str]]


async def work(wait: Wait) -> str:
    try:
        await asyncio.sleep(wait.work)
    except asyncio.CancelledError:
        await asyncio.sleep(wait.cleanup)
        raise
    return "done"


async def by_deadlines(case: Case, log: Log, kind: Callable[[], Deadlines]) -> None:
    deadlines = kind()
    with deadlines.after(case.outer):
        for wait in case.waits:
            try:
                said = await deadlines.within(wait.deadline, work(wait), LookupError)
                log.append((now(), said))
            except LookupError:
                log.append((now(), "too late"))


async def by_timeouts(case: Case, log: Log) -> None:
    async with asyncio.timeout(case.outer):
        for wait in case.waits:
            scope = asyncio.timeout(wait.deadline)
            try:
                async with scope:
                    said = await work(wait)
                log.append((now(), said))
            except TimeoutError:
                assert scope.expired()
                log.append((now(), "too late"))


def played(case: Case, play: Callable[[Case, Log], Coroutine[None, None, None]]) -> Log:
    """What happened when, with the end."""

    async def main() -> Log:
        log: Log = []
        task = asyncio.get_running_loop().create_task(play(case, log))
        cancelling = asyncio.get_running_loop().call_later(case.cancelled, task.cancel)
        await asyncio.wait([task])
        cancelling.cancel()
        end = "cancelled" if task.cancelled() else type(task.exception()).__name__
        return [*log, (now(), end)]

    return run_virtual(main)


def plays(kind: Callable[[], Deadlines]) -> Callable[[Case, Log], Coroutine[None, None, None]]:
    return lambda case, log: by_deadlines(case, log, kind)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(CASES)
def test_nested_deadlines_end_what_asyncio_timeout_would_end_and_when(case: Case) -> None:
    assert played(case, plays(Deadlines)) == played(case, by_timeouts)


class ForgetsWhatIsLeft(Deadlines):
    """A timer that fires too early is not set anew."""

    def _fire(self) -> None:
        super()._fire()
        if self.timer is not None:
            self.timer.cancel()


class ExpiresTheOuterOnly(Deadlines):
    """An inner deadline that is over is passed by."""

    def _fire(self) -> None:
        hidden: Sequence[Deadline] = self.open[1:]
        del self.open[1:]
        super()._fire()
        self.open.extend(hidden)


@pytest.mark.parametrize("kind", [ForgetsWhatIsLeft, ExpiresTheOuterOnly])
def test_the_comparison_finds_a_deadline_that_is_forgotten(kind: type[Deadlines]) -> None:
    in_time, late = Wait(deadline=2.0, work=1.0, cleanup=0.0), Wait(3.0, 8.0, 0.0)
    case = Case(outer=10.0, waits=(in_time, late), cancelled=1000.0)
    assert played(case, plays(Deadlines)) == [
        (1.0, "done"),
        (4.0, "too late"),
        (4.0, "NoneType"),
    ]
    assert played(case, plays(kind)) != played(case, by_timeouts)


class CountsTimers(Deadlines):
    """Keeps how many timers were set."""

    timers = 0

    def arm(self, at: float) -> None:
        before = self.timer
        super().arm(at)
        self.timers += self.timer is not before


def test_a_thousand_waits_that_end_in_time_take_few_timers() -> None:
    async def main() -> None:
        deadlines = CountsTimers()
        with deadlines.after(10_000.0):
            for _ in range(1000):
                await deadlines.within(50.0, asyncio.sleep(1.0), LookupError)
        assert deadlines.timer is None
        assert deadlines.timers <= 2 + 2 * 1000 // 50

    run_virtual(main)


def test_a_cancellation_at_the_instant_of_the_deadline_is_not_lost() -> None:
    async def waits() -> None:
        deadlines = Deadlines()
        await deadlines.within(2.0, asyncio.sleep(10.0), LookupError)

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(waits())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(2.0, task.cancel)
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run_virtual(main)
