"""Prices of GPU classes: the catalogue's, and those of a run's own world."""

from pathlib import Path

import pytest
import tomli_w

from rollart.core.errors import ConfigError
from rollart.prices import prices_of
from rollart.testing.worlds import small_table

NUMBERS = {
    "tflops": 100,
    "hbm_tb_s": 1,
    "memory_gb": 80,
    "prefill_efficiency": 0.5,
    "training_mfu": 0.4,
}


def test_classes_have_the_prices_of_the_catalogue_where_it_has_some(tmp_path: Path) -> None:
    prices = prices_of(tmp_path)
    assert prices["H20"] == 1.0
    assert prices["H800"] == 2.85
    assert "H100" not in prices


def test_a_runs_world_prices_its_own_classes(tmp_path: Path) -> None:
    own = {"B200": {**NUMBERS, "price": 6.5}, "H800": NUMBERS}
    (tmp_path / "world.toml").write_text(tomli_w.dumps(small_table(gpu=own)))
    prices = prices_of(tmp_path)
    assert prices["B200"] == 6.5
    assert prices["H20"] == 1.0
    assert "H800" not in prices


def test_a_world_that_is_none_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "world.toml").write_text("schema = 2")
    with pytest.raises(ConfigError, match=r"world\.toml: "):
        prices_of(tmp_path)
