"""Training protocols as small policies over the same parts.

Invariant: a protocol only answers questions; it never moves data or waits. `rollart` with alpha 0
is synchronous: nothing overlaps and every token is trained by the version that sampled it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolPolicy:
    """How training and rollout take turns.

    Attributes:
        name: as in the job file.
        alpha: the staleness bound.
        overlap: train_step runs beside the resumed rollout; otherwise rollout is suspended from
            the batch to the update.
        abort_in_flight: what a new version makes stale is aborted at once.
    """

    name: str
    alpha: int
    overlap: bool
    abort_in_flight: bool


def protocol_policy(name: str, alpha: int) -> ProtocolPolicy:
    """The policy of a job file's `protocol` section."""
    if name != "rollart":
        raise ValueError(f"protocol {name!r} is unknown; use 'rollart'")
    return ProtocolPolicy(name=name, alpha=alpha, overlap=alpha > 0, abort_in_flight=alpha > 0)
