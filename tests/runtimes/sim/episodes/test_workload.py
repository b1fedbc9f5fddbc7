"""Workloads: what is drawn follows from names alone."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.identity import Purpose, TrajectoryId
from rollart.runtimes.sim.episodes.workload import DrawnDomain, RunWorkload
from rollart.runtimes.sim.world.file import presets
from rollart.runtimes.sim.world.sections import DomainSection, RewardSection

NAMES = [f"lake/task-{n // 4}/g{n // 4}.{n % 4}.0" for n in range(4000)]


def drawn(spelled: Mapping[str, Any], *, reward: Any = None, seed: int = 0) -> DrawnDomain:
    return DrawnDomain(
        DomainSection.model_validate(spelled), RewardSection.model_validate(reward or {}), seed=seed
    )


def everything(domain: DrawnDomain, name: str) -> tuple[object, ...]:
    return (
        domain.turns(name),
        domain.first("task-0"),
        domain.observed(name, 1),
        domain.observed(name, 2),
        domain.reset(name),
        domain.pull(name),
        domain.step(name, 0),
        domain.step(name, 1),
        domain.succeeds(name),
        domain.scoring(name),
        domain.score(name, "g0"),
    )


def test_the_order_of_asking_changes_nothing_and_the_seed_everything() -> None:
    spec = presets()["SWE-bench"]
    one, other = drawn(spec), drawn(spec)
    forwards = [everything(one, name) for name in NAMES[:50]]
    backwards = [everything(other, name) for name in reversed(NAMES[:50])]
    assert forwards == backwards[::-1]
    assert forwards != [everything(drawn(spec, seed=1), name) for name in NAMES[:50]]


def test_members_of_a_group_differ_in_turns_but_not_in_their_task() -> None:
    domain = drawn({**presets()["FrozenLake"], "first_tokens": {"uniform": [1, 10_000]}})
    assert len({domain.turns(name) for name in NAMES[:4]}) > 1
    assert domain.first("task-7") != domain.first("task-8")


def test_swe_bench_has_the_turns_and_the_waits_that_are_known_of_it() -> None:
    domain = drawn(presets()["SWE-bench"])
    assert {domain.turns(name) for name in NAMES} == set(range(30, 51))
    resets = sorted(domain.reset(name).seconds for name in NAMES)
    assert resets[2000] == pytest.approx(12, rel=0.05)
    answers = [domain.answered("", number) for number in range(4000)]
    assert fmean(answers) == pytest.approx(150 * 1.278, rel=0.05)
    assert fmean(domain.step(name, 3).seconds for name in NAMES) == pytest.approx(0.4, rel=0.1)


def test_mishaps_come_as_often_as_they_should_and_take_their_time() -> None:
    spec = {
        **presets()["GEM-game"],
        "reset_failure": {"chance": 0.1, "seconds": 335},
        "reset_hang": {"chance": 0.2, "seconds": {"uniform": [60, 120]}},
        "step_failure": {"chance": 0.3, "seconds": 7},
        "image": {"hit": 0.6, "pull_s": 20},
    }
    domain = drawn(spec, reward={"failure": 0.05, "equal": 0.5})
    resets = [domain.reset(name) for name in NAMES]
    failed = [span for span in resets if span.fails]
    assert len(failed) == pytest.approx(400, rel=0.2)
    assert {span.seconds for span in failed} == {335}
    hung = [span for span in resets if not span.fails and span.seconds > 0]
    assert len(hung) == pytest.approx(720, rel=0.2)
    assert all(60 <= span.seconds <= 120 for span in hung)
    steps = [domain.step(name, 0) for name in NAMES]
    assert sum(span.fails for span in steps) == pytest.approx(1200, rel=0.2)
    assert {span.seconds for span in steps if span.fails} == {7}
    pulls = [domain.pull(name) for name in NAMES]
    assert pulls.count(20) == pytest.approx(1600, rel=0.1)
    assert pulls.count(0) + pulls.count(20) == len(pulls)
    assert sum(domain.scoring(name).fails for name in NAMES) == pytest.approx(200, rel=0.3)
    groups = [
        {domain.score(name, f"g{group}") for name in NAMES[4 * group : 4 * group + 4]}
        for group in range(1000)
    ]
    assert sum(len(scores) == 1 for scores in groups) == pytest.approx(500, rel=0.2)


def test_a_session_leads_to_its_domain_also_in_evaluation() -> None:
    lake, shop = drawn(presets()["FrozenLake"]), drawn(presets()["GEM-math"])
    run = RunWorkload({"lake": lake, "shop": shop})
    for tag, domain in (("lake", lake), ("shop", shop)):
        for purpose in Purpose:
            who = TrajectoryId(run="sim", domain=tag, task="t", group=3, member=1, purpose=purpose)
            assert run.answer_tokens(who.session, 99) == domain.answered(str(who), 99)
            assert run.cached_share(who.session) == domain.prefix_hit
    with pytest.raises(ConfigError, match=r"domains\.moon: has no workload; known: lake, shop"):
        run.domain("moon")
