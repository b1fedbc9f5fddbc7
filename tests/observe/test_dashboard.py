import dataclasses
import io
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from rollart.core.events import (
    EngineDown,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    Stamped,
    StepTrained,
    Warned,
)
from rollart.observe.dashboard import Dashboard, PlainLines, make_view, panel
from rollart.observe.progress import Progress

Run = Callable[..., list[Stamped]]


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def drawn(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(panel(progress))
    return text_of(console)


def progress_at(events: list[Stamped], stop: Callable[[Stamped], bool]) -> Progress:
    progress = Progress()
    for stamped in events:
        progress.take(stamped)
        if stop(stamped):
            break
    return progress


def test_a_view_is_live_on_a_terminal_only_and_only_if_wanted() -> None:
    view = make_view(live=True, console=terminal())
    view.close()
    assert isinstance(view, Dashboard)
    assert isinstance(make_view(live=False, console=terminal()), PlainLines)
    assert isinstance(make_view(live=True, console=plain_console()), PlainLines)


def test_plain_output_is_one_whole_line_for_each_step(synthetic_run: Run) -> None:
    console = plain_console()
    view = PlainLines(console)
    for stamped in synthetic_run(steps=4):
        view.take(stamped)
    view.close()
    lines = text_of(console).splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["1/4", "2/4", "3/4", "4/4"]
    for said in ("reward 0.450  success 50 %", "781 tokens/s", "lag start 1 token 2", "left 1."):
        assert said in steps[2]
    assert lines[0].startswith("run synthetic: rollart with alpha 1")
    assert "held-out FrozenLake, after: success 87 % sampled, 255 of 256 tasks" in text_of(console)
    assert "baseline on FrozenLake: success 62 %, right if free, else down" in text_of(console)
    assert lines[-1].startswith("run ended after 4 steps")


def test_plain_output_tells_of_lost_engines_warnings_and_failure(synthetic_run: Run) -> None:
    console = plain_console()
    view = PlainLines(console)
    last = synthetic_run(steps=1)[-1]
    for event in (
        EngineDown(engine="engine-1", reason="signal 9 [bold]", moved_requests=2),
        Warned(message="slow"),
        RunEnded(reason="no engine is left", ok=False, steps=1, seconds=61.0),
    ):
        view.take(dataclasses.replace(last, event=event))
    assert text_of(console).splitlines() == [
        "engine engine-1 is down: signal 9 [bold]; 2 requests moved",
        "warning: slow",
        "run FAILED after 1 steps and 1 min 01 s: no engine is left",
    ]


def test_the_panel_says_how_far_the_run_is_and_what_each_part_waits_for(
    synthetic_run: Run,
) -> None:
    events = synthetic_run(steps=10)
    progress = progress_at(
        events,
        lambda s: s.event == PhaseBegan(step=5, phase=Phase.GET_BATCH),
    )
    shown = drawn(progress)
    for said in (
        "synthetic",
        "step 5/10",
        "waits for a full batch: 4 of 4 groups",
        "engine engine-0",
        "version 4, idle",
        "credits 4/8",
        "decode 50 %",
        "781 tokens/s",
        "left",
    ):
        assert said in shown


def test_the_panel_shows_paused_and_lost_engines(synthetic_run: Run) -> None:
    progress = progress_at(
        synthetic_run(steps=3),
        lambda s: isinstance(s.event, PhaseBegan) and s.event.phase is Phase.UPDATE,
    )
    assert "paused, waits for the new weights" in drawn(progress)
    assert "waits for engines to load weights" in drawn(progress)
    progress.engines["engine-1"].down = "signal 9 [/]"
    assert "down: signal 9 [/]" in drawn(progress)


def test_the_panel_before_anything_happened_is_drawn_too() -> None:
    assert "starting" in drawn(Progress())


def test_drawing_is_throttled_by_event_time_and_uses_no_thread(synthetic_run: Run) -> None:
    console = terminal()
    threads = threading.active_count()
    view = Dashboard(console)
    assert threading.active_count() == threads
    first = synthetic_run(steps=1)[0]
    before = text_of(console).count("RollArt:")
    for tick in range(1000):
        view.take(
            dataclasses.replace(
                first, time=tick * 0.01, event=PhaseBegan(step=0, phase=Phase.GET_BATCH)
            )
        )
    draws = text_of(console).count("RollArt:") - before
    view.close()
    assert 35 <= draws <= 41


def test_the_live_view_leaves_lasting_lines_and_a_cursor(synthetic_run: Run) -> None:
    console = terminal()
    view = Dashboard(console)
    for stamped in synthetic_run(steps=3):
        view.take(stamped)
    view.close()
    view.close()
    shown = text_of(console)
    assert "held-out FrozenLake, after" in shown
    assert "run ended after 3 steps" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_a_phase_that_ended_is_not_waited_for(synthetic_run: Run) -> None:
    progress = progress_at(
        synthetic_run(steps=3),
        lambda s: (
            isinstance(s.event, PhaseEnded) and (s.event.step, s.event.phase) == (1, Phase.PUBLISH)
        ),
    )
    assert "between steps" in drawn(progress)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_first_step_is_timed_from_its_get_batch(synthetic_run: Run, steps: int) -> None:
    progress = progress_at(synthetic_run(steps=steps), lambda s: isinstance(s.event, StepTrained))
    assert progress.row is not None
    # Evaluation before training took four seconds, which are no part of the step.
    assert progress.row.seconds < 3.0
