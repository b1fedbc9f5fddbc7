"""The hunt: seeds that pass, failures that shrink, and runs that repeat to the last event."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from rollart.chaos import drawn_scene, modelled_scene, parts_of, play_again, scripted_scene
from rollart.cli.chaos import ENOUGH, TELL_ELSEWHERE, counted, verdict
from rollart.cli.main import main
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.chaos.faults import CELLS, STRIDE, Fault, FaultKind, Step, draw_faults
from rollart.runtimes.sim.chaos.run import ChaosRun, play
from rollart.runtimes.sim.chaos.scene import draw_job
from rollart.runtimes.sim.chaos.search import Coverage, Hunt, hunt, play_seed, shrink
from rollart.runtimes.sim.chaos.worlds import draw_world
from rollart.runtimes.sim.world.fitting import refuse_impossible
from rollart.runtimes.sim.world.sections import World
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
    assert said.splitlines()[-1].endswith("are a failure if they do")
    assert " were never felt, such as " in said
    assert "faults that were felt, by the step in which they came" in said
    assert "4 runs, 0 ended early by a fault, 0 broke a promise" in said
    for step in Step:
        assert step.value in said
    for kind in FaultKind:
        assert kind.value in said


def test_many_seeds_that_leave_a_fault_out_are_a_failure() -> None:
    full = Counter(dict.fromkeys(CELLS, 1))
    some = Counter(dict.fromkeys(CELLS[1:], 1))
    for felt, seeds, code in ((full, ENOUGH, 0), (some, ENOUGH, 1), (some, ENOUGH - 1, 0)):
        found = Hunt(seeds=seeds, early=0, coverage=Coverage(felt=felt), failures=())
        assert verdict(found, plant=None) == code
    assert verdict(found, plant="keeps-prefixes") == 1


def test_progress_is_told_seldom_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(counted(range(TELL_ELSEWHERE * 2 + 1))) == list(range(TELL_ELSEWHERE * 2 + 1))
    assert capsys.readouterr().err == f"{TELL_ELSEWHERE} runs\n{TELL_ELSEWHERE * 2} runs\n"


def test_worlds_are_not_all_plain_and_fit_their_jobs() -> None:
    jobs = [draw_job(seed, pace=10.0, max_tokens=256) for seed in range(40)]
    worlds = [draw_world(seed, job) for seed, job in enumerate(jobs)]
    for job, world in zip(jobs, worlds, strict=True):
        refuse_impossible(job, world)
    kinds: dict[str, Callable[[World], bool]] = {
        "split": lambda world: any(one.prefill for one in world.engines.values()),
        "dedicated": lambda world: any(one.dedicated for one in world.rewards.values()),
        "serverless": lambda world: any(one.serverless for one in world.rewards.values()),
        "images": lambda world: any(one.image for one in world.domains.values()),
        "blocking": lambda world: world.weights.mode == "blocking",
    }
    for name, has in kinds.items():
        assert 8 < sum(map(has, worlds)) < 30, name


@pytest.mark.parametrize("seed", range(12))
def test_without_a_fault_a_run_over_any_world_ends_well(seed: int) -> None:
    run = play(modelled_scene(seed), ())
    assert run.broken == ()
    assert not run.ended_early


def test_an_unknown_plant_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="keeps-prefixes"):
        parts_of("roses")
    assert main(["chaos", "--plant", "roses"]) == 2
    assert set(PLANTS) <= set(capsys.readouterr().err.replace(",", " ").split())
