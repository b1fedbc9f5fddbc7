"""Which pool suits a worker: a pure decision.

Invariant: the same wish and the same free slots give the same pool. A named class comes first, then
pools of its kind, then any other that can do the work; among equals the pool declared first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollart.core.errors import ConfigError
from rollart.resource.hardware import LOCAL, Kind, kind_of


class Role(StrEnum):
    """What a worker is for."""

    TRAINING = "training"
    GENERATION = "generation"
    ENVIRONMENT = "environment"
    REWARD = "reward"


DEFAULT_KIND: Mapping[Role, Kind] = {
    Role.TRAINING: Kind.COMPUTE,
    Role.GENERATION: Kind.BANDWIDTH,
    Role.ENVIRONMENT: Kind.CPU,
}
"""What a role wants that names nothing (RollArt paper); a reward wants the local machine."""

_ACCELERATED = frozenset({Kind.COMPUTE, Kind.BANDWIDTH, Kind.GENERAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A worker that wants a place: on a class of hardware, or on what suits its role.

    `slots` are taken for it alone; 0 means that it shares the pool.
    """

    worker: str
    role: Role
    hardware: str | None = None
    slots: int = 1

    @property
    def wanted(self) -> str:
        """The wish in a word."""
        if self.hardware is not None:
            return self.hardware
        return DEFAULT_KIND.get(self.role, LOCAL)

    @property
    def said(self) -> str:
        """The wish with where it comes from."""
        return self.wanted if self.hardware else f"{self.wanted} (default for {self.role})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A pool as it is now."""

    name: str
    slots: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pool for a worker, and why this one."""

    pool: str
    reason: str


def choose_pool(wish: Wish, rooms: Sequence[Room]) -> Choice:
    """The best pool with room.

    Raises:
        ConfigError: no pool that suits the worker has room.
    """
    ranked = [(rank, room) for room in rooms if (rank := suitability(wish, room.name)) is not None]
    ranked.sort(key=lambda pair: pair[0])
    for rank, room in ranked:
        if room.free >= wish.slots:
            before = [other for other_rank, other in ranked if other_rank < rank]
            return Choice(pool=room.name, reason=_reason(wish, room, rank, before))
    state = ", ".join(f"{room.name} {room.free} of {room.slots}" for room in rooms)
    raise ConfigError(
        f"{wish.worker}: no place for {wish.slots} slot(s) of {wish.said}; free slots: {state}; "
        "give more slots in ResourceManager({...}), or lower rollout.engines"
    )


def suitability(wish: Wish, pool: str) -> int | None:
    """How well a pool suits, 0 best; None if it cannot do the work at all."""
    if wish.wanted == pool:
        return 0
    kind = kind_of(pool)
    wanted = kind_of(wish.hardware) if wish.hardware else DEFAULT_KIND.get(wish.role)
    if kind == wanted:
        return 1 if wish.hardware else 0
    if wish.role in (Role.ENVIRONMENT, Role.REWARD):
        return 2 if pool == LOCAL else None
    return 2 if kind in _ACCELERATED else None


def shared_out(number: int, weights: Mapping[str, float]) -> dict[str, int]:
    """`number` in whole parts, at least one each, the rest by weight to whoever has too little."""
    counts = dict.fromkeys(weights, 1)
    total = sum(weights.values()) or 1.0
    for _ in range(number - len(counts)):
        poorest = max(counts, key=lambda name: weights[name] / total * number - counts[name])
        counts[poorest] += 1
    return counts


def _reason(wish: Wish, room: Room, rank: int, before: Sequence[Room]) -> str:
    if rank == 0:
        return "as wanted" if wish.hardware else f"default for {wish.role}"
    missing = [f"{other.name} is full ({other.slots} slots)" for other in before]
    if wish.hardware and all(other.name != wish.hardware for other in before):
        missing.insert(0, f"there is no pool {wish.hardware}")
    if not missing:
        missing = [f"no pool is {wish.wanted}"]
    return f"{'; '.join(missing)}; {room.name} ({kind_of(room.name)}) can do it too"
