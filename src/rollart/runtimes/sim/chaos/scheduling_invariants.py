"""Promises about admission, credits, spares and order, checked from a run's events."""

from collections import Counter
from collections.abc import Iterator

from rollart.core.events import (
    Admitted,
    BatchTaken,
    CreditsReturned,
    Disposed,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    TrajectoryStarted,
)
from rollart.core.types import Disposition
from rollart.runtimes.sim.chaos.evidence import Evidence


def admission_is_bounded(run: Evidence) -> Iterator[str]:
    """Promise 6: at most the capacity's groups, besides the batch that trains since its resume.

    No group has more trajectories at once than its domain's size and the declared spares.
    """
    sizes = {domain.tag: run.job.group_size_of(domain) for domain in run.job.domains}
    spare, bound = run.job.redundancy.members, run.job.capacity_groups
    open_now = Counter[int]()
    in_hand = set[int]()
    resumed, unknown = False, 0
    batches = {batch.step: batch for _, batch in run.batches}
    for time, event in run.events:
        if isinstance(event, TrajectoryStarted) and event.purpose == "train":
            open_now[event.group] += 1
            if open_now[event.group] > sizes[event.domain] + spare:
                yield f"admission: group {event.group} has {open_now[event.group]} trajectories"
        elif isinstance(event, Disposed):
            open_now[event.group] -= 1
        elif isinstance(event, BatchTaken):
            taken = batches.get(event.step)  # none if the run ended before it was trained
            in_hand, resumed = {group.id for group in taken.groups} if taken else set(), False
            unknown = 0 if taken else event.groups
        elif isinstance(event, PhaseBegan) and event.phase is Phase.RESUME:
            resumed = True
        elif isinstance(event, Admitted) and event.outstanding > event.capacity:
            yield f"admission: {event.outstanding} of {event.capacity} credits at {time:.1f} s"
        found = sum(count > 0 for group, count in open_now.items() if group not in in_hand)
        found += 0 if resumed else sum(open_now[group] > 0 for group in in_hand)
        if found > bound + (unknown if resumed else 0):
            yield f"admission: {found} groups of {bound} at {time:.1f} s"
            return


def credits_add_up(run: Evidence) -> Iterator[str]:
    """Promise 6: each credit is taken once and comes back once: at resume, or when a group leaves.

    Between the batch and the resume that follows it none comes back.
    """
    outstanding = 0
    early: CreditsReturned | None = None
    holding = False
    for time, event in run.events:
        if isinstance(event, Admitted):
            outstanding += 1
        elif isinstance(event, CreditsReturned):
            outstanding -= event.groups
            early = event if holding else None
        elif isinstance(event, BatchTaken):
            holding, early = True, None
        elif isinstance(event, PhaseBegan) and event.phase is Phase.RESUME:
            if early is not None:
                yield f"credits: {early.groups} came back before the resume at {time:.1f} s"
            holding, early = False, None
        if isinstance(event, Admitted | CreditsReturned) and event.outstanding != outstanding:
            yield f"credits: {outstanding} are out, control counts {event.outstanding}"
            return
    if outstanding and run.of(RunEnded):
        yield f"credits: {outstanding} never came back"


def oldest_starts_go_first(run: Evidence) -> Iterator[str]:
    """Promise 7: no group that a batch leaves behind has an older start than one that it takes.

    Without bias by speed it is the order of admission that counts.
    """
    unbiased = run.job.redundancy.mode == "unbiased"
    taken = {
        batch.step: [(group.id, group.start_version) for group in batch.groups]
        for _, batch in run.batches
    }
    ready = dict[int, int]()
    for _, event in run.events:
        if isinstance(event, GroupReady):
            ready[event.group] = event.group if unbiased else event.start_version
        elif isinstance(event, Disposed):
            ready.pop(event.group, None)
        elif isinstance(event, BatchTaken) and event.step in taken:
            for group, _ in taken[event.step]:
                ready.pop(group, None)
            newest = max(
                (group if unbiased else start for group, start in taken[event.step]), default=0
            )
            if min(ready.values(), default=newest) < newest:
                yield f"order: step {event.step} took start {newest} and left {ready} behind"


def stale_tasks_go_first(run: Evidence) -> Iterator[str]:
    """Promise 7: the task of a stale group is admitted again before any new one of its domain."""
    task_of = dict[int, tuple[str, str]]()
    waiting = dict[int, tuple[str, str]]()
    for time, event in run.events:
        if isinstance(event, Disposed) and event.disposition is Disposition.STALE:
            if event.group in task_of:
                waiting[event.group] = task_of.pop(event.group)
        elif isinstance(event, Admitted):
            task = (event.domain, event.task)
            if event.requeued:
                back = next((g for g, stale in waiting.items() if stale == task), None)
                if back is not None:
                    del waiting[back]
            elif any(domain == event.domain for domain, _ in waiting.values()):
                yield f"order: {event.task} came at {time:.1f} s before stale {waiting}"
                return
            task_of[event.group] = task


def tasks_come_again_once(run: Evidence) -> Iterator[str]:
    """Promise 7: for each group that left untrained its task comes again at most once.

    And only once the group has left: a task has no second group while the first goes on.
    """
    groups = dict[tuple[str, str], list[int]]()
    open_now, trained, followed = Counter[int](), set[int](), set[int]()
    for time, event in run.events:
        if isinstance(event, TrajectoryStarted) and event.purpose == "train":
            open_now[event.group] += 1
            if event.group in followed:
                yield f"order: group {event.group} goes on, though its task was tried again"
        elif isinstance(event, Disposed):
            open_now[event.group] -= 1
            if event.disposition is Disposition.TRAINED:
                trained.add(event.group)
        elif isinstance(event, Admitted):
            earlier = groups.setdefault((event.domain, event.task), [])
            if event.requeued:
                left = [g for g in earlier if not open_now[g] and g not in trained | followed]
                if not left:
                    yield f"order: {event.task} was tried again at {time:.1f} s without a cause"
                followed.update(left[:1])
            earlier.append(event.group)


def spares_are_no_more_than_that(run: Evidence) -> Iterator[str]:
    """Promise 8: no group is trained with more members than it should have.

    Without bias by speed, its members are the first places of which no earlier one was given up.
    """
    sizes = {domain.tag: run.job.group_size_of(domain) for domain in run.job.domains}
    lost = Counter(
        (event.trajectory.rsplit(".", 1)[0])
        for event in run.of(Disposed)
        if event.disposition in (Disposition.FAILED, Disposition.INVALID)
    )
    for _, batch in run.batches:
        for group in batch.groups:
            places = [member.id.member for member in group.members]
            size = sizes[group.task.domain]
            if len(places) > size:
                yield f"spares: group {group.id} was trained with {len(places)} of {size}"
            if run.job.redundancy.mode != "unbiased":
                continue
            name = f"{group.task.domain}/{group.task.key}/g{group.id}"
            given_up = [p for p in range(max(places)) if p not in places]
            for place in given_up:
                if lost[f"{name}.{place}"] < run.job.faults.attempts:
                    yield f"spares: group {group.id} left out {place}, which had not failed"


def surplus_is_not_carried_over(run: Evidence) -> Iterator[str]:
    """Promise 8: of the groups that were there when a batch was full, its spares are ended.

    A place that is surplus leaves as that, and no other trajectory of it follows.
    """
    most = run.job.capacity_groups - run.job.redundancy.groups
    open_now, there = Counter[int](), set[int]()
    surplus = set[str]()
    for _, event in run.events:
        if isinstance(event, TrajectoryStarted) and event.purpose == "train":
            open_now[event.group] += 1
            if _place_of(event.trajectory) in surplus:
                yield f"surplus: {event.trajectory} started in a place that was surplus"
        elif isinstance(event, Disposed):
            open_now[event.group] -= 1
            if event.disposition is Disposition.SURPLUS:
                surplus.add(_place_of(event.trajectory))
        elif isinstance(event, BatchTaken):
            there = {group for group, count in open_now.items() if count > 0}
        elif isinstance(event, PhaseEnded) and event.phase is Phase.ABORT_STALE and event.ok:
            left = sum(open_now[group] > 0 for group in there)
            if left > most:
                yield f"surplus: step {event.step} carried {left} groups over, {most} may stay"


def _place_of(trajectory: str) -> str:
    """The place in its group, whatever the attempt."""
    return trajectory.rpartition(".")[0]
