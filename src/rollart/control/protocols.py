"""Training protocols as small policies over the same parts.

Invariant: a protocol only answers questions; it never moves data or waits. How many batches may be
outstanding is the credits' capacity; where it is one, nothing is in flight at an update.

    sync       lockstep turns, rewards after the rollout; train and update while rollout stands
    sync_plus  each trajectory at its own pace, rewards at once; otherwise as sync
    one_off    trains on a batch while the next is rolled out, whole, under the weights of before
    areal      interrupts generation for an update; the bound is checked at the start only
    rollart    the bound holds at every turn and in the buffer; what breaks it is aborted at once
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
        keeps_bound: what a new version makes stale is aborted, in flight and in the buffer.
        lockstep: a barrier before each generation, each step and the rewards.
    """

    name: str
    alpha: int
    overlap: bool
    keeps_bound: bool = False
    lockstep: bool = False


def protocol_policy(name: str, alpha: int) -> ProtocolPolicy:
    """The policy of a job file's `protocol` section, with the bound in force.

    `rollart` with alpha = 0 is synchronous.
    """
    match name:
        case "rollart":
            overlap = alpha > 0
            return ProtocolPolicy(name=name, alpha=alpha, overlap=overlap, keeps_bound=overlap)
        case "areal":
            return ProtocolPolicy(name=name, alpha=alpha, overlap=True)
        case "one_off":
            return ProtocolPolicy(name=name, alpha=1, overlap=True)
        case "sync_plus":
            return ProtocolPolicy(name=name, alpha=0, overlap=False)
        case "sync":
            return ProtocolPolicy(name=name, alpha=0, overlap=False, lockstep=True)
        case _:
            raise ValueError(
                f"protocol {name!r} is unknown; use rollart, sync, sync_plus, one_off or areal"
            )
