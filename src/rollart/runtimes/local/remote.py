"""How a child's failures read in the control process."""

from rollart.core.errors import (
    ConfigError,
    EngineRefused,
    RollartError,
    WeightsCorrupt,
    WeightsMissing,
)
from rollart.process.errors import ProcessError, RemoteError
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


def in_a_line(told: ProcessError | ExitReport) -> str:
    """What became of a child, with the last line it wrote, which tells most about a crash."""
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    if len(lines) < 2:
        return "".join(lines)
    return f"{lines[0]}; its last words: {lines[-1]}"
