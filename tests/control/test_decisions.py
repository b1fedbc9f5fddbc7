"""The pure decisions: routing, budgets, staleness, lags, protocols, deadlines."""

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.deadline import now, within
from rollart.control.protocols import protocol_policy
from rollart.control.routing import Router, token_budget
from rollart.control.staleness import is_stale, start_lag, token_lag
from rollart.core.tokens import VersionRuns
from rollart.core.types import Trajectory
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.samples import sample_group, sample_trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An engine as routing sees it."""

    id: str
    hardware: str
    load: int


def view(name: str, load: int = 0, hardware: str = "slow") -> View:
    return View(id=name, hardware=hardware, load=load)


@pytest.mark.parametrize(
    ("engines", "wanted", "holder", "chosen"),
    [
        ([], None, None, None),
        ([view("a", 2), view("b", 1)], None, None, "b"),
        ([view("a", 1), view("b", 1)], None, None, "a"),
        ([view("a", 9), view("b", 0)], None, "a", "a"),
        ([view("a", 9), view("b", 0)], None, "gone", "b"),
        ([view("a"), view("b", 9, "fast")], "fast", None, "b"),
        ([view("a"), view("b", 9, "fast")], "fast", "a", "b"),
        ([view("a"), view("b", 1, "fast"), view("c", 2, "fast")], "fast", "c", "c"),
        ([view("a", 1), view("b", 0)], "fast", "a", "a"),
    ],
)
def test_a_request_goes_to_its_hardware_then_to_its_prefix_then_where_least_is_to_do(
    engines: list[View], wanted: str | None, holder: str | None, chosen: str | None
) -> None:
    found = Router({one.id: one for one in engines}).choose(wanted=wanted, holder=holder)
    assert (found.id if found is not None else None) == chosen


@pytest.mark.parametrize(
    ("max_tokens", "prompt", "sampled", "context", "left"),
    [
        (10, 4, 0, 16, 10),
        (10, 4, 6, 16, 4),
        (10, 4, 10, 16, 0),
        (400, 300, 0, 512, 212),
        (400, 600, 0, 512, -88),
        (10, 10, 6, 16, 0),
    ],
)
def test_a_budget_is_what_the_turn_and_the_context_both_leave(
    max_tokens: int, prompt: int, sampled: int, context: int, left: int
) -> None:
    found = token_budget(
        max_tokens=max_tokens, prompt_tokens=prompt, sampled_tokens=sampled, context=context
    )
    assert found == left


@given(st.integers(1, 50), st.integers(0, 50), st.lists(st.integers(1, 20), max_size=5))
def test_however_often_a_request_is_continued_it_never_exceeds_turn_or_context(
    max_tokens: int, prompt: int, portions: list[int]
) -> None:
    sampled = 0
    for portion in portions:
        left = token_budget(
            max_tokens=max_tokens, prompt_tokens=prompt, sampled_tokens=sampled, context=40
        )
        sampled += max(0, min(portion, left))
    assert sampled <= max_tokens
    assert prompt + sampled <= max(40, prompt)


@pytest.mark.parametrize(
    ("start", "committed", "alpha", "stale"),
    [
        (None, 9, 0, False),
        (5, 5, 0, False),
        (4, 5, 0, True),
        (4, 5, 1, False),
        (3, 5, 1, True),
        (0, 5, 1, True),
        (2, 5, 3, False),
    ],
)
def test_a_start_is_stale_when_it_is_more_than_alpha_behind_the_committed_version(
    start: int | None, committed: int, alpha: int, stale: bool
) -> None:
    assert is_stale(start, committed=committed, alpha=alpha) is stale


def with_versions(*runs: tuple[int, int]) -> Trajectory:
    """A trajectory whose sampled piece has these versions."""
    whole = sample_trajectory(sampled=sum(count for _, count in runs))
    segment = whole.segments[0]
    sampled = replace(segment.pieces[1], versions=VersionRuns(runs))
    return replace(whole, segments=(replace(segment, pieces=(segment.pieces[0], sampled)),))


def test_token_lag_counts_every_token_against_the_version_that_trains_it() -> None:
    lag = token_lag([with_versions((3, 2), (4, 3)), with_versions((5, 5))], training_version=5)
    assert (lag.tokens, lag.maximum, lag.total) == (10, 2, 7)
    assert lag.mean == pytest.approx(0.7)
    nothing = token_lag([], training_version=5)
    assert (nothing.tokens, nothing.maximum, nothing.mean) == (0, 0, 0.0)


def test_start_lag_is_the_largest_over_the_groups() -> None:
    assert start_lag([sample_group(0, start=4), sample_group(1, start=3)], committed=5) == 2
    assert start_lag([], committed=5) == 0


def test_alpha_0_is_synchronous_and_more_overlaps_and_aborts() -> None:
    strict = protocol_policy("rollart", 0)
    assert (strict.overlap, strict.keeps_bound) == (False, False)
    loose = protocol_policy("rollart", 2)
    assert (loose.overlap, loose.keeps_bound) == (True, True)
    with pytest.raises(ValueError, match="use rollart, sync, sync_plus, one_off or areal"):
        protocol_policy("arael", 1)


def test_a_wait_gives_its_result_within_its_deadline_and_the_error_asked_for_beyond() -> None:
    async def main() -> None:
        assert await within(2.0, asyncio.sleep(1.0, "done"), LookupError) == "done"
        with pytest.raises(LookupError):
            await within(2.0, asyncio.sleep(5.0), LookupError)
        assert now() == 3.0

    run_virtual(main)


def test_a_timeout_from_within_is_not_taken_for_the_deadline() -> None:
    async def own_timeout() -> None:
        raise TimeoutError("its own")

    async def main() -> None:
        with pytest.raises(TimeoutError, match="its own"):
            await within(2.0, own_timeout(), LookupError)

    run_virtual(main)


def test_a_cancelled_wait_is_cancelled_and_not_overdue() -> None:
    async def main() -> None:
        waiting = asyncio.get_running_loop().create_task(
            within(2.0, asyncio.sleep(10.0), LookupError)
        )
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    run_virtual(main)
