"""A lane: one killable child that works through jobs one after another.

Owns the order of the jobs and the deadline of the one at the head, which counts from the moment
the child begins it (when the one before was answered): queueing behind others is not held against
a job. Invariant: every job ends once, with the child's answer or with `LaneLost`; in a lost lane
exactly the job at the head is the culprit, and nothing of the child is heard afterwards. Waits on
the child's answers, its end, and one timer.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from rollart.process.child import Child
from rollart.process.errors import ChildDied
from rollart.process.report import ExitReport
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.remote import in_a_line

METHOD = "job"
"""Name under which every job is sent; the child answers each with one event, in order."""

ASK = "ask"
"""First element of an event that is no answer: the child needs something for the job at hand."""


class LaneLost(Exception):
    """The child is gone.

    Attributes:
        reason: how it ended, or which limit was overrun.
        culprit: the child was working on this very job.
        overran: it was killed because the job at the head took too long.
    """

    def __init__(self, reason: str, *, culprit: bool, overran: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.culprit = culprit
        self.overran = overran


class Job:
    """One job in a lane.

    Attributes:
        answer: the child's answer or `LaneLost`; cancelled when whoever waited was.
        over: the child no longer works on it, whatever became of `answer`.
        on_over: called once when it is over.
        on_ask: takes what the child asks for while it works on this job.
    """

    __slots__ = ("answer", "limit_s", "on_ask", "on_over", "over")

    def __init__(self, answer: asyncio.Future[Packed], limit_s: float) -> None:
        self.answer = answer
        self.limit_s = limit_s
        self.over = False
        self.on_over: Callable[[], None] | None = None
        self.on_ask: Callable[[Packed], None] | None = None

    def end(self) -> None:
        self.over = True
        if self.on_over is not None:
            callback, self.on_over = self.on_over, None
            callback()


class Lane:
    """Jobs for one child. Whoever forked the child gives it away to its lane."""

    def __init__(self, child: Child) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._jobs: deque[Job] = deque()
        self._head_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost: str | None = None
        self.service_s = 0.0  # running mean of the seconds a job takes
        self.idle_since = self._loop.time()
        child.on_event = self._on_answer
        child.died.add_done_callback(self._on_died)

    @property
    def child(self) -> Child:
        return self._child

    @property
    def lost(self) -> str | None:
        """Why the child is gone, or None while it works."""
        return self._lost

    @property
    def waiting(self) -> int:
        """Jobs not yet over."""
        return len(self._jobs)

    @property
    def working_s(self) -> float:
        """Seconds since the job at the head was begun; 0 when idle."""
        return self._loop.time() - self._head_since if self._jobs else 0.0

    def submit(self, *args: Packed, limit_s: float) -> Job:
        """Queue a job that may take `limit_s` seconds once it is begun.

        Raises:
            LaneLost: the child is already gone.
            TypeError, FrameTooLarge, ChannelFull: it could not be sent.
        """
        if self._lost is not None:
            raise LaneLost(self._lost, culprit=False, overran=False)
        try:
            self._child.cast(METHOD, *args)
        except ChildDied as error:
            reason = in_a_line(error)
            self._lose(reason, overran=False)
            raise LaneLost(reason, culprit=False, overran=False) from error
        job = Job(self._loop.create_future(), limit_s)
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._begin_head()
        return job

    def kill(self, reason: str) -> None:
        """End the child now; jobs in it are lost to `reason`."""
        self._lose(reason, overran=False)

    def _begin_head(self) -> None:
        self._head_since = self._loop.time()
        due = self._head_since + self._jobs[0].limit_s
        # One timer runs on from job to job; it is set anew only when it would come too late.
        if self._timer is not None and self._timer.when() > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._jobs:
            return
        due = self._head_since + self._jobs[0].limit_s
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._check)
        else:
            limit = self._jobs[0].limit_s
            self._lose(f"no answer within {limit:g} s; its process was killed", overran=True)

    def _on_answer(self, value: Packed) -> None:
        if not self._jobs:
            self._lose("it answered what nobody had asked", overran=False)
            return
        if not isinstance(value, bytes) and value[0] == ASK:
            on_ask = self._jobs[0].on_ask
            if on_ask is not None:
                on_ask(value)
            return
        job = self._jobs.popleft()
        took = self._loop.time() - self._head_since
        self.service_s += 0.2 * (took - self.service_s)
        if self._jobs:
            self._begin_head()
        else:
            self.idle_since = self._loop.time()
        if not job.answer.done():
            job.answer.set_result(value)
        job.end()

    def _on_died(self, died: asyncio.Future[ExitReport]) -> None:
        self._lose(in_a_line(died.result()), overran=False)

    def _lose(self, reason: str, *, overran: bool) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._child.on_event = None
        self._child.kill()
        if self._timer is not None:
            self._timer.cancel()
        jobs, self._jobs = self._jobs, deque()
        for place, job in enumerate(jobs):
            if not job.answer.done():
                lost = LaneLost(reason, culprit=place == 0, overran=overran)
                job.answer.set_exception(lost)
            job.end()


async def wait_until_gone(lanes: list[Lane], seconds: float) -> None:
    """Kill the children of all lanes and wait until they are reaped, `seconds` at most."""
    for lane in lanes:
        lane.kill("it was closed")
    alive = [lane.child.died for lane in lanes if lane.child.alive]
    if alive:
        await asyncio.wait(alive, timeout=seconds)
