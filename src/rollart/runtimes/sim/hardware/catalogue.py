"""The catalogue of hardware: GPUs, CPU nodes, serverless functions and links.

Invariant: every number is one of `catalogue/hardware.toml`, where its source stands beside it. A
name that is not there is refused with those that are.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rollart.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClass:
    """A kind of GPU.

    Attributes:
        tflops: dense bf16 peak, 1e12/s.
        hbm_tb_s: memory bandwidth, 1e12 B/s.
        memory_gb: 1e9 B.
        price: of an hour, where an H20's is 1; None where no source gives one.
        prefill_efficiency: share of the peak that a prefill reaches.
        training_mfu: share of the peak over all operations done in a train step, recomputation
            included.
    """

    name: str
    tflops: float
    hbm_tb_s: float
    memory_gb: float
    price: float | None = None
    prefill_efficiency: float
    training_mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuClass:
    """A kind of CPU node; memory in 1e9 B, price of an hour where an H20's is 1."""

    name: str
    cores: int
    memory_gb: float
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerlessClass:
    """A platform that runs functions.

    Attributes:
        cold_start_s: seconds until a new instance works.
        keep_s: seconds that an idle instance stays.
        burst: instances that may start at once.
        growth_per_min: instances that may start a minute after the burst.
        limit: instances there can be.
        memory_gb: of an instance, 1e9 B.
        price: of an hour of an instance at work, where an H20's is 1.
    """

    name: str
    cold_start_s: float
    keep_s: float
    burst: int
    growth_per_min: float
    limit: int
    memory_gb: float
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClass:
    """A kind of link: seconds once a transfer, and effective 1e9 B/s."""

    name: str
    latency_s: float
    gb_s: float

    def seconds(self, nbytes: float) -> float:
        """How long a transfer takes that has the link to itself."""
        return self.latency_s + nbytes / (self.gb_s * 1e9)


def gpu(name: str) -> GpuClass:
    """A GPU by name. Raises `ConfigError` that names the known ones."""
    return GpuClass(name=name, **_row("gpu", name))


def cpu(name: str) -> CpuClass:
    """A CPU node by name. Raises `ConfigError` that names the known ones."""
    return CpuClass(name=name, **_row("cpu", name))


def serverless(name: str) -> ServerlessClass:
    """A serverless platform by name. Raises `ConfigError` that names the known ones."""
    return ServerlessClass(name=name, **_row("serverless", name))


def link(name: str) -> LinkClass:
    """A link by name. Raises `ConfigError` that names the known ones."""
    return LinkClass(name=name, **_row("link", name))


def known(kind: str) -> tuple[str, ...]:
    """Names in the catalogue of a kind: gpu, cpu, serverless or link."""
    return tuple(_catalogue()[kind])


def _row(kind: str, name: str) -> Mapping[str, Any]:
    rows = _catalogue()[kind]
    if name not in rows:
        raise ConfigError(f"no {kind} is called {name!r}; use one of {', '.join(rows)}")
    return rows[name]


@cache
def _catalogue() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    source = files("rollart.runtimes.sim").joinpath("catalogue", "hardware.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))
