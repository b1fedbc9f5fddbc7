from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.resource.hardware import ACCELERATORS, Kind, kind_of
from rollart.resource.manager import ResourceManager


def test_the_kind_of_an_accelerator_follows_from_its_operations_a_byte() -> None:
    kinds = {name: one.kind for name, one in ACCELERATORS.items()}
    assert kinds == {
        "H20": Kind.BANDWIDTH,
        "H800": Kind.COMPUTE,
        "H100": Kind.COMPUTE,
        "H200": Kind.COMPUTE,
    }


def test_a_class_that_nobody_knows_is_fit_for_anything() -> None:
    assert [kind_of(name) for name in ("local", "toaster", "cpu")] == [
        Kind.GENERAL,
        Kind.GENERAL,
        Kind.CPU,
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"needs at least one; use \{'?\"H800"),
        ({"H800": ()}, "pools\\['H800'\\]: has no slot"),
        ({"H800": range(4), "H20": range(3, 6)}, "slot 3 belongs to pool 'H800' already"),
        ({"H800": (1, 1)}, "slot 1 belongs to itself already"),
        ({"H800": (-1,)}, "-1 is no slot"),
        ({"H800": (True,)}, "True is no slot"),
        ({"H800": 8}, "must be numbers of slots; use range"),
        ({"H800": "0-7"}, "must be numbers of slots; use range"),
        ({3: range(2)}, "the name 3 is no text"),
    ],
)
def test_pools_that_cannot_be_are_refused_with_a_remedy(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ResourceManager(given)
