"""How a child's failures read in the control process."""

from rollart.core.errors import (
    ConfigError,
    EngineRefused,
    RollartError,
    WeightsCorrupt,
    WeightsMissing,
)
from rollart.process.errors import RemoteError
from rollart.process.report import ExitReport

_KNOWN = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (ConfigError, EngineRefused, WeightsCorrupt, WeightsMissing)
}


def as_core_error(
    error: RemoteError, worker: str, otherwise: type[RollartError] = RollartError
) -> RollartError:
    """The error that a child raised: of its own kind if that is one of core's, or `otherwise`.

    Both are made from a message alone.
    """
    known = _KNOWN.get(error.type_name)
    if known is not None:
        return known(f"{worker}: {error.message}")
    return otherwise(f"{worker}: {error.type_name}: {error.message}")


def in_a_line(report: ExitReport) -> str:
    """How a child ended, with the last line it wrote, which tells most about a crash."""
    words = [line for line in report.output.splitlines() if line.strip()]
    last = f"; its last words: {words[-1].strip()}" if words else ""
    return f"{report.cause.value}, {report.reason}{last}"
