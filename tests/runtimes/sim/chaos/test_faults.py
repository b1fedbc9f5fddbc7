"""Plans of faults follow from their seeds and go round every fault at every step."""

from collections import Counter

from rollart.core.events import Phase
from rollart.runtimes.sim.chaos.faults import CELLS, PHASES, STEP_OF, FaultKind, Step, draw_faults
from rollart.runtimes.sim.chaos.scene import draw_job

ROUND = len(CELLS)


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    plans = [draw_faults(seed, draw_job(seed)) for seed in range(20)]
    assert plans == [draw_faults(seed, draw_job(seed)) for seed in range(20)]
    assert len(set(plans)) == 20


def test_seeds_that_follow_one_another_go_round_every_fault_at_every_step() -> None:
    firsts = Counter(
        (fault.kind, fault.step)
        for seed in range(7, 7 + ROUND)
        for fault in draw_faults(seed, draw_job(seed))[:1]
    )
    assert firsts == Counter({(kind, step): 1 for kind in FaultKind for step in Step})


def test_every_phase_belongs_to_one_of_the_six_steps() -> None:
    assert set(STEP_OF) == set(Phase)
    assert len(Step) == 6
    assert sum(PHASES.values()) == len(Phase)


def test_a_fault_comes_at_an_entry_that_a_run_of_its_job_reaches() -> None:
    for seed in range(200):
        job = draw_job(seed)
        for fault in draw_faults(seed, job):
            assert 0 <= fault.nth < job.run.steps * PHASES[fault.step]


def test_the_jobs_of_some_seeds_cover_protocols_spares_and_hardware() -> None:
    jobs = [draw_job(seed) for seed in range(70)]
    assert {job.protocol.name for job in jobs} == {
        "rollart",
        "areal",
        "one_off",
        "sync",
        "sync_plus",
    }
    assert {job.redundancy.mode for job in jobs} == {"race", "adaptive", "unbiased"}
    assert {len(job.engine_counts) for job in jobs} == {1, 2}
    assert all(len(job.domains) == 2 and sum(job.engine_counts.values()) == 2 for job in jobs)
