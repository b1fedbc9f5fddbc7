import dataclasses
from collections.abc import Callable

import pytest

from rollart.core.events import (
    BatchTaken,
    Event,
    Phase,
    PhaseBegan,
    Stamped,
    StepTrained,
    TrajectoryEnded,
)
from rollart.observe.steps import StepRow, StepRows

Run = Callable[..., list[Stamped]]


def rows_of(*timed: tuple[float, Event]) -> list[StepRow]:
    rows = StepRows()
    taken = [
        rows.take(Stamped(time=time, seq=seq, incarnation=0, event=event))
        for seq, (time, event) in enumerate(timed)
    ]
    return [row for row in taken if row is not None]


def events_of(synthetic_run: Run) -> tuple[TrajectoryEnded, BatchTaken, StepTrained]:
    events = [stamped.event for stamped in synthetic_run(steps=1)]
    ended = next(e for e in events if isinstance(e, TrajectoryEnded))
    batch = next(e for e in events if isinstance(e, BatchTaken))
    trained = next(e for e in events if isinstance(e, StepTrained))
    return ended, batch, trained


def test_success_is_of_all_that_ended_and_not_only_of_the_batch(synthetic_run: Run) -> None:
    ended, batch, trained = events_of(synthetic_run)
    won = dataclasses.replace(ended, purpose="train", success=1.0, score=0.9)
    lost = dataclasses.replace(won, success=0.0, score=0.0)
    unscored = dataclasses.replace(won, success=None, score=None)
    held_out = dataclasses.replace(won, purpose="eval")
    (row,) = rows_of(
        *[(0.0, event) for event in (won, lost, lost, lost, unscored, held_out, held_out)],
        (1.0, dataclasses.replace(batch, success_mean=0.5, score_mean=0.45)),
        (2.0, trained),
    )
    assert row.success == pytest.approx(0.25)
    assert row.reward == pytest.approx(0.9 / 4)
    assert (row.batch_success, row.batch_reward) == (0.5, 0.45)


def test_each_step_counts_what_ended_since_the_step_before(synthetic_run: Run) -> None:
    ended, _, trained = events_of(synthetic_run)
    won = dataclasses.replace(ended, purpose="train", success=1.0)
    first, second, third = rows_of(
        (0.0, won),
        (1.0, trained),
        (2.0, dataclasses.replace(won, success=0.0)),
        (4.0, trained),
        (9.0, trained),
    )
    assert (first.success, second.success, third.success) == (1.0, 0.0, None)
    assert (second.seconds, third.seconds) == (3.0, 5.0)
    assert second.batch_success is None
    assert second.tokens_per_s == 0.0


def test_the_first_step_begins_with_its_get_batch(synthetic_run: Run) -> None:
    _, batch, trained = events_of(synthetic_run)
    (row,) = rows_of(
        (0.0, PhaseBegan(step=0, phase=Phase.UPDATE)),
        (60.0, PhaseBegan(step=0, phase=Phase.GET_BATCH)),
        (61.0, dataclasses.replace(batch, tokens=1000)),
        (64.0, trained),
    )
    assert row.seconds == 4.0
    assert row.tokens_per_s == 250.0
