import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from rollart.core.events import (
    Disposed,
    DomainClosed,
    Evaluated,
    Event,
    RunStarted,
    Stamped,
    StepTrained,
    TrajectoryEnded,
)
from rollart.core.types import Disposition
from rollart.observe.dashboard import PlainLines, panel
from rollart.observe.history import gather
from rollart.observe.plots import draw
from rollart.observe.progress import STARVING_STEPS, Progress
from rollart.observe.steps import StepRows
from rollart.observe.summary import summary_of
from rollart.observe.summary_json import json_object
from rollart.observe.tables import result

Run = Callable[..., list[Stamped]]

BOTH = ("Lake", "Chess")


def changed(events: list[Stamped], change: Callable[[Event], Event]) -> list[Stamped]:
    return [dataclasses.replace(s, event=change(s.event)) for s in events]


def without(events: list[Stamped], drop: Callable[[Stamped], bool]) -> list[Stamped]:
    kept = [s for s in events if not drop(s)]
    return [dataclasses.replace(s, seq=seq) for seq, s in enumerate(kept)]


def apart(event: Event) -> Event:
    """The domains differ in everything a report tells of them."""
    if isinstance(event, TrajectoryEnded) and event.domain == "Chess":
        scored = event.score is not None
        return dataclasses.replace(
            event,
            score=0.25 if scored else None,
            success=0.5 if scored else None,
            turns=9,
            sampled_tokens=45,
            elapsed_s=4.0,
        )
    if isinstance(event, Evaluated) and event.domain == "Chess":
        scored = 200 if event.mode == "sampled" else 100
        return dataclasses.replace(event, success=0.3, scored=scored)
    return event


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table_text(events: list[Stamped]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(result(summary_of(gather(events))))
    return " ".join(text_of(console).split())


def test_each_domain_has_its_own_numbers(synthetic_run: Run) -> None:
    summary = summary_of(gather(changed(synthetic_run(steps=10, domains=BOTH), apart)))
    lake, chess = summary.domains
    assert (lake.domain, chess.domain) == BOTH
    assert (chess.reward, chess.success, chess.turns) == (0.25, 0.5, 9.0)
    assert (chess.sampled_tokens, chess.elapsed_s) == (45.0, 4.0)
    assert (lake.turns, lake.sampled_tokens) == (3.0, 15.0)
    assert lake.reward is not None
    assert lake.reward > 0.3
    assert lake.started + chess.started == summary.ledger.started
    for name, count in summary.ledger.dispositions:
        assert sum(dict(d.dispositions)[name] for d in summary.domains) == count
    failures = [dict(d.failures).get("env_timeout", 0) for d in summary.domains]
    assert sum(failures) == dict(summary.failures)["env_timeout"]
    assert (lake.steps_trained, chess.steps_trained) == (10, 10)


def test_the_object_has_each_domain_with_both_modes(synthetic_run: Run) -> None:
    events = changed(synthetic_run(steps=10, domains=BOTH), apart)
    found = msgspec.json.decode(msgspec.json.encode(json_object(summary_of(gather(events)))))
    chess = found["domains"]["Chess"]
    assert set(found["domains"]) == set(BOTH)
    assert chess["after"]["greedy"]["success"] == 0.3
    assert chess["heldout_scored"] == {"sampled": 200, "greedy": 100}
    assert found["heldout_scored"] == {"Lake": 255, "Chess": 100}
    assert chess["baselines"]["best fixed sequence"] == 0.27
    assert chess["bias"]["kept"] == chess["dispositions"]["trained"]
    left = sum(one["left"] for one in chess["bias"]["by_duration"])
    assert left == chess["started"] == chess["bias"]["started"]


def test_evaluations_beside_training_are_kept_in_order(synthetic_run: Run) -> None:
    events = synthetic_run(steps=3)
    late = next(s for s in events if isinstance(s.event, Evaluated))
    assert isinstance(late.event, Evaluated)
    beside = [
        dataclasses.replace(late, event=dataclasses.replace(late.event, when=when, version=version))
        for when, version in (("1", 1), ("2", 2))
    ]
    (domain,) = summary_of(gather([*events[:-1], *beside, events[-1]])).domains
    assert [(one.when, one.version) for one in domain.during] == [("1", 1), ("2", 2)]
    assert domain.success_at("after", "sampled") == 0.87


def test_the_table_shows_the_domains_side_by_side(synthetic_run: Run) -> None:
    shown = table_text(changed(synthetic_run(steps=10, domains=BOTH), apart))
    for said in (
        "what ┃ Lake ┃ Chess",
        "turns │ 3.0 │ 9.0",
        "in train steps │ 10 of 10 │ 10 of 10",
    ):
        assert said in shown
    assert "Kept against started" not in shown
    assert "closed" not in shown


def test_the_bias_is_shown_where_redundancy_is_declared(synthetic_run: Run) -> None:
    def declare(event: Event) -> Event:
        if isinstance(event, RunStarted):
            return dataclasses.replace(event, config='{"redundancy": {"members": 4}}')
        return event

    shown = table_text(changed(synthetic_run(steps=10, domains=BOTH), declare))
    assert "Kept against started (4 spare members, 0 spare groups, race)" in shown


def test_durations_are_listed_where_what_is_dropped_is_slow(synthetic_run: Run) -> None:
    slow: set[str] = set()

    def drop_the_slow(event: Event) -> Event:
        if isinstance(event, TrajectoryEnded) and event.trajectory.endswith("1.0"):
            slow.add(event.trajectory)
            return dataclasses.replace(event, elapsed_s=4.0)
        if isinstance(event, Disposed) and event.trajectory in slow:
            return dataclasses.replace(event, disposition=Disposition.STALE)
        return event

    shown = table_text(changed(synthetic_run(steps=30), drop_the_slow))
    assert "biased FrozenLake" in shown
    assert "FrozenLake: by duration" in shown
    assert "│ 4 s │" in shown


def closing(events: list[Stamped], after_steps: int) -> list[Stamped]:
    """The run, in which Chess closes after some steps and is not seen again."""
    (at, *_) = [
        s for s in events if isinstance(s.event, StepTrained) and s.event.step == after_steps
    ]
    closed = dataclasses.replace(at, event=DomainClosed(domain="Chess", reason="no verdicts"))
    head = [s for s in events if s.seq <= at.seq]
    tail = [s for s in events if s.seq > at.seq and getattr(s.event, "domain", "") != "Chess"]
    return [dataclasses.replace(s, seq=seq) for seq, s in enumerate([*head, closed, *tail])]


def test_a_domain_that_closes_is_told_everywhere(synthetic_run: Run) -> None:
    events = closing(synthetic_run(steps=10, domains=BOTH), 4)
    assert "closed │ no │ no verdicts" in table_text(events)
    assert "in train steps │ 10 of 10 │ 5 of 10" in table_text(events)
    console = Console(file=io.StringIO(), width=80, highlight=False)
    view, progress = PlainLines(console), Progress()
    for stamped in events:
        view.take(stamped)
        progress.take(stamped)
    assert "domain Chess is closed, the others go on: no verdicts" in text_of(console)
    wide = Console(file=io.StringIO(), width=140)
    wide.print(panel(progress))
    assert "closed: no verdicts" in text_of(wide)


def test_a_domain_of_which_nothing_is_trained_starves_visibly(synthetic_run: Run) -> None:
    def is_chess(stamped: Stamped) -> bool:
        return getattr(stamped.event, "domain", "") == "Chess"

    events = without(synthetic_run(steps=10, domains=BOTH), is_chess)
    console = Console(file=io.StringIO(), width=80, highlight=False)
    view, progress = PlainLines(console), Progress()
    for stamped in events:
        view.take(stamped)
        progress.take(stamped)
    lines = [line for line in text_of(console).splitlines() if line.startswith("step ")]
    starving = ["STARVES" in line for line in lines]
    assert starving == [at + 1 >= STARVING_STEPS for at in range(10)]
    assert not progress.domains["Lake"].starving
    wide = Console(file=io.StringIO(), width=140)
    wide.print(panel(progress))
    assert "STARVES: nothing of it in 10 steps" in text_of(wide)


def test_a_single_domain_is_not_told_twice(synthetic_run: Run) -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    view = PlainLines(console)
    for stamped in synthetic_run(steps=2):
        view.take(stamped)
    assert "[FrozenLake" not in text_of(console)


def test_step_rows_hold_each_domain_and_forget_the_step_before(synthetic_run: Run) -> None:
    rows = StepRows()
    found = [
        row
        for s in changed(synthetic_run(steps=4, domains=BOTH), apart)
        if (row := rows.take(s)) is not None
    ]
    for row in found:
        by_tag = {domain.domain: domain for domain in row.domains}
        assert set(by_tag) == set(BOTH)
        assert by_tag["Chess"].ended == 4
        assert by_tag["Chess"].reward == 0.25
        assert by_tag["Lake"].trained + by_tag["Lake"].failed == 4
    assert found[0].trajectories == sum(d.trained + d.failed for d in found[0].domains)


@pytest.mark.parametrize("domains", [BOTH, ("A", "B", "C", "D", "E", "F", "G")])
def test_many_domains_can_be_drawn(
    tmp_path: Path, synthetic_run: Run, domains: tuple[str, ...]
) -> None:
    draw(gather(synthetic_run(steps=8, domains=domains)), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
