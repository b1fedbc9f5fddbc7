from typing import Any

import pytest

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.jobfile import parse_job
from rollart.core.ports import Affinity
from rollart.resource.manager import ResourceManager
from rollart.resource.placement import Wishes, logical_pools, place, release

LISTING = Affinity(by_domain={"FrozenLake": "H800"}, default="H20")


def job(*tags: str, **rollout: Any) -> JobConfig:
    domains = [{"tag": tag, "environment": "lake:Lake"} for tag in tags or ("FrozenLake",)]
    return parse_job(
        {
            "schema": 1,
            "model": {"path": "models/tiny"},
            "rollout": rollout,
            "train": {"correction": "behaviour"},
            "domains": domains,
        }
    )


def paper() -> ResourceManager:
    return ResourceManager({"H800": range(8), "H20": range(8, 32)})


def test_a_count_of_engines_is_spread_over_the_classes_that_the_affinity_names() -> None:
    pools = paper()
    placement = place(
        job("FrozenLake", "Pond", "Math", engines=6), pools, Wishes(generation=LISTING)
    )
    assert [one.hardware for one in placement.engines] == ["H800"] * 2 + ["H20"] * 4
    assert placement.affinity == LISTING
    assert placement.trainer.hardware == "H800"


def test_a_table_of_engines_is_taken_as_it_is() -> None:
    placement = place(job(engines={"H20": 2, "H800": 1}), paper())
    assert [one.hardware for one in placement.engines] == ["H20", "H20", "H800"]


def test_without_an_affinity_generation_goes_where_it_goes_by_default() -> None:
    placement = place(job(engines=2), paper())
    assert [one.hardware for one in placement.engines] == ["H20", "H20"]
    assert placement.affinity == Affinity(by_domain={})


def test_fewer_engines_than_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engines = 1: .*use rollout\.engines = 2"):
        place(job(engines=1), paper(), Wishes(generation=LISTING))


def test_every_worker_of_a_run_is_in_the_record_with_a_reason() -> None:
    pools = paper()
    place(job("FrozenLake", "Pond", engines=2), pools, Wishes(generation=LISTING))
    assert [(one.worker, one.role, one.pool) for one in pools.bindings] == [
        ("trainer", "training", "H800"),
        ("engine-0", "generation", "H800"),
        ("engine-1", "generation", "H20"),
        ("FrozenLake-environments", "environment", "local"),
        ("FrozenLake-rewards", "reward", "local"),
        ("Pond-environments", "environment", "local"),
        ("Pond-rewards", "reward", "local"),
    ]
    assert all(one.reason for one in pools.bindings)


def test_a_run_that_does_not_fit_leaves_nothing_bound() -> None:
    pools = ResourceManager({"H20": range(3)})
    pools.bind("somebody", "generation")
    with pytest.raises(ConfigError, match="engine-1: no place"):
        place(job(engines=2), pools)
    assert [one.worker for one in pools.bindings] == ["somebody"]


def test_what_was_placed_can_be_released() -> None:
    pools, made = paper(), job(engines=3)
    release(pools, place(made, pools), made)
    assert pools.bindings == ()
    place(made, pools)


@pytest.mark.parametrize(
    ("engines", "wishes", "expected"),
    [
        (2, Wishes(), {"trainer": "local", "engine-0": "local", "engine-1": "local"}),
        ({"fast": 1, "slow": 1}, Wishes(), {"trainer": "fast", "engine-1": "slow"}),
        ({"H20": 1, "H800": 1}, Wishes(), {"trainer": "H800", "engine-0": "H20"}),
        ({"cpu": 1}, Wishes(), {"trainer": "local", "engine-0": "cpu"}),
        (2, Wishes(generation=LISTING, training="H20"), {"trainer": "H20", "engine-0": "H800"}),
    ],
)
def test_this_machine_has_a_slot_for_each_engine_and_the_trainer(
    engines: Any, wishes: Wishes, expected: dict[str, str]
) -> None:
    made = job(engines=engines)
    pools = logical_pools(made, wishes)
    place(made, pools, wishes)
    found = {one.worker: one.pool for one in pools.bindings}
    assert found | expected == found
    assert not any(pools.free(name) for name in pools.names)


def test_job_and_class_may_both_name_an_affinity_only_if_it_is_the_same() -> None:
    table = {"FrozenLake": "H800", "default": "H20"}
    engines = {"H800": 1, "H20": 1}
    place(job(engines=engines, affinity=table), paper(), Wishes(generation=LISTING))
    other = job(engines=engines, affinity={"default": "H20"})
    with pytest.raises(ConfigError, match="leave one of them out, or make them equal"):
        place(other, paper(), Wishes(generation=LISTING))


def test_an_affinity_for_what_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hw_affinity\['FrozenLake'\]: no domain.*use Pond"):
        place(job("Pond", engines=2), paper(), Wishes(generation=LISTING))
    with pytest.raises(ConfigError, match=r"hw_affinity\['default'\] = 'H20': no engine.*H800"):
        place(job(engines={"H800": 2}), paper(), Wishes(generation=LISTING))


def test_environments_go_where_their_class_wants() -> None:
    pools = ResourceManager({"H20": range(2), "cpu": range(2, 4), "arm": range(4, 6)})
    place(job(), pools, Wishes(environments={"FrozenLake": "arm"}))
    assert {one.pool for one in pools.bindings if one.role == "environment"} == {"arm"}
