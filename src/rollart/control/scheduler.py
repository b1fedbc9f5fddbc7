"""The rollout scheduler: admits groups, runs them, and hands out batches.

Invariant: it alone admits, one credit a group; every trajectory it starts leaves the ledger once;
a group ends whole, and a stale one's task goes back to the front once, under a new group id.
Who waits: the admission loop, for credits and tasks; `get_batch`, for groups (unblocked by a group
that ends, or by `stall_s` without any progress); `abort_stale`, for the doomed to let go.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollart.control.admission import Credits
from rollart.control.deadline import now
from rollart.control.env_manager import EnvManager
from rollart.control.flight import (
    Fate,
    Flight,
    LiveGroup,
    fate_of,
    is_trainable,
    unusable_disposition,
)
from rollart.control.ledger import Ledger, LedgerSnapshot
from rollart.control.protocols import ProtocolPolicy
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.staleness import is_stale
from rollart.control.tail import KEPT
from rollart.control.task_queue import QueuedTask, TaskQueue, TaskQueueSnapshot
from rollart.core.errors import RollartError, RunStalled, first_error
from rollart.core.events import Admitted, CreditsReturned, GroupReady, Warned
from rollart.core.identity import TrajectoryId
from rollart.core.ports import EventSink
from rollart.core.types import Disposition, Group, Trajectory

FAILED_REQUEUES = 1
"""How often a task whose group could not be completed is tried again."""


class OutOfTasks(RollartError):
    """Every source has ended and everything that was started has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """`members_needed` is the fewest scored members that make a group worth training."""

    run: str
    group_size: int
    members_needed: int
    attempts: int
    drop_zero_variance: bool
    max_dead_groups: int
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSnapshot:
    """What rollout goes on from. The tasks of live groups stand at the front of the queue."""

    tasks: TaskQueueSnapshot
    ledger: LedgerSnapshot
    buffer: tuple[Group, ...]
    next_group: int


class RolloutScheduler:
    """Keeps (alpha + 1) batches of groups under way.

    `committed` is the newest version that a routable engine has acknowledged; the caller sets it
    at each commit.
    """

    def __init__(
        self,
        *,
        tasks: TaskQueue,
        managers: Mapping[str, EnvManager],
        buffer: SampleBuffer,
        ledger: Ledger,
        credits: Credits,  # noqa: A002
        protocol: ProtocolPolicy,
        settings: SchedulerSettings,
        events: EventSink,
    ) -> None:
        self._tasks = tasks
        self._managers = managers
        self._buffer = buffer
        self._ledger = ledger
        self._credits = credits
        self._protocol = protocol
        self._settings = settings
        self._events = events
        self._live: dict[int, LiveGroup] = {}
        self._in_hand: tuple[Group, ...] = ()
        self._entries: dict[int, QueuedTask] = {}
        self._next_group = 0
        self._dead: Counter[Fate] = Counter()
        self._error: Exception | None = None
        self._admission: asyncio.Task[None] | None = None
        self._ended_at = 0.0
        self.durations: deque[float] = deque(maxlen=KEPT)
        self.committed = 0
        tasks.on_end = buffer.wake

    # -- what others may see ---------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Trajectories started that are neither gone nor in the buffer, from the live objects."""
        return sum(group.trajectories for group in self._live.values())

    @property
    def buffered(self) -> int:
        """Trajectories ready to train, with those of the batch in hand."""
        return self._buffer.trajectories + sum(len(group.members) for group in self._in_hand)

    def waiting(self) -> Counter[str]:
        """How many flights wait for what."""
        return Counter(
            flight.waits_for for group in self._live.values() for flight in group.flights.values()
        )

    # -- admission -------------------------------------------------------------------------

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to admit."""
        self._ended_at = now()
        self._admission = group.create_task(self._admit(group))

    async def _admit(self, tasks: asyncio.TaskGroup) -> None:
        try:
            while True:
                await self._credits.available()
                entry = await self._tasks.next()
                live = self._open_group(entry)
                tasks.create_task(self._run_group(live))
        except Exception as error:
            self._fail(error)

    def _open_group(self, entry: QueuedTask) -> LiveGroup:
        self._credits.take()
        live = LiveGroup(
            id=self._next_group,
            entry=entry,
            size=self._settings.group_size,
        )
        self._next_group += 1
        self._live[live.id] = live
        self._events.emit(
            Admitted(
                group=live.id,
                domain=entry.task.domain,
                task=entry.task.key,
                requeued=entry.requeues > 0,
                outstanding=self._credits.outstanding,
                capacity=self._credits.capacity,
            )
        )
        return live

    def return_credits(self, groups: int) -> None:
        """Credits of groups that are trained or gone; at resume for those of a batch."""
        self._credits.give_back(groups)
        self._events.emit(
            CreditsReturned(
                groups=groups,
                outstanding=self._credits.outstanding,
                capacity=self._credits.capacity,
            )
        )

    # -- groups ----------------------------------------------------------------------------

    async def _run_group(self, group: LiveGroup) -> None:
        try:
            async with asyncio.TaskGroup() as members:
                for member in range(group.size):
                    if group.doom is None:
                        group.members[member] = members.create_task(self._run_member(group, member))
        except BaseExceptionGroup as errors:
            group.condemn(Disposition.CANCELLED, "a member's task failed")
            self._fail(first_error(errors))
        self._settle(group)

    async def _run_member(self, group: LiveGroup, member: int) -> None:
        """One place of a group: attempts until one can be trained or `attempts` are used up."""
        task = group.entry.task
        for attempt in range(self._settings.attempts):
            flight = Flight(
                id=TrajectoryId(
                    run=self._settings.run,
                    domain=task.domain,
                    task=task.key,
                    group=group.id,
                    member=member,
                    attempt=attempt,
                ),
                task=task,
                started_at=now(),
            )
            self._ledger.start(flight.id)
            group.flights[member] = flight
            try:
                trajectory = await self._managers[task.domain].rollout(
                    flight, may_go_on=lambda: self._may_go_on(group)
                )
            except BaseException:
                del group.flights[member]
                self.durations.append(now() - flight.started_at)
                self._ledger.leave(
                    flight.id,
                    group.doom or Disposition.CANCELLED,
                    reason=group.doom_reason,
                    start_version=flight.start_version,
                    elapsed_s=now() - flight.started_at,
                    censored=True,
                )
                raise
            del group.flights[member]
            self.durations.append(trajectory.ended_at - trajectory.started_at)
            if is_trainable(trajectory):
                group.done[member] = trajectory
                return
            self._leave(trajectory, unusable_disposition(trajectory), trajectory.detail)

    def _may_go_on(self, group: LiveGroup) -> bool:
        """The bound, at each turn: a group found stale is ended on the spot."""
        if self._protocol.abort_in_flight and self._is_stale(group.start_version):
            group.condemn(Disposition.STALE, "stale at a turn")
        return group.doom is None

    def _settle(self, group: LiveGroup) -> None:
        """All members have ended: the group goes to the buffer, or leaves whole."""
        del self._live[group.id]
        members = tuple(group.done[member] for member in sorted(group.done))
        self._ended_at = now()
        if group.doom is not None:
            self._drop(members, group.doom, group.doom_reason)
            if group.doom is Disposition.STALE:
                self._tasks.requeue(group.entry)
        else:
            self._judge(group, members)
        group.ended.set()
        self._buffer.wake()

    def _judge(self, group: LiveGroup, members: tuple[Trajectory, ...]) -> None:
        fate = fate_of(
            members,
            needed=self._settings.members_needed,
            drop_zero_variance=self._settings.drop_zero_variance,
        )
        if fate is Fate.READY:
            self._dead.clear()
            ready = Group(
                id=group.id,
                task=group.entry.task,
                members=members,
                start_version=group.start_version or 0,
            )
            self._entries[ready.id] = group.entry
            self._buffer.put(ready)
            self._events.emit(
                GroupReady(
                    group=ready.id,
                    domain=ready.task.domain,
                    members=len(members),
                    start_version=ready.start_version,
                )
            )
            return
        self._dead[fate] += 1
        if fate is Fate.FILTERED:
            self._drop(members, Disposition.FILTERED, "all scores are equal")
        else:
            self._drop(members, Disposition.INCOMPLETE_GROUP, "too few members with a score")
            if group.entry.failures < FAILED_REQUEUES:
                self._tasks.requeue(group.entry, failed=True)
        if self._dead.total() >= self._settings.max_dead_groups:
            counts = ", ".join(f"{count} {fate.value}" for fate, count in self._dead.items())
            self._fail(
                RunStalled(
                    f"{self._dead.total()} groups in a row could not be trained ({counts}); "
                    f"dispositions so far: {describe(self._ledger.counts())}. Look at the reward's "
                    "variance and the failures, or raise faults.max_dead_groups"
                )
            )

    def _drop(self, members: tuple[Trajectory, ...], disposition: Disposition, reason: str) -> None:
        """Members of one group leave together, and its credit is free at once."""
        for trajectory in members:
            self._leave(trajectory, disposition, reason)
        self.return_credits(1)

    def _leave(self, trajectory: Trajectory, disposition: Disposition, reason: str = "") -> None:
        self._ledger.leave(
            trajectory.id,
            disposition,
            reason=reason,
            start_version=trajectory.start_version,
            elapsed_s=trajectory.ended_at - trajectory.started_at,
        )

    # -- staleness ---------------------------------------------------------------------------

    def _is_stale(self, start_version: int | None) -> bool:
        return is_stale(start_version, committed=self.committed, alpha=self._protocol.alpha)

    async def abort_stale(self, version: int) -> int:
        """End what `version` will make stale; returns how many groups, when all have let go."""
        alpha = self._protocol.alpha
        doomed = [
            group
            for group in self._live.values()
            if self._protocol.abort_in_flight
            and is_stale(group.start_version, committed=version, alpha=alpha)
        ]
        for group in doomed:
            group.condemn(Disposition.STALE, f"aborted: version {version} makes it stale")
        for group in doomed:
            await group.ended.wait()
        return len(doomed) + self._evict(version)

    def _evict(self, version: int) -> int:
        alpha = self._protocol.alpha
        evicted = self._buffer.evict(
            lambda group: is_stale(group.start_version, committed=version, alpha=alpha)
        )
        for group in evicted:
            self._drop(group.members, Disposition.STALE, "stale in the buffer")
            self._tasks.requeue(self._entries.pop(group.id, QueuedTask(task=group.task)))
        return len(evicted)

    # -- batches -----------------------------------------------------------------------------

    async def get_batch(self, groups: int) -> tuple[Group, ...]:
        """Waits for `groups` ready groups within the bound; fewer only when tasks have run out.

        Raises:
            OutOfTasks: nothing is left to train.
            RunStalled: nothing made progress for `stall_s`, or too many groups were lost.
        """
        asked_at = now()
        while True:
            if self._error is not None:
                raise self._error
            self._evict(self.committed)
            drained = not self._live and self._tasks.exhausted
            if len(self._buffer) >= groups or (drained and len(self._buffer)):
                self._in_hand = self._buffer.take(groups)
                for group in self._in_hand:
                    self._entries.pop(group.id, None)
                return self._in_hand
            if drained:
                raise OutOfTasks("every task has been trained or has left")
            await self._change_or_stall(asked_at)

    async def _change_or_stall(self, asked_at: float) -> None:
        """Before `asked_at` rollout may have stood still by intent (a synchronous step trained)."""
        patience = max(asked_at, self._progress_at()) + self._settings.stall_s - now()
        if patience <= 0:
            waits = ", ".join(f"{count} for {what}" for what, count in self.waiting().items())
            raise RunStalled(
                f"no progress for {self._settings.stall_s:g} s: {len(self._buffer)} groups ready, "
                f"{len(self._live)} live groups wait ({waits or 'nothing in flight'}); "
                "look there, or raise timeouts.stall_s"
            )
        try:
            async with asyncio.timeout(patience):
                await self._buffer.changed()
        except TimeoutError:
            return

    def _progress_at(self) -> float:
        return max(self._ended_at, *(manager.progress_at for manager in self._managers.values()))

    def batch_left(self, disposition: Disposition, reason: str = "") -> None:
        """The batch in hand was trained, or given up."""
        for group in self._in_hand:
            for trajectory in group.members:
                self._leave(trajectory, disposition, reason)
        self._in_hand = ()

    # -- restarts --------------------------------------------------------------------------------

    def snapshot(self) -> SchedulerSnapshot:
        """Between two iterations: what is in flight is begun anew, what is buffered is kept.

        Raises:
            RuntimeError: a batch is in hand, of which nobody can say whether it was trained.
        """
        if self._in_hand:
            raise RuntimeError("a batch is in hand; take snapshots between two iterations")
        buffer, tasks = self._buffer.snapshot(), self._tasks.snapshot()
        again = [group.entry.again() for group in self._live.values()]
        kept = [member.id for group in buffer for member in group.members]
        return SchedulerSnapshot(
            tasks=replace(tasks, front=(*again, *tasks.front)),
            ledger=self._ledger.snapshot(kept),
            buffer=buffer,
            next_group=self._next_group,
        )

    def restore(self, snapshot: SchedulerSnapshot) -> None:
        """Before `start`, on new parts. Each buffered group holds a credit; ids go on."""
        self._tasks.restore(snapshot.tasks)
        self._ledger.restore(snapshot.ledger)
        self._buffer.restore(snapshot.buffer)
        for _ in snapshot.buffer:
            self._credits.take()
        self._next_group = snapshot.next_group

    # -- the end -----------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Let `get_batch` raise it."""
        if self._error is None:
            self._error = error
            self._buffer.wake()
        else:
            self._events.emit(Warned(message=f"a further error: {error!r}"))

    async def stop(self) -> None:
        """Admit no more; everything that is left leaves as cancelled."""
        if self._admission is not None:
            self._admission.cancel()
        live = list(self._live.values())
        for group in live:
            group.condemn(Disposition.CANCELLED, "the run ended")
        for group in live:
            await group.ended.wait()
        self.batch_left(Disposition.CANCELLED, "the run ended")
        self._entries.clear()
        for group in self._buffer.evict(lambda _: True):
            self._drop(group.members, Disposition.CANCELLED, "the run ended")


def describe(counts: tuple[tuple[str, int], ...]) -> str:
    """Counts above 0, as words."""
    return ", ".join(f"{count} {name}" for name, count in counts if count) or "none"
