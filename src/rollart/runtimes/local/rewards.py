"""Rewards of one domain in killable children: the control side.

Owns a pool of children that judge. Invariant: every call ends with a verdict; one that overruns,
raises or kills its process is "no verdict" with the reason, and costs no other call. A reward class
may ask for serverless functions while it judges: those calls run beside it, end with it at the
latest, and their deadline is what is left of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from rollart.core.documents import document_of
from rollart.core.errors import FailureKind
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.types import Trajectory, Verdict
from rollart.process.child import Child
from rollart.process.errors import ChannelFull, FrameTooLarge, ProcessError
from rollart.runtimes.local.codec import Packed, pack_verdict, unpack_verdict
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.lane import Job, Lane, LaneLost
from rollart.runtimes.local.lane_pool import MOST_CHILDREN, LanePool
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.reward_asks import ANSWER

LOSSES_BORNE = 20
"""How often one call may lose its child to others before it ends without a verdict."""

GRACE = 0.25
"""Share of its deadline by which a judge that asks elsewhere may be later than what it asks."""

_DEPTH = 4  # quick calls that may be queued in one child, so that it never waits for the owner

ForkScorer = Callable[[str], Awaitable[Child]]
"""Forks a child that runs `reward_host.entry`, under the given name."""


class LocalReward:
    """The `Reward` port for one domain.

    Args:
        gateway: to the functions that the reward class may ask for; None where it asks for none.
    """

    def __init__(
        self,
        domain: str,
        fork: ForkScorer,
        *,
        limit_s: float,
        most: int = MOST_CHILDREN,
        gateway: Gateway | None = None,
    ) -> None:
        self._pool = LanePool(f"{domain}-reward", fork, most=most, depth=_DEPTH)
        self._limit_s = limit_s
        self._gateway = gateway

    @property
    def processes(self) -> int:
        """Children that live now."""
        return self._pool.processes

    async def score(self, trajectory: Trajectory) -> Verdict:
        """The user's verdict, or none with the reason."""
        packed = document_of(trajectory).to_json()
        reason = ""
        for _ in range(LOSSES_BORNE):
            try:
                answer = await self._judged(packed)
            except ProcessError as error:
                return no_verdict(f"{_unasked(error)}: {in_a_line(error)}")
            except LaneLost as lost:
                reason = lost.reason
                if lost.culprit:
                    if lost.overran:
                        return no_verdict(f"timeout: {reason}", FailureKind.REWARD_TIMEOUT)
                    return no_verdict(f"crash: {reason}")
                continue
            if answer[0]:
                return unpack_verdict(answer[1])
            return no_verdict(answer[1], FailureKind(answer[2]))
        return no_verdict(f"crash: lost its process {LOSSES_BORNE} times, last: {reason}")

    async def close(self) -> None:
        """Kill every child and wait until they are gone, 5 s at most."""
        await self._pool.close()

    async def _judged(self, packed: Packed) -> Packed:
        """The child's answer, while what it asks for is served."""
        if self._gateway is None:
            _, job = await self._pool.submit(packed, limit_s=lambda: self._limit_s, on_ask=None)
            return await job.answer
        failed: LaneLost | ProcessError | None = None  # leaves the group as itself, not in a group
        answer: Packed = None
        async with asyncio.TaskGroup() as group:
            asked: list[asyncio.Task[None]] = []
            lane: Lane | None = None
            job: Job | None = None

            def on_ask(ask: Packed) -> None:
                assert lane is not None  # a child asks only once it has been sent the job
                assert job is not None
                job.limit_s = self._limit_s * (1 + GRACE)
                asked.append(group.create_task(self._serve(lane, ask)))

            try:
                lane, job = await self._pool.submit(
                    packed, limit_s=lambda: self._limit_s, on_ask=on_ask
                )
                try:
                    answer = await job.answer
                finally:
                    job.on_ask = partial(_refuse, lane)
            except (LaneLost, ProcessError) as error:
                failed = error
            for task in asked:
                task.cancel()
        if failed is not None:
            raise failed
        return answer

    async def _serve(self, lane: Lane, ask: Packed) -> None:
        """Call one function for the child at the head of this lane, and tell it the outcome."""
        assert self._gateway is not None
        _, _, url, document = ask
        seconds = max(self._limit_s - lane.working_s, 0.0)
        try:
            outcome = await self._gateway.score(
                url, TrajectoryDocument.from_json(document), seconds=seconds, part=True
            )
            _tell(lane, ask, pack_verdict(outcome.verdict))
        except asyncio.CancelledError:
            _refuse(lane, ask)
            raise


def no_verdict(reason: str, failure: FailureKind = FailureKind.REWARD_ERROR) -> Verdict:
    """No score, why in words, and by kind."""
    return Verdict(score=None, reason=reason, failure=failure)


def _unasked(error: ProcessError) -> str:
    """Why no child began to judge."""
    if isinstance(error, FrameTooLarge | ChannelFull):
        return "the reward cannot be sent the trajectory"
    return "the reward cannot be started"


def _refuse(lane: Lane, ask: Packed) -> None:
    _tell(lane, ask, pack_verdict(no_verdict("nobody waits for this verdict any more")))


def _tell(lane: Lane, ask: Packed, verdict: Packed) -> None:
    """Told or not: a child that does not hear it ends by its job's limit."""
    if lane.lost is not None:
        return
    try:
        lane.child.cast(ANSWER, ask[1], verdict)
    except ProcessError as error:  # it died in this very turn, or the verdict cannot be sent
        with suppress(ProcessError):
            reason = f"the answer cannot be sent: {in_a_line(error)}"
            lane.child.cast(ANSWER, ask[1], pack_verdict(no_verdict(reason)))
