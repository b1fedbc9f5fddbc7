"""Rewards of one domain in killable children: the control side.

Owns between one and `most` children, as many as the load asks for. Invariant: every call ends with
a verdict; one that overruns, raises or kills its process is "no verdict" with the reason, and costs
no other call. Who waits on whom: a call waits for a child with room, and in it for the calls before
it, each of which ends by its own deadline.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from rollart.core.errors import FailureKind
from rollart.core.types import Trajectory, Verdict
from rollart.process.child import Child
from rollart.process.errors import ProcessError
from rollart.runtimes.local.codec import pack_trajectory, unpack_verdict
from rollart.runtimes.local.lane import Lane, LaneLost, wait_until_gone
from rollart.runtimes.local.remote import in_a_line

MOST_CHILDREN = 8
"""Default bound on children of one domain."""

LOSSES_BORNE = 20
"""How often one call may lose its child to others before it ends without a verdict."""

_DEPTH = 4  # quick calls that may be queued in one child, so that it never waits for the owner
_QUICK_S = 0.01  # mean seconds under which a call counts as quick
_BACKLOG_S = 0.1  # seconds that quick calls may wait before another child is started
_IDLE_S = 30.0  # seconds without work after which a child but the last is ended
_CLOSE_S = 5.0

ForkScorer = Callable[[str], Awaitable[Child]]
"""Forks a child that runs `reward_host.entry`, under the given name."""


class LocalReward:
    """The `Reward` port for one domain."""

    def __init__(
        self, domain: str, fork: ForkScorer, *, limit_s: float, most: int = MOST_CHILDREN
    ) -> None:
        self._domain = domain
        self._fork = fork
        self._limit_s = limit_s
        self._most = most
        self._lanes: list[Lane] = []
        self._forking = False
        self._started = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def processes(self) -> int:
        """Children that live now."""
        return sum(lane.lost is None for lane in self._lanes)

    async def score(self, trajectory: Trajectory) -> Verdict:
        """The user's verdict, or none with the reason."""
        packed = pack_trajectory(trajectory, tokens=False)
        reason = ""
        for _ in range(LOSSES_BORNE):
            try:
                lane = await self._lane_with_room()
                job = lane.submit(packed, limit_s=self._limit_s)
                job.on_over = self._wake_one
                if _has_room(lane):
                    self._wake_one()
                answer = await job.answer
            except ProcessError as error:
                return no_verdict(f"the reward cannot be started: {in_a_line(error)}")
            except LaneLost as lost:
                reason = lost.reason
                if lost.culprit:
                    if lost.overran:
                        return no_verdict(f"timeout: {reason}", FailureKind.REWARD_TIMEOUT)
                    return no_verdict(f"crash: {reason}")
                continue
            if answer[0]:
                return unpack_verdict(answer[1])
            return no_verdict(answer[1])
        return no_verdict(f"crash: lost its process {LOSSES_BORNE} times, last: {reason}")

    async def close(self) -> None:
        """Kill every child and wait until they are gone, 5 s at most."""
        self._closed = True
        await wait_until_gone(self._lanes, _CLOSE_S)
        while self._waiters:
            self._wake_one()

    async def _lane_with_room(self) -> Lane:
        loop = asyncio.get_running_loop()
        while True:
            if self._closed:
                raise ProcessError("the reward is closed")
            self._drop_idle(loop.time())
            lane = min(self._lanes, key=lambda lane: lane.waiting, default=None)
            if lane is not None and _has_room(lane):
                return lane
            # One fork at a time: meanwhile the first answers show whether more are needed.
            if not self._forking and len(self._lanes) < self._most and self._is_behind(lane):
                return await self._new_lane()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise

    def _drop_idle(self, now: float) -> None:
        """Forget lost children, and end all but the first that had nothing to do for long."""
        for lane in self._lanes[1:]:
            if lane.waiting == 0 and now - lane.idle_since > _IDLE_S:
                lane.kill("it was not needed any more")
        self._lanes = [lane for lane in self._lanes if lane.lost is None]

    def _is_behind(self, emptiest: Lane | None) -> bool:
        """Whether one more child would be worth its while."""
        if emptiest is None or not _is_quick(emptiest):
            return True
        backlog = emptiest.waiting + len(self._waiters) / len(self._lanes)
        return backlog * emptiest.service_s > _BACKLOG_S

    async def _new_lane(self) -> Lane:
        self._forking = True
        self._started += 1
        try:
            lane = Lane(await self._fork(f"{self._domain}-reward-{self._started}"))
        finally:
            self._forking = False
            self._wake_one()
        self._lanes.append(lane)
        if self._closed:  # meanwhile
            lane.kill("it was closed")
        return lane

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def no_verdict(reason: str, failure: FailureKind = FailureKind.REWARD_ERROR) -> Verdict:
    """No score, why in words, and by kind."""
    return Verdict(score=None, reason=reason, failure=failure)


def _is_quick(lane: Lane) -> bool:
    """Whether its calls have been short so far and the present one is not far longer."""
    return 0 < lane.service_s < _QUICK_S and lane.working_s < 5 * _QUICK_S


def _has_room(lane: Lane) -> bool:
    return lane.waiting < (_DEPTH if _is_quick(lane) else 1)
