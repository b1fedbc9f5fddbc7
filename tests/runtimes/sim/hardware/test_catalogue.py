"""The catalogue of hardware: what is in it, and what is refused."""

import re
import tomllib
from importlib.resources import files

import pytest

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import (
    CpuClass,
    GpuClass,
    LinkClass,
    ServerlessClass,
    cpu,
    gpu,
    known,
    link,
    serverless,
)

CATALOGUE = files("rollart.runtimes.sim").joinpath("catalogue", "hardware.toml")


def test_the_paper_s_gpus_have_the_paper_s_numbers() -> None:
    h20, h800 = gpu("H20"), gpu("H800")
    assert (h20.tflops, h20.hbm_tb_s, h20.memory_gb, h20.price) == (148.0, 4.0, 96.0, 1.0)
    assert (h800.tflops, h800.hbm_tb_s, h800.memory_gb, h800.price) == (989.5, 3.35, 80.0, 2.85)


def test_every_kind_of_hardware_can_be_had_by_name() -> None:
    assert set(known("gpu")) == {"H20", "H800", "H100", "H200", "A100", "L40S"}
    for name in known("gpu"):
        found = gpu(name)
        assert found.name == name
        assert found.tflops > 0
        assert 0 < found.prefill_efficiency <= 1
        assert 0 < found.training_mfu <= 1
    for name in known("link"):
        assert link(name).gb_s > 0
        assert link(name).latency_s >= 0
    assert cpu("cpu-node").cores > 0
    assert serverless("function").cold_start_s > 0


@pytest.mark.parametrize("find", [gpu, cpu, serverless, link])
def test_an_unknown_name_is_refused_with_the_known_ones(find) -> None:
    kind = find.__name__
    with pytest.raises(ConfigError, match=f"no {kind} is called 'B300'") as refused:
        find("B300")
    assert all(name in str(refused.value) for name in known(kind))


def test_a_transfer_that_is_alone_pays_the_latency_and_the_rate() -> None:
    assert link("rdma").seconds(12.3e9) == pytest.approx(5.1)
    assert link("ethernet-200-push").seconds(0.0) == link("ethernet-200-push").latency_s


def test_every_number_of_the_catalogue_has_its_source_beside_it() -> None:
    text = CATALOGUE.read_text(encoding="utf-8")
    bare = [line for line in text.splitlines() if re.match(r"\w+ = [^#]*$", line)]
    assert bare == []


def test_a_row_has_the_fields_of_its_record_and_no_others() -> None:
    """A misspelt optional key would go unnoticed if rows were read key by key."""
    rows = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    kinds = {
        "gpu": GpuClass,
        "cpu": CpuClass,
        "serverless": ServerlessClass,
        "link": LinkClass,
    }
    assert set(rows) == set(kinds)
    for kind, table in rows.items():
        for name, row in table.items():
            kinds[kind](name=name, **row)
