"""How fast an emulated hardware class is, by phase of generation."""

from dataclasses import dataclass

from rollart.runtimes.local.engine_child import EngineChildConfig

ENTRY = "benchmarks.parts.slowed_engine:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that each prompt token computed, and each token sampled, take beside computing."""

    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedConfig:
    """The engine as the launcher makes it, and its pace."""

    engine: EngineChildConfig
    pace: Pace


PREFILL_S, DECODE_S, SLOW = 300e-6, 600e-6, 5.0

PACES = {
    "H800": Pace(prefill_s=PREFILL_S, decode_s=SLOW * DECODE_S),
    "H20": Pace(prefill_s=SLOW * PREFILL_S, decode_s=DECODE_S),
}
"""Each class is `SLOW` times slower than the other in one phase. That is an emulation, of nobody's
measured hardware: it has the shape of a compute-optimised and a bandwidth-optimised class. The
sleeps are several times the model's real computing, so that they, not the processor, decide."""
