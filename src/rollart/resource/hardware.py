"""Classes of hardware, and which kind of work each suits.

Invariant: the kind of an accelerator follows from its figures: how many floating-point operations
it can do for each byte that its memory delivers. Prefill and training need many, decoding few.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

LOCAL = "local"
"""Pool, and class, of the machine on which the control process runs."""

CPU = "cpu"

BALANCE = 100.0
"""bf16 operations a byte of memory traffic from which on an accelerator is compute-optimised."""


class Kind(StrEnum):
    """What a class of hardware is best for."""

    COMPUTE = "compute-optimised"
    BANDWIDTH = "bandwidth-optimised"
    CPU = "cpu"
    GENERAL = "general"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU of a class.

    Units: bf16 TFLOP/s without sparsity, TB/s, GB; `price` is relative to an H20, None where it is
    not known. Figures as in the RollArt paper (arXiv 2512.22560), from the vendor's data sheets.
    """

    name: str
    bf16_tflops: float
    memory_tb_s: float
    memory_gb: int
    price: float | None = None

    @property
    def kind(self) -> Kind:
        """By operations a byte."""
        wide = self.bf16_tflops / self.memory_tb_s < BALANCE
        return Kind.BANDWIDTH if wide else Kind.COMPUTE


ACCELERATORS: Mapping[str, Accelerator] = {
    one.name: one
    for one in (
        Accelerator(name="H20", bf16_tflops=148, memory_tb_s=4.0, memory_gb=96, price=1.0),
        Accelerator(name="H800", bf16_tflops=989.5, memory_tb_s=3.35, memory_gb=80, price=2.85),
        Accelerator(name="H100", bf16_tflops=989, memory_tb_s=3.35, memory_gb=80),
        Accelerator(name="H200", bf16_tflops=989, memory_tb_s=4.8, memory_gb=141),
    )
}


def kind_of(hardware: str) -> Kind:
    """The kind of a class by its name; one that is not known here is taken as fit for anything."""
    if hardware.lower() == CPU:
        return Kind.CPU
    known = ACCELERATORS.get(hardware)
    return Kind.GENERAL if known is None else known.kind
