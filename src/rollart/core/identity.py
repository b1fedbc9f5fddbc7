"""Who is who: trajectories, groups, policy versions, and the seeds derived from them.

Invariant: results are joined by these identities, never by position, and every random choice
comes from a seed that is a hash of an identity, so no two requests of a run share one.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_SEPARATOR = b"\x1f"
"""Between the parts that a seed is made of."""


class Purpose(StrEnum):
    """Why a trajectory is rolled out. Evaluation stands outside the ledger and admission."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """A version of a named policy. A reference model, a critic or a second agent has its own name.

    `number` is the count of train steps behind it; 0 is the model the run began with.
    """

    policy: str
    number: int

    def next(self) -> "PolicyVersion":
        return PolicyVersion(self.policy, self.number + 1)

    def __str__(self) -> str:
        return f"{self.policy}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryId:
    """Identity of one trajectory. `attempt` counts the tries at one place of one group."""

    run: str
    domain: str
    task: str
    group: int
    member: int
    attempt: int = 0
    purpose: Purpose = Purpose.TRAIN

    def __str__(self) -> str:
        mark = "" if self.purpose is Purpose.TRAIN else f"{self.purpose}:"
        return f"{mark}{self.domain}/{self.task}/g{self.group}.{self.member}.{self.attempt}"

    @property
    def session(self) -> str:
        """Name under which an engine may keep this trajectory's KV between turns."""
        return f"{self.run}/{self}"


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed that depends on every part and on their order, equal in every process."""
    return int.from_bytes(hashlib.blake2b(_text(*parts), digest_size=8).digest(), "big") >> 1


def _text(*parts: str | int) -> bytes:
    return _SEPARATOR.join([f"{type(part).__name__}:{part}".encode() for part in parts])


def request_seed(trajectory: TrajectoryId, *, run_seed: int, turn: int) -> int:
    """Seed of one generation request. The engine adds the offset of each token within it."""
    return request_seeds(trajectory, run_seed=run_seed)(turn)


def request_seeds(trajectory: TrajectoryId, *, run_seed: int) -> Callable[[int], int]:
    """`request_seed` by turn: what all turns have in common is hashed once."""
    common = hashlib.blake2b(
        _text(
            run_seed,
            trajectory.purpose.value,
            trajectory.domain,
            trajectory.task,
            trajectory.group,
            trajectory.member,
            trajectory.attempt,
        ),
        digest_size=8,
    )

    def of(turn: int) -> int:
        whole = common.copy()
        whole.update(b"%sint:%d" % (_SEPARATOR, turn))
        return int.from_bytes(whole.digest(), "big") >> 1

    return of


def environment_seed(trajectory: TrajectoryId, *, run_seed: int) -> int:
    """Seed of an environment's reset: the same for all members of a group (one task, one world)."""
    return derive_seed(run_seed, trajectory.domain, trajectory.task, "environment")
