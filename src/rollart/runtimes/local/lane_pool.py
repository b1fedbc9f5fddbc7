"""As many killable children as the load asks for, each with its lane of jobs.

Owns between `keep` and `most` children; with `keep` 0 there is none before the first job and none
again once there was nothing to do for `idle_s` seconds. Invariant: a child that is lost costs the
job at its head and no other. A child being started belongs to the pool, not to the job that asked
for it: who gives up leaves it to the next. Who waits on whom: a job waits for a child with room,
and in it for the jobs before it, each of which ends by its own deadline; `close` for all children.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from rollart.process.child import Child
from rollart.process.errors import ProcessError
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.lane import Job, Lane, wait_until_gone

MOST_CHILDREN = 8
"""Default bound on the children of one pool."""

IDLE_S = 30.0
"""Seconds without work after which a child that need not be kept is ended."""

_LEAST_IDLE_S = 0.1  # a burst's calls are not further apart
_QUICK_S = 0.01  # mean seconds under which a job counts as quick
_BACKLOG_S = 0.1  # seconds that quick jobs may wait before another child is started
_CLOSE_S = 5.0

ForkChild = Callable[[str], Awaitable[Child]]
"""Starts a child under the given name."""


class LanePool:
    """Lanes of children that all do the same.

    Args:
        name: what children are called, with a number.
        depth: quick jobs that may be queued in one child, so that it never waits for the owner.
        idle_s: seconds without work after which a child ends. None: as long as two starts take,
            going by the latest, so that neither keeping one nor starting another costs much more
            than it saves.
        on_end: takes each child that ended: its name, loop time of its start and of its end.
    """

    def __init__(
        self,
        name: str,
        fork: ForkChild,
        *,
        most: int = MOST_CHILDREN,
        keep: int = 1,
        depth: int = 1,
        idle_s: float | None = IDLE_S,
        on_end: Callable[[str, float, float], None] | None = None,
    ) -> None:
        self._on_end = on_end
        self._name = name
        self._fork = fork
        self._most = most
        self._keep = keep
        self._depth = depth
        self._idle_s = idle_s
        self._start_s = 0.0  # that the latest start took; the first one loads what all others share
        self._lanes: list[Lane] = []
        self._leaving: list[Lane] = []  # lost ones, whose process may not be reaped yet
        self._start: asyncio.Task[None] | None = None  # lives until the child is ready, or close()
        self._start_failed: Exception | None = None  # to be raised where a child was needed
        self._started = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def processes(self) -> int:
        """Children that live now."""
        return sum(lane.lost is None for lane in self._lanes)

    @property
    def starting(self) -> bool:
        """Whether a child is being started."""
        return self._start is not None

    @property
    def started(self) -> int:
        """Children started so far."""
        return self._started

    @property
    def _idle_limit_s(self) -> float:
        return max(_LEAST_IDLE_S, 2 * self._start_s) if self._idle_s is None else self._idle_s

    async def submit(
        self, *args: Packed, limit_s: Callable[[], float], on_ask: Callable[[Packed], None] | None
    ) -> tuple[Lane, Job]:
        """Queue a job where there is room; await its `answer` next.

        Args:
            limit_s: asked once the job has a child: the seconds it may then take.
            on_ask: takes what the child asks for while it works on this job.

        Raises:
            ProcessError: no child can be started, or the pool is closed.
            LaneLost: the child was lost meanwhile.
        """
        lane = await self._lane_with_room()
        job = lane.submit(*args, limit_s=limit_s())
        job.on_ask = on_ask
        job.on_over = self._on_over
        if self._has_room(lane):
            self._wake_one()
        elif any(not waiter.done() for waiter in self._waiters):
            self._start_if_behind()
        return lane, job

    async def close(self) -> None:
        """Kill every child and wait until they are gone, 5 s at most."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_until_gone([*self._lanes, *self._leaving], _CLOSE_S))
            if self._start is not None:
                self._start.cancel()
                await asyncio.wait((self._start,), timeout=_CLOSE_S)
                self._start = None
        while self._waiters:
            self._wake_one()

    async def _lane_with_room(self) -> Lane:
        loop = asyncio.get_running_loop()
        while True:
            if self._closed:
                raise ProcessError(f"{self._name} is closed")
            self._drop_lost()
            lane = min(self._lanes, key=lambda lane: lane.waiting, default=None)
            if lane is not None and self._has_room(lane):
                self._start_failed = None  # the child was not needed after all
                return lane
            if self._start_failed is not None:  # a failed start costs one job
                failed, self._start_failed = self._start_failed, None
                self._wake_one()
                raise failed
            self._start_if_behind()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise

    def _start_if_behind(self) -> None:
        emptiest = min(self._lanes, key=lambda lane: lane.waiting, default=None)
        # One start at a time: meanwhile the first answers show whether more are needed.
        if self._start is None and len(self._lanes) < self._most and self._is_behind(emptiest):
            loop = asyncio.get_running_loop()
            self._start = loop.create_task(self._start_lane(), name=f"start {self._name}")

    def _is_behind(self, emptiest: Lane | None) -> bool:
        """Whether one more child would be worth its while."""
        if emptiest is None or not _is_quick(emptiest):
            return True
        backlog = emptiest.waiting + len(self._waiters) / len(self._lanes)
        return backlog * emptiest.service_s > _BACKLOG_S

    def _has_room(self, lane: Lane) -> bool:
        return lane.waiting < (self._depth if _is_quick(lane) else 1)

    async def _start_lane(self) -> None:
        self._started += 1
        name, began = f"{self._name}-{self._started}", asyncio.get_running_loop().time()
        try:
            lane = Lane(await self._fork(name))
            self._start_s = asyncio.get_running_loop().time() - began
            lane.child.died.add_done_callback(lambda _: self._ended(name, began))
            self._lanes.append(lane)
            if self._idle_timer is not None:  # it goes by the start before
                self._idle_timer.cancel()
            self._end_idle()
            if self._closed:  # meanwhile
                lane.kill("it was closed")
        except Exception as error:  # raised by whoever needs the child next: nobody awaits this
            self._start_failed = error
        finally:
            self._start = None
            self._wake_one()

    def _ended(self, name: str, began: float) -> None:
        if self._on_end is not None:
            self._on_end(name, began, asyncio.get_running_loop().time())

    def _drop_lost(self) -> None:
        lost = [lane for lane in self._lanes if lane.lost is not None]
        self._leaving = [lane for lane in (*self._leaving, *lost) if lane.child.alive]
        self._lanes = [lane for lane in self._lanes if lane.lost is None]

    def _on_over(self) -> None:
        self._watch_idle()
        self._wake_one()

    def _watch_idle(self) -> None:
        if self._idle_timer is None and self.processes > self._keep and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle_limit_s, self._end_idle)

    def _end_idle(self) -> None:
        """End the children beyond those to keep that had nothing to do for long."""
        self._idle_timer = None
        now = asyncio.get_running_loop().time()
        for lane in self._lanes[self._keep :]:
            if lane.waiting == 0 and now - lane.idle_since >= self._idle_limit_s:
                lane.kill("it was not needed any more")
        self._drop_lost()
        since = [lane.idle_since for lane in self._lanes[self._keep :] if lane.waiting == 0]
        if since and not self._closed:
            due = min(since) + self._idle_limit_s
            self._idle_timer = asyncio.get_running_loop().call_at(due, self._end_idle)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def _is_quick(lane: Lane) -> bool:
    """Whether its jobs have been short so far and the present one is not far longer."""
    return 0 < lane.service_s < _QUICK_S and lane.working_s < 5 * _QUICK_S
