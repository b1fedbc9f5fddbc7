import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.errors import ConfigError
from rollart.core.ports import Inventory
from rollart.resource.manager import ResourceManager
from rollart.resource.matching import Role, shared_out
from rollart.testing.conformance import check_inventory


def paper() -> ResourceManager:
    return ResourceManager({"H800": range(8), "H20": range(8, 32)})


def where(pools: ResourceManager, worker: str) -> tuple[str, tuple[int, ...], str]:
    (bound,) = [one for one in pools.bindings if one.worker == worker]
    return bound.pool, bound.slots, bound.reason


def test_a_worker_gets_the_class_it_wants() -> None:
    pools = paper()
    binding = pools.bind("a", "generation", hardware="H20", slots=2)
    assert (binding.hardware, binding.parts) == ("H20", (("H20", "generate"),))
    assert where(pools, "a") == ("H20", (8, 9), "as wanted")


@pytest.mark.parametrize(
    ("role", "pool"), [(Role.TRAINING, "H800"), (Role.GENERATION, "H20"), (Role.REWARD, "local")]
)
def test_a_worker_that_wants_nothing_gets_what_suits_its_role(role: Role, pool: str) -> None:
    pools = paper()
    pools.bind("a", role, slots=0 if role is Role.REWARD else 1)
    assert where(pools, "a")[0] == pool
    assert where(pools, "a")[2] == f"default for {role}"


def test_environments_go_to_cpus_and_to_this_machine_where_there_are_none() -> None:
    without, with_cpus = paper(), ResourceManager({"H800": range(8), "cpu": range(8, 12)})
    without.bind("a", "environment", slots=0)
    with_cpus.bind("a", "environment", slots=0)
    assert where(with_cpus, "a") == ("cpu", (), "default for environment")
    pool, slots, reason = where(without, "a")
    assert (pool, slots) == ("local", ())
    assert reason == "no pool is cpu; local (general) can do it too"


def test_a_full_pool_is_passed_over_for_a_compatible_one_and_the_record_says_why() -> None:
    pools = ResourceManager({"H20": range(1), "H800": range(1, 3), "H100": range(3, 4)})
    pools.bind("a", "generation", hardware="H800", slots=2)
    pools.bind("b", "generation", hardware="H800")
    assert where(pools, "b")[0] == "H100", "of the same kind, before any other"
    assert where(pools, "b")[2] == "H800 is full (2 slots); H100 (compute-optimised) can do it too"
    pools.bind("c", "generation", hardware="H800")
    assert where(pools, "c")[0] == "H20"


def test_an_absent_pool_is_passed_over_as_well() -> None:
    pools = ResourceManager({"H20": range(2)})
    pools.bind("a", "training", hardware="H800")
    assert where(pools, "a")[2] == (
        "there is no pool H800; H20 (bandwidth-optimised) can do it too"
    )


def test_cpus_do_not_stand_in_for_accelerators() -> None:
    pools = ResourceManager({"cpu": range(8)})
    with pytest.raises(ConfigError, match=r"a: no place for 1 slot.*of H20; free slots: cpu"):
        pools.bind("a", "generation", hardware="H20")
    pools.bind("b", "generation", hardware="cpu")
    assert where(pools, "b")[0] == "cpu"


def test_what_fits_nowhere_is_refused_and_changes_nothing() -> None:
    pools = ResourceManager({"H20": range(2)})
    pools.bind("a", "generation")
    with pytest.raises(ConfigError, match="b: no place for 2 slot"):
        pools.bind("b", "generation", slots=2)
    assert [one.worker for one in pools.record] == ["a"]
    assert pools.free("H20") == (1,)


def test_slots_given_back_are_free_again_and_the_record_remembers() -> None:
    pools = ResourceManager({"H20": range(1)})
    pools.bind("a", "generation")
    pools.unbind("a")
    pools.bind("b", "generation")
    assert [one.worker for one in pools.bindings] == ["b"]
    assert [(one.worker, one.slots) for one in pools.record] == [("a", (0,)), ("b", (0,))]
    with pytest.raises(ConfigError, match="a: is not bound; bound are: b"):
        pools.unbind("a")


def test_a_worker_is_bound_once_and_to_a_role_that_there_is() -> None:
    pools = paper()
    pools.bind("a", "generation")
    with pytest.raises(ConfigError, match="a: is bound to H20 already"):
        pools.bind("a", "training")
    with pytest.raises(ConfigError, match="role = 'cook': unknown; use training, generation"):
        pools.bind("b", "cook")


def test_a_resource_manager_is_an_inventory() -> None:
    async def make() -> Inventory:
        pools = paper()
        pools.bind("a", "training", slots=3)
        return pools

    asyncio.run(check_inventory(make))


@given(st.lists(st.tuples(st.sampled_from(["bind", "unbind"]), st.integers(0, 9)), max_size=60))
def test_no_slot_ever_has_two_holders(moves: list[tuple[str, int]]) -> None:
    pools = ResourceManager({"H800": range(3), "H20": range(3, 7)})
    for what, number in moves:
        try:
            if what == "bind":
                pools.bind(f"w{number}", "generation", slots=1 + number % 3)
            else:
                pools.unbind(f"w{number}")
        except ConfigError:
            continue
        held = [slot for one in pools.bindings for slot in one.slots]
        free = [*pools.free("H800"), *pools.free("H20")]
        assert sorted(held + free) == list(range(7))


@given(
    st.integers(0, 40),
    st.dictionaries(st.text(min_size=1, max_size=2), st.floats(0, 10), min_size=1, max_size=6),
)
def test_sharing_out_gives_everything_away_and_at_least_one_each(
    more: int, weights: dict[str, float]
) -> None:
    counts = shared_out(len(weights) + more, weights)
    assert sum(counts.values()) == len(weights) + more
    assert min(counts.values()) >= 1


def test_sharing_out_follows_the_weights() -> None:
    assert shared_out(8, {"a": 3.0, "b": 1.0}) == {"a": 6, "b": 2}
