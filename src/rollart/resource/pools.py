"""Pools: named sets of slots, one class of hardware each.

Invariant: a slot belongs to one pool only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollart.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Slots (devices, by number) of one class of hardware, which is the pool's name."""

    name: str
    slots: tuple[int, ...]


def make_pools(given: Mapping[str, Iterable[int]]) -> tuple[Pool, ...]:
    """Pools from slots by name.

    Raises:
        ConfigError: no pool, an empty one, a slot that is no number from 0 on, or one given twice.
    """
    if not given:
        raise ConfigError('pools = {}: needs at least one; use {"H800": range(0, 8)}')
    owner: dict[int, str] = {}
    pools: list[Pool] = []
    for name, slots in given.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"pools: the name {name!r} is no text; use a class such as 'H800'")
        pool = Pool(name=name, slots=_slots(name, slots))
        for slot in pool.slots:
            if slot in owner:
                other = "itself" if owner[slot] == name else f"pool {owner[slot]!r}"
                raise ConfigError(
                    f"pools[{name!r}]: slot {slot} belongs to {other} already; give each slot to "
                    "one pool, once"
                )
            owner[slot] = name
        pools.append(pool)
    return tuple(pools)


def _slots(name: str, given: Iterable[int]) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"pools[{name!r}] = {given!r}: must be numbers of slots; use range(0, 8)")
    slots = tuple(given)
    if not slots:
        raise ConfigError(f"pools[{name!r}]: has no slot; leave it out or use range(0, 8)")
    for slot in slots:
        if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
            raise ConfigError(
                f"pools[{name!r}]: {slot!r} is no slot; use whole numbers from 0 on, such as "
                "range(0, 8)"
            )
    return slots
