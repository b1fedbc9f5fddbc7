"""Promises about admission, order and deadlines, checked from a run's events."""

from collections import Counter
from collections.abc import Iterator

from rollart.core.events import (
    Admitted,
    BatchTaken,
    Disposed,
    GroupReady,
    Phase,
    PhaseBegan,
    TrajectoryEnded,
    TrajectoryStarted,
)
from rollart.core.types import Disposition
from rollart.testing.harness import ScriptedRun


def group_of(trajectory: str) -> int:
    """The group's number in a training trajectory's name, as in `lake/task-3/g7.0.1`."""
    return int(trajectory.rsplit("/g", 1)[1].split(".", 1)[0])


def admission_is_bounded(run: ScriptedRun) -> Iterator[str]:
    """Promise 6: at most the capacity's groups, besides the batch that trains since its resume.

    No group has more trajectories at once than its domain's size and the declared spares.
    """
    sizes = {domain.tag: run.job.group_size_of(domain) for domain in run.job.domains}
    spare, bound = run.job.redundancy.members, run.job.capacity_groups
    open_now = Counter[int]()
    in_hand = set[int]()
    resumed, unknown = False, 0
    batches = {b.step: b for t in run.launcher.trainers for _, b in t.batches}
    for time, event in run.events.events:
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


def oldest_starts_go_first(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: no group that a batch leaves behind has an older start than one that it takes.

    Without bias by speed it is the order of admission that counts.
    """
    unbiased = run.job.redundancy.mode == "unbiased"
    taken = {
        batch.step: [(group.id, group.start_version) for group in batch.groups]
        for trainer in run.launcher.trainers
        for _, batch in trainer.batches
    }
    ready = dict[int, int]()
    for _, event in run.events.events:
        if isinstance(event, GroupReady):
            ready[event.group] = event.group if unbiased else event.start_version
        elif isinstance(event, Disposed):
            ready.pop(group_of(event.trajectory), None)
        elif isinstance(event, BatchTaken) and event.step in taken:
            for group, _ in taken[event.step]:
                ready.pop(group, None)
            newest = max(
                (group if unbiased else start for group, start in taken[event.step]), default=0
            )
            if min(ready.values(), default=newest) < newest:
                yield f"order: step {event.step} took start {newest} and left {ready} behind"


def stale_tasks_go_first(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: the task of a stale group is admitted again before any new one of its domain."""
    task_of = dict[int, tuple[str, str]]()
    waiting = dict[int, tuple[str, str]]()
    for time, event in run.events.events:
        if isinstance(event, Disposed) and event.disposition is Disposition.STALE:
            group = group_of(event.trajectory)
            if group in task_of:
                waiting[group] = task_of.pop(group)
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


def spares_are_no_more_than_that(run: ScriptedRun) -> Iterator[str]:
    """Promise 8: no group is trained with more members than it should have.

    Without bias by speed, its members are the first places of which no earlier one was given up.
    """
    sizes = {domain.tag: run.job.group_size_of(domain) for domain in run.job.domains}
    lost = Counter(
        (event.trajectory.rsplit(".", 1)[0])
        for event in run.events.of(Disposed)
        if event.disposition in (Disposition.FAILED, Disposition.INVALID)
    )
    for trainer in run.launcher.trainers:
        for _, batch in trainer.batches:
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


def nothing_outlives_its_deadline(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: an episode ends by its deadline, but for an engine's time to let go of it."""
    times = run.job.timeouts
    longest = times.episode_s + times.engine_s + 1e-6
    began = dict[str, float]()
    for time, event in run.events.events:
        if isinstance(event, TrajectoryStarted):
            began[event.trajectory] = time
        elif isinstance(event, TrajectoryEnded | Disposed):
            lasted = time - began.pop(event.trajectory, time)
            if lasted > longest:
                yield f"deadline: {event.trajectory} lasted {lasted:.1f} s of {longest:.1f} s"
