"""When trajectories outlast the bound, the run says so, once."""

from rollart.control.tail import TailWatch
from rollart.core.events import Disposed, RequestDropped, TurnEnded, Warned
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.script import Script


def told(watch: TailWatch, durations: list[float], *, steps: int, alpha: int = 1) -> list[str]:
    said = [watch.after_step(10.0, durations, alpha=alpha) for _ in range(steps)]
    return [text for text in said if text is not None]


def test_a_long_tail_is_told_once_until_it_is_short_again() -> None:
    watch = TailWatch()
    long, short = [1.0] * 30 + [25.0] * 10, [1.0] * 40
    assert len(told(watch, long, steps=6)) == 1
    assert told(watch, short, steps=2) == []
    (again,) = told(watch, long, steps=3)
    assert "over 25.0 s" in again
    assert "alpha + 1 = 2 steps of 10.0 s" in again


def test_a_tail_within_alpha_plus_one_steps_or_seen_too_seldom_is_not_told() -> None:
    assert told(TailWatch(), [1.0] * 30 + [25.0] * 10, steps=6, alpha=2) == []
    assert told(TailWatch(), [25.0] * 31, steps=6) == []
    assert told(TailWatch(), [25.0] * 40, steps=2) == []


def test_a_run_whose_slow_episodes_outlast_the_bound_warns() -> None:
    slow = Script(seed=1, turns=(6, 8), step_s=(1.0, 3.0), train_s=(0.1, 0.2))
    run = run_scripted(scripted_job(run__steps=12), slow)
    warned = [event.message for event in run.events.of(Warned)]
    assert any("longer than alpha + 1" in message for message in warned), warned


def test_what_was_sampled_in_a_turn_that_is_cut_off_stands_in_the_log() -> None:
    script = Script(seed=3, turns=(4, 8), step_s=(1.0, 3.0), step_hangs=0.1, train_s=(0.1, 0.2))
    run = run_scripted(scripted_job(run__steps=6), script)
    dropped = run.events.of(RequestDropped)
    assert any(event.sampled_tokens > 0 for event in dropped)
    hung = {e.trajectory for e in run.events.of(Disposed) if "did not return" in e.reason}
    assert hung
    assert hung <= {turn.trajectory for turn in run.events.of(TurnEnded)}
