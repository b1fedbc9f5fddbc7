"""A check that fails itself is told as that, and hides nothing of what the others found."""

from collections.abc import Iterator

import pytest

from rollart.chaos import scripted_scene
from rollart.cli.chaos import status
from rollart.core.events import BatchTaken, RunEnded, TrajectoryStarted
from rollart.runtimes.sim.chaos.checking import told_by
from rollart.runtimes.sim.chaos.evidence import Evidence
from rollart.runtimes.sim.chaos.invariants import broken_invariants
from rollart.runtimes.sim.chaos.run import ChaosRun

ENDED = RunEnded(reason="all steps are done", ok=True, steps=1, seconds=2.0)


def evidence(*events: TrajectoryStarted | BatchTaken) -> Evidence:
    """A run that says that it did one step, and told no more than this of it."""
    return Evidence(
        job=scripted_scene(0).job,
        steps=1,
        events=[*((1.0, event) for event in events), (2.0, ENDED)],
        batches=[],
        engines=[],
    )


def started(domain: str) -> TrajectoryStarted:
    return TrajectoryStarted(
        trajectory=f"{domain}/t/g0.0.0",
        purpose="train",
        domain=domain,
        task="t",
        group=0,
        member=0,
        attempt=0,
    )


def outcome(*broken: str) -> ChaosRun:
    return ChaosRun(end="", ended_early=False, placed=(), events=(), broken=broken)


def test_a_check_that_raises_says_so_after_what_it_had_found() -> None:
    def counts_too_far(numbers: list[int]) -> Iterator[str]:
        yield f"numbers: {numbers[0]}"
        yield f"numbers: {numbers[1]}"

    first, second = told_by(counts_too_far, [7])
    assert first == "numbers: 7"
    assert second.startswith("check: counts_too_far raised IndexError")


def test_a_run_of_which_no_step_is_told_breaks_a_promise_and_no_check() -> None:
    words = {sentence.partition(":")[0] for sentence in broken_invariants(evidence())}
    assert words == {"six steps"}


def test_a_check_that_cannot_read_a_run_leaves_the_others_their_say() -> None:
    said = broken_invariants(evidence(started("nowhere")))
    assert [s for s in said if s.startswith("check: admission_is_bounded raised KeyError")]
    assert [s for s in said if s.startswith("ledger: 1 trajectories never left")]
    assert [s for s in said if s.startswith("six steps: ")]
    assert outcome(*said).misjudged


@pytest.mark.parametrize(
    ("failed", "plant", "code"),
    [
        ([], None, 0),
        ([], "roses", 1),
        ([outcome("ledger: not balanced")], None, 1),
        ([outcome("ledger: not balanced")], "roses", 0),
        ([outcome("check: x raised KeyError()")], None, 1),
        ([outcome("check: x raised KeyError()")], "roses", 1),
        ([outcome("ledger: not balanced", "check: x raised KeyError()")], "roses", 1),
    ],
)
def test_a_bug_counts_as_found_by_a_promise_and_not_by_a_check_that_failed(
    failed: list[ChaosRun], plant: str | None, code: int
) -> None:
    assert status(failed, plant=plant) == code
