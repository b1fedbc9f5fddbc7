"""Promises about admission, order and deadlines, checked from a run's events."""

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
    """Promise 6: at most (alpha + 1) batches, besides the one that trains since its resume."""
    job = run.job
    bound = (job.protocol.alpha + 1) * job.rollout.batch_groups * job.rollout.group_size
    open_now = in_hand = 0
    resumed = False
    for time, event in run.events.events:
        if isinstance(event, TrajectoryStarted) and event.purpose == "train":
            open_now += 1
        elif isinstance(event, Disposed):
            open_now -= 1
            in_hand -= event.disposition is Disposition.TRAINED
        elif isinstance(event, BatchTaken):
            in_hand, resumed = event.trajectories, False
        elif isinstance(event, PhaseBegan) and event.phase is Phase.RESUME:
            resumed = True
        elif isinstance(event, Admitted) and event.outstanding > event.capacity:
            yield f"admission: {event.outstanding} of {event.capacity} credits at {time:.1f} s"
        found = open_now - in_hand if resumed else open_now
        if found > bound:
            yield f"admission: {found} trajectories of {bound} at {time:.1f} s"
            return


def oldest_starts_go_first(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: no group that a batch leaves behind has an older start than one that it takes."""
    taken = {
        batch.step: [(group.id, group.start_version) for group in batch.groups]
        for trainer in run.launcher.trainers
        for _, batch in trainer.batches
    }
    ready = dict[int, int]()
    for _, event in run.events.events:
        if isinstance(event, GroupReady):
            ready[event.group] = event.start_version
        elif isinstance(event, Disposed):
            ready.pop(group_of(event.trajectory), None)
        elif isinstance(event, BatchTaken) and event.step in taken:
            for group, _ in taken[event.step]:
                ready.pop(group, None)
            newest = max((start for _, start in taken[event.step]), default=0)
            if min(ready.values(), default=newest) < newest:
                yield f"order: step {event.step} took start {newest} and left {ready} behind"


def stale_tasks_go_first(run: ScriptedRun) -> Iterator[str]:
    """Promise 7: the task of a stale group is admitted again before any new one."""
    task_of = dict[int, str]()
    waiting = dict[int, str]()
    for time, event in run.events.events:
        if isinstance(event, Disposed) and event.disposition is Disposition.STALE:
            group = group_of(event.trajectory)
            if group in task_of:
                waiting[group] = task_of.pop(group)
        elif isinstance(event, Admitted):
            if event.requeued:
                back = next((g for g, task in waiting.items() if task == event.task), None)
                if back is not None:
                    del waiting[back]
            elif waiting:
                yield f"order: {event.task} came at {time:.1f} s before stale {waiting}"
                return
            task_of[event.group] = event.task


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
