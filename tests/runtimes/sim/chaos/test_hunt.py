"""The hunt: seeds that pass, failures that shrink, and runs that repeat to the last event."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from rollart.chaos import drawn_scene, parts_of, play_again, scripted_scene
from rollart.cli.main import main
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.chaos.faults import CELLS, STRIDE, Fault, FaultKind, Step, draw_faults
from rollart.runtimes.sim.chaos.run import ChaosRun, play
from rollart.runtimes.sim.chaos.search import hunt, play_seed, shrink
from rollart.testing.plants import PLANTS

ROUNDS = 6
"""Seeds of one kind of fault at one step to look through; most are felt in the first."""


def test_whatever_befalls_a_run_every_promise_holds() -> None:
    found = hunt(range(30), drawn_scene)
    assert [failure.run.broken for failure in found.failures] == []
    assert sum(found.coverage.felt.values()) > 30
    assert found.early > 0


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_of_each_kind_is_felt_at_each_step(kind: FaultKind) -> None:
    for step in Step:
        first = next(s for s in range(len(CELLS)) if CELLS[s * STRIDE % len(CELLS)] == (kind, step))
        runs = (_under_its_first_fault(first + n * len(CELLS)) for n in range(ROUNDS))
        assert any(run.placed[0].felt for run in runs), step


def _under_its_first_fault(seed: int) -> ChaosRun:
    scene = drawn_scene(seed)
    return play(scene, draw_faults(seed, scene.job)[:1])


def test_the_same_seed_gives_the_same_events_under_another_hash_seed() -> None:
    def told(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rollart", "chaos", "--seed", "15"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        return done.stdout

    assert told("1") == told("2")
    assert play_seed(15, drawn_scene).digest in told("3")


def fault(number: int) -> Fault:
    return Fault(
        kind=FaultKind.ENGINE_DIES,
        step=Step.UPDATE,
        nth=number,
        delay_s=0.0,
        lasts_s=0.0,
        times=1,
        pick=0,
    )


@pytest.mark.parametrize("causes", [(), (3,), (0, 7), (2, 3, 5)])
def test_faults_shrink_to_those_that_matter(causes: Sequence[int]) -> None:
    faults = [fault(number) for number in range(9)]
    tried = list[int]()

    def fails(kept: Sequence[Fault]) -> bool:
        tried.append(len(kept))
        return set(causes) <= {one.nth for one in kept}

    assert [one.nth for one in shrink(faults, fails)] == list(causes)
    assert len(tried) < 60


def test_a_failure_shrinks_to_faults_of_which_none_can_be_left_out() -> None:
    parts = parts_of("forgets-tokens")
    found = hunt((10, 15, 28, 35), scripted_scene, parts=parts)
    assert [len(failure.run.placed) for failure in found.failures] == [2, 2, 4, 4]
    assert [len(failure.needed) for failure in found.failures] == [2, 1, 1, 1]
    for failure in found.failures:
        word = failure.run.broken[0].partition(":")[0]
        scene = scripted_scene(failure.seed)
        assert word in play(scene, failure.needed, parts=parts).broken_words
        for one in failure.needed:
            rest = [other for other in failure.needed if other is not one]
            assert word not in play(scene, rest, parts=parts).broken_words


def test_a_seed_that_fails_is_printed_with_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["chaos", "--seeds", "5", "--plant", "keeps-prefixes"]) == 0
    said = capsys.readouterr().out
    assert "again: rollart chaos --seed 0 --plant keeps-prefixes" in said
    assert "memory: engine-" in said
    run, failure = play_again(0, plant="keeps-prefixes")
    assert failure is not None
    assert main(["chaos", "--seed", "0", "--plant", "keeps-prefixes"]) == 0
    again = capsys.readouterr().out
    assert run.broken[0] in again
    assert run.digest in again


def test_a_hunt_counts_each_fault_at_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--seeds", "4"]) == 0
    said = capsys.readouterr().out
    assert "never felt, such as " in said
    assert "4 runs, 0 ended early by a fault, 0 broke a promise" in said
    for step in Step:
        assert step.value in said
    for kind in FaultKind:
        assert kind.value in said


def test_an_unknown_plant_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="keeps-prefixes"):
        parts_of("roses")
    assert main(["chaos", "--plant", "roses"]) == 2
    assert set(PLANTS) <= set(capsys.readouterr().err.replace(",", " ").split())
