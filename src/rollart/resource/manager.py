"""ResourceManager: who has which slots, and the record of how that came about.

Invariant: a slot is held by one worker at most; a refused binding changes nothing. What was bound
stays in `record` after it was unbound.
"""

from collections.abc import Iterable, Mapping

from rollart.core.errors import ConfigError
from rollart.core.events import WorkerBound
from rollart.core.ports import Binding, PoolState
from rollart.resource.hardware import LOCAL
from rollart.resource.matching import Role, Room, Wish, choose_pool
from rollart.resource.pools import make_pools

PHASE: Mapping[Role, str] = {
    Role.TRAINING: "train",
    Role.GENERATION: "generate",
    Role.ENVIRONMENT: "step",
    Role.REWARD: "score",
}
"""What a worker of a role does in its pool."""


class ResourceManager:
    """Pools of slots by class of hardware, and the workers bound to them.

    ``ResourceManager({"H800": range(0, 8), "H20": range(8, 32)})``. The machine of the control
    process takes environments and rewards where no pool is given for them; it is no pool of slots.

    Raises:
        ConfigError: a pool without slots, or a slot in two pools.
    """

    def __init__(self, pools: Mapping[str, Iterable[int]]) -> None:
        self._pools = {pool.name: pool for pool in make_pools(pools)}
        self._holder: dict[int, str] = {}
        self._bound: dict[str, WorkerBound] = {}
        self._record: list[WorkerBound] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The pools' names, as they were declared."""
        return tuple(self._pools)

    @property
    def bindings(self) -> tuple[WorkerBound, ...]:
        """Who is bound now, in the order of binding."""
        return tuple(self._bound.values())

    @property
    def record(self) -> tuple[WorkerBound, ...]:
        """Every binding there ever was, in order."""
        return tuple(self._record)

    def free(self, pool: str) -> tuple[int, ...]:
        """The free slots of a pool, lowest first."""
        return tuple(sorted(s for s in self._pools[pool].slots if s not in self._holder))

    async def pools(self) -> tuple[PoolState, ...]:
        """The pools as they are now: the `Inventory` port."""
        return tuple(
            PoolState(name=name, hardware=name, slots=len(pool.slots), free=len(self.free(name)))
            for name, pool in self._pools.items()
        )

    def bind(
        self, worker: str, role: Role | str, *, hardware: str | None = None, slots: int = 1
    ) -> Binding:
        """Give a worker the lowest free slots of the pool that suits it best.

        Args:
            role: training, generation, environment or reward.
            hardware: the class it wants; without it, what suits its role.
            slots: how many it takes for itself; 0 shares the pool.

        Raises:
            ConfigError: it is bound already, or nothing that suits it has room.
        """
        if worker in self._bound:
            raise ConfigError(
                f"{worker}: is bound to {self._bound[worker].pool} already; unbind it first, or "
                "choose another name"
            )
        wish = Wish(worker=worker, role=_role(role), hardware=hardware, slots=slots)
        choice = choose_pool(wish, self._rooms(wish.role))
        taken = self.free(choice.pool)[:slots] if choice.pool in self._pools else ()
        bound = WorkerBound(
            worker=worker,
            role=wish.role.value,
            pool=choice.pool,
            hardware=choice.pool,
            slots=taken,
            wanted=wish.wanted,
            reason=choice.reason,
        )
        self._holder.update(dict.fromkeys(taken, worker))
        self._bound[worker] = bound
        self._record.append(bound)
        return Binding(
            worker=worker, hardware=choice.pool, parts=((choice.pool, PHASE[wish.role]),)
        )

    def unbind(self, worker: str) -> None:
        """Give a worker's slots back. Raises `ConfigError` if it has no place."""
        if worker not in self._bound:
            known = ", ".join(self._bound) or "nobody"
            raise ConfigError(f"{worker}: is not bound; bound are: {known}")
        bound = self._bound.pop(worker)
        for slot in bound.slots:
            del self._holder[slot]

    def _rooms(self, role: Role) -> list[Room]:
        rooms = [
            Room(name=name, slots=len(pool.slots), free=len(self.free(name)))
            for name, pool in self._pools.items()
        ]
        if role in (Role.ENVIRONMENT, Role.REWARD) and LOCAL not in self._pools:
            rooms.append(Room(name=LOCAL, slots=0, free=0))
        return rooms


def _role(role: Role | str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigError(f"role = {role!r}: unknown; use {', '.join(Role)}") from None
