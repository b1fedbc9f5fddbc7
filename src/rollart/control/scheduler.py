"""The rollout scheduler: admits groups, runs them, and hands out batches.

Invariant: it alone admits, one credit a group; a group ends whole, and a stale one's task goes back
to the front once, under a new group id. A domain whose groups all fail, or that everything waits
for in vain, is closed, and the others go on.
Who waits: the admission loop, for credits and tasks; `get_batch`, for groups (unblocked by a group
that ends, or by `stall_s` without any progress); `end_surplus` and `abort_stale`, for the doomed to
let go.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollart.control.admission import Credits
from rollart.control.admitter import Admitter
from rollart.control.barrier import TurnBarrier
from rollart.control.dead_groups import DeadGroups
from rollart.control.deadline import now
from rollart.control.env_manager import EnvManager
from rollart.control.flight import OTHERS, Fate, LiveGroup, fate_of
from rollart.control.group_run import GroupRunner, GroupSettings
from rollart.control.ledger import Ledger, LedgerSnapshot
from rollart.control.protocols import ProtocolPolicy
from rollart.control.redundancy import ENOUGH_OUTCOMES, Spares
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.staleness import is_stale
from rollart.control.task_queue import QueuedTask, TaskQueue, TaskQueueSnapshot
from rollart.core.config import RedundancyConfig
from rollart.core.errors import RollartError, RunStalled, first_error
from rollart.core.events import Admitted, GroupReady, Warned
from rollart.core.ports import EventSink
from rollart.core.types import Disposition, Group, Trajectory

FAILED_REQUEUES = 1
"""How often a task whose group could not be completed is tried again."""


class OutOfTasks(RollartError):
    """Every source has ended and everything that was started has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Sizes, limits and spares.

    Attributes:
        batch_groups: groups a batch.
        group_sizes: members of a full group, by domain.
        weights: shares of the groups, by domain.
        members_needed: the fewest scored members that make a group worth training.
        max_dead_groups: groups of one domain that may be lost in a row.
        max_no_verdict: share of the latest trajectories that may have no verdict.
        stall_s: seconds without any progress that end the run.
    """

    run: str
    batch_groups: int
    group_sizes: Mapping[str, int]
    weights: Mapping[str, float]
    redundancy: RedundancyConfig
    members_needed: int
    attempts: int
    drop_zero_variance: bool
    max_dead_groups: int
    max_no_verdict: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSnapshot:
    """What rollout goes on from. The tasks of live groups stand at the front of the queue."""

    tasks: TaskQueueSnapshot
    ledger: LedgerSnapshot
    buffer: tuple[Group, ...]
    next_group: int


class RolloutScheduler:
    """Keeps the batches that the credits allow under way.

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
        runner: type[GroupRunner] = GroupRunner,
    ) -> None:
        self._tasks = tasks
        self._managers = managers
        self._buffer = buffer
        self._ledger = ledger
        self._protocol = protocol
        self._settings = settings
        self._events = events
        self._dead = DeadGroups(settings.max_dead_groups)
        self._spares = Spares(config=settings.redundancy)
        self._admitter = Admitter(
            tasks=tasks,
            credits=credits,
            weights=settings.weights,
            batch_groups=settings.batch_groups,
            under_way=self._under_way,
            is_failing=self._dead.is_failing,
            begin=self._begin,
            failed=self._fail,
            events=events,
        )
        self._barrier = TurnBarrier(lambda: self._admitter.complete) if protocol.lockstep else None
        self._runner = runner(
            managers=managers,
            ledger=ledger,
            keep=self._places_to_keep,
            may_go_on=self._may_go_on,
            barrier=self._barrier,
            settings=GroupSettings(
                run=settings.run,
                attempts=settings.attempts,
                max_no_verdict=settings.max_no_verdict,
            ),
            events=events,
        )
        self._live: dict[int, LiveGroup] = {}
        self._groups_of: Counter[str] = Counter()
        self._in_hand: tuple[Group, ...] = ()
        self._entries: dict[int, QueuedTask] = {}
        self._next_group = 0
        self._error: Exception | None = None
        self._ended_at = self._sound_at = 0.0
        self._worth: dict[str, tuple[int, int]] = {}
        self.committed = 0
        tasks.on_change = self._domains_changed

    # -- what others may see ---------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Trajectories started that are neither gone nor in the buffer, from the live objects."""
        return sum(group.trajectories for group in self._live.values())

    @property
    def buffered(self) -> int:
        """Trajectories ready to train, with those of the batch in hand."""
        return self._buffer.trajectories + sum(len(group.members) for group in self._in_hand)

    @property
    def durations(self) -> list[float]:
        """Seconds of the last trajectories, cancelled ones too."""
        return [o.seconds for outcomes in self._runner.outcomes.values() for o in outcomes]

    def waiting(self) -> Counter[str]:
        """How many flights wait for what."""
        return Counter(
            flight.waits_for for group in self._live.values() for flight in group.flights.values()
        )

    # -- admission -------------------------------------------------------------------------

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to admit."""
        self._ended_at = self._sound_at = now()
        self._admitter.start(group)

    def _under_way(self, domain: str) -> int:
        return self._groups_of[domain]

    def _begin(self, entry: QueuedTask, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._run_group(self._open_group(entry)))

    def _domains_changed(self) -> None:
        self._admitter.domains_changed()
        self._buffer.wake()
        if self._barrier is not None:
            self._barrier.check()
        if len(self._tasks.closed) == len(self._managers):
            whys = "; ".join(f"{domain}: {why}" for domain, why in self._tasks.closed.items())
            self._fail(
                RunStalled(
                    f"no domain is left ({whys}); dispositions so far: "
                    f"{describe(self._ledger.counts())}"
                )
            )

    def _open_group(self, entry: QueuedTask) -> LiveGroup:
        domain = entry.task.domain
        size = self._settings.group_sizes[domain]
        live = LiveGroup(
            id=self._next_group,
            entry=entry,
            size=size,
            spares=self._spare_members(domain, size),
        )
        self._next_group += 1
        self._live[live.id] = live
        self._groups_of[domain] += 1
        self._runner.prepare(live)
        self._events.emit(
            Admitted(
                group=live.id,
                domain=domain,
                task=entry.task.key,
                requeued=entry.requeues > 0,
                outstanding=self._admitter.outstanding,
                capacity=self._admitter.capacity,
            )
        )
        return live

    def _spare_members(self, domain: str, size: int) -> int:
        """Decided anew each time so many trajectories have ended: it takes a while to compute."""
        ended = self._runner.ended[domain] // ENOUGH_OUTCOMES
        known = self._worth.get(domain)
        if known is None or known[0] != ended:
            known = (ended, self._spares.members(self._runner.outcomes[domain], size=size))
            self._worth[domain] = known
        return known[1]

    def resumed(self) -> None:
        """Rollout goes on: the credits of the batch in hand, and of what left since, are free."""
        self._admitter.resumed()

    # -- groups ----------------------------------------------------------------------------

    async def _run_group(self, group: LiveGroup) -> None:
        try:
            await self._runner.run(group)
        except BaseExceptionGroup as errors:
            group.condemn(Disposition.CANCELLED, "a member's task failed")
            self._fail(first_error(errors))
        self._settle(group)

    def _places_to_keep(self, group: LiveGroup) -> tuple[int, ...] | None:
        return self._spares.keep(
            tuple(group.done), group.given_up, size=group.size, places=group.places
        )

    def _may_go_on(self, group: LiveGroup) -> bool:
        """The bound, at each turn: a group found stale is ended on the spot."""
        if self._protocol.keeps_bound and self._is_stale(group.start_version):
            group.condemn(Disposition.STALE, "stale at a turn")
        return group.doom is None

    def _settle(self, group: LiveGroup) -> None:
        """All members have ended: the group goes to the buffer, or leaves whole."""
        del self._live[group.id]
        self._groups_of[group.domain] -= 1
        members = tuple(group.done[member] for member in sorted(group.done))
        self._ended_at = now()
        if members:
            self._sound_at = self._ended_at
        if group.doom is not None:
            self._drop(members, group.doom, group.doom_reason)
            if group.doom is Disposition.STALE:
                self._tasks.requeue(group.entry)
        else:
            self._judge(group, members)
        group.ended.set()
        self._tasks.wake()
        self._buffer.wake()

    def _judge(self, group: LiveGroup, members: tuple[Trajectory, ...]) -> None:
        fate = fate_of(
            members,
            needed=self._settings.members_needed,
            drop_zero_variance=self._settings.drop_zero_variance,
        )
        if fate is Fate.READY:
            self._put(group, members)
        elif fate is Fate.FILTERED:
            self._drop(members, Disposition.FILTERED, "all scores are equal")
        else:
            self._drop(members, Disposition.INCOMPLETE_GROUP, "too few members with a score")
            if group.entry.failures < FAILED_REQUEUES:
                self._tasks.requeue(group.entry, failed=True)
        too_many = self._dead.count(group.domain, fate)
        if too_many is not None:
            last = self._runner.last_failure.get(group.domain)
            self._tasks.close(
                group.domain, f"{too_many}; the last failure: {last}" if last else too_many
            )

    def _put(self, group: LiveGroup, members: tuple[Trajectory, ...]) -> None:
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

    def _drop(self, members: Sequence[Trajectory], disposition: Disposition, reason: str) -> None:
        """Members of one group leave together, and its credit is free."""
        for trajectory in members:
            self._leave(trajectory, disposition, reason)
        self._admitter.give_back(1)

    def _leave(self, trajectory: Trajectory, disposition: Disposition, reason: str = "") -> None:
        self._ledger.leave(
            trajectory.id,
            disposition,
            reason=reason,
            start_version=trajectory.start_version,
            elapsed_s=trajectory.ended_at - trajectory.started_at,
        )

    # -- surplus -----------------------------------------------------------------------------

    async def end_surplus(self) -> int:
        """End the spare groups that a full batch leaves over; returns how many, when they let go.

        They are not carried over, and their tasks are not tried again.
        """
        doomed = self._spares.surplus(
            [(group.id, group.start_version) for group in self._live.values()],
            self._buffer.ids(),
            outstanding=self._admitter.outstanding,
            capacity=self._admitter.capacity,
        )
        why = "the batch is full"
        live = [self._live[group] for group in doomed if group in self._live]
        for group in live:
            group.condemn(Disposition.SURPLUS, why)
        condemned = set(doomed)
        for group in self._buffer.evict(lambda group: group.id in condemned):
            self._entries.pop(group.id, None)
            self._drop(group.members, Disposition.SURPLUS, why)
        for group in live:
            await group.ended.wait()
        return len(doomed)

    # -- staleness ---------------------------------------------------------------------------

    def _is_stale(self, start_version: int | None) -> bool:
        return is_stale(start_version, committed=self.committed, alpha=self._protocol.alpha)

    def _would_be_stale(self, start_version: int | None, version: int) -> bool:
        return is_stale(start_version, committed=version, alpha=self._protocol.alpha)

    async def abort_stale(self, version: int) -> int:
        """End what `version` will make stale; returns how many groups, when all have let go."""
        doomed = [
            group
            for group in self._live.values()
            if self._protocol.keeps_bound and self._would_be_stale(group.start_version, version)
        ]
        for group in doomed:
            group.condemn(Disposition.STALE, f"aborted: version {version} makes it stale")
        for group in doomed:
            await group.ended.wait()
        return len(doomed) + self._evict(version)

    def _evict(self, version: int) -> int:
        """Drop what `version` makes stale; asked at every group's end, so most find nothing."""
        oldest = self._buffer.oldest_start
        if not self._protocol.keeps_bound or not self._would_be_stale(oldest, version):
            return 0
        evicted = self._buffer.evict(
            lambda group: self._would_be_stale(group.start_version, version)
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
            full = self._spares.batch_is_full(self._live, self._buffer.ids(), groups=groups)
            if full or (drained and len(self._buffer)):
                return self._take(groups)
            if drained:
                raise OutOfTasks("every task has been trained or has left")
            await self._change_or_stall(asked_at)

    def _take(self, groups: int) -> tuple[Group, ...]:
        self._in_hand = self._buffer.take(groups, in_order=self._spares.unbiased)
        for group in self._in_hand:
            self._entries.pop(group.id, None)
        self._admitter.withhold(len(self._in_hand))
        return self._in_hand

    async def _change_or_stall(self, asked_at: float) -> None:
        """Before `asked_at` rollout may have stood still by intent (a synchronous step trained)."""
        managers, limit = self._managers.values(), self._settings.stall_s
        sound = max(asked_at, self._sound_at, *(manager.sound_at for manager in managers))
        moved = max(asked_at, self._ended_at, *(manager.progress_at for manager in managers))
        time = now()
        patience = sound + limit - time
        if patience <= 0:
            if hanging := self._hanging():
                self._close(hanging)
                return
            patience = moved + limit - time
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

    def _hanging(self) -> list[str]:
        """The domains that everything waits for; none if no other would be left to go on."""
        waited_for = set(self._tasks.late_domains) | {
            group.domain
            for group in self._live.values()
            if any(flight.waits_for != OTHERS for flight in group.flights.values())
        }
        others = set(self._tasks.open_domains) - waited_for
        return sorted(waited_for) if others else []

    def _close(self, domains: Sequence[str]) -> None:
        """Give up domains in which nothing ends well, so that the others can go on."""
        why = (
            f"nothing ended well for {self._settings.stall_s:g} s and the others wait for it; look "
            "there, or raise timeouts.stall_s"
        )
        for domain in domains:
            self._tasks.close(domain, why)
        for group in self._live.values():
            if group.domain in domains:
                group.condemn(Disposition.CANCELLED, "its domain was closed")
        self._ended_at = self._sound_at = now()

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
        self._admitter.hold(len(snapshot.buffer))
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
        self._admitter.stop()
        live = list(self._live.values())
        for group in live:
            group.condemn(Disposition.CANCELLED, "the run ended")
        for group in live:
            await group.ended.wait()
        self.batch_left(Disposition.CANCELLED, "the run ended")
        self._entries.clear()
        self._admitter.resumed()
        for group in self._buffer.evict(lambda _: True):
            self._drop(group.members, Disposition.CANCELLED, "the run ended")


def describe(counts: tuple[tuple[str, int], ...]) -> str:
    """Counts above 0, as words."""
    return ", ".join(f"{count} {name}" for name, count in counts if count) or "none"
