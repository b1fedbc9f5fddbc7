"""What watches a run is as small after five hundred steps as after fifty."""

import dataclasses
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from rollart.core.events import Stamped
from rollart.core.types import Trajectory
from rollart.observe.eventlog import EventLog, read_events
from rollart.observe.progress import Progress
from rollart.observe.recorder import Recorder
from rollart.observe.trackers import JsonlTracker, MetricsFeed
from rollart.observe.transcripts import TranscriptLog
from rollart.testing.samples import sample_trajectory

Run = Callable[..., list[Stamped]]

STEPS, FROM, A_MB = 500, 50, 1 << 20
STEP_S = 2.0


class Clock:
    """Loop time as the test says it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def one_step(events: list[Stamped]) -> list[Stamped]:
    """The events of a later step, from its first admission to its balance."""
    ends = [s.seq for s in events if type(s.event).__name__ == "LedgerClosed"]
    return events[ends[-2] + 1 : ends[-1] + 1]


def renamed(stamped: Stamped, step: int) -> Stamped:
    """The event as it would be of another step: names and groups do not come back."""
    event, new = stamped.event, dict[str, object]()
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name == "trajectory":
            new[field.name] = f"{value}-{step}"
        elif field.name == "group":
            new[field.name] = value + 1000 * step
    return dataclasses.replace(stamped, event=dataclasses.replace(event, **new))


def memory() -> tuple[int, int]:
    """Objects that are alive, and bytes that the process has in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * resource.getpagesize()


def large(step: int) -> Trajectory:
    """A megabyte of tokens and log-probs."""
    return sample_trajectory(group=step, version=step, prompt=8, sampled=A_MB // 8)


def test_watching_five_hundred_steps_takes_no_more_memory_than_fifty(
    tmp_path: Path, synthetic_run: Run
) -> None:
    step_events = one_step(synthetic_run(steps=3, ends=False, domains=("Lake", "Chess")))
    begin = synthetic_run(steps=1, ends=False)[:3]
    clock = Clock()
    recorder = Recorder(clock)
    log = EventLog(tmp_path / "events.jsonl")
    # Itself, and not behind its thread, whose queue is bounded and of any length.
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    # What the live view draws; drawing itself fills a terminal library's bounded caches.
    progress = Progress()
    transcripts = TranscriptLog(
        tmp_path / "t.jsonl", steps=STEPS, per_interval=1, limit_bytes=8 * A_MB
    )
    recorder.attach("the event log", log.append)
    recorder.attach("metrics", MetricsFeed(tracker).take)
    recorder.attach("the live view", lambda stamped: (progress.take(stamped), None)[1])
    for stamped in begin:
        recorder.emit(stamped.event)
    early = (0, 0)
    for step in range(STEPS):
        for stamped in step_events:
            clock.now = step * STEP_S
            recorder.emit(renamed(stamped, step).event)
        transcripts.take(large(step) if step % 10 == 0 else sample_trajectory(group=step))
        if step == FROM:
            early = memory()
    late = memory()
    transcripts.close()
    tracker.close()
    log.close()
    # One name kept a trajectory would be 3,600 objects, one payload of ten 50 MB.
    assert late[0] - early[0] < 200
    assert late[1] - early[1] < 10 * A_MB
    assert log.lost == 0
    assert sum(1 for _ in read_events(tmp_path / "events.jsonl")) == STEPS * len(step_events) + 3
    assert 0 < (tmp_path / "t.jsonl").stat().st_size <= 8 * A_MB
