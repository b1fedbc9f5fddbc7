"""Cluster: the workers of one role, called as if they were one.

Owns its workers and their bindings while it is entered. Invariants: a call goes where its method's
declarations say; a dead worker gets no call, gives its slots back, and is named when a call needs
it. Who waits on whom: callers wait for workers' answers, under a deadline; one watcher a worker
waits for its end.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from rollart.core.errors import ConfigError, WorkerFailed, first_error
from rollart.core.ports import Binding, WorkerHandle, Workers
from rollart.data.classes import find_class
from rollart.data.decorators import NOTHING, Declared, declared_by
from rollart.data.dispatch import Candidate, choose_worker
from rollart.data.roles import ActorGen, ActorTrain, Environment, Reward, Worker
from rollart.resource.manager import ResourceManager
from rollart.resource.matching import Role, shared_out

ROLES: Mapping[type[Worker], Role] = {
    ActorTrain: Role.TRAINING,
    ActorGen: Role.GENERATION,
    Environment: Role.ENVIRONMENT,
    Reward: Role.REWARD,
}

CALL_S = 600.0
"""Default seconds that a call may take."""


class Cluster:
    """``async with Cluster(resource_manager, MyWorker, workers=..., size=4) as cluster``.

    Public methods of the class are methods of the cluster, as coroutines: ``register`` ones go to
    every worker and return the list of results in the workers' order; others go to one, and those
    with ``hw_mapping`` to one of the class of hardware that their ``tag_name`` wants.

    Args:
        resource_manager: where the workers get their slots.
        worker_class: a class that child processes can import.
        workers: what spawns them, such as `rollart.runtimes.local.workers.LocalWorkers`.
        size: how many; or how many by class of hardware. A number is shared out among the classes
            that ``hw_mapping`` names, at least one each.
        role: for a class that is none of the four roles: training, generation, environment, reward.
        slots: that each worker takes.
        options: keywords for the class's constructor.
        call_s: seconds after which a worker that did not answer is killed.

    Raises:
        ConfigError: the class, or what it declares, cannot be used.
    """

    def __init__(
        self,
        resource_manager: ResourceManager,
        worker_class: type[Worker],
        *,
        workers: Workers,
        size: int | Mapping[str, int] = 1,
        role: Role | str | None = None,
        slots: int = 1,
        options: Mapping[str, object] | None = None,
        call_s: float = CALL_S,
    ) -> None:
        self._pools = resource_manager
        self._class = worker_class
        self._path = find_class(worker_class)
        self._spawner = workers
        self._role = _role_of(worker_class, role)
        self._declared = declared_by(worker_class)
        self._methods = _public_methods(worker_class)
        _refuse_misfits(worker_class, self._declared, self._methods)
        self._wishes = _wishes(worker_class, self._declared, size)
        self._slots = slots
        self._options = dict(options or {})
        self._call_s = call_s
        self._handles: dict[str, WorkerHandle] = {}
        self._dead: dict[str, str] = {}
        self._calls: dict[str, int] = {}
        self._exits = AsyncExitStack()

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the living workers."""
        return tuple(name for name in self._handles if name not in self._dead)

    async def __aenter__(self) -> Self:
        """Bind and spawn the workers. Raises `ConfigError` or `WorkerFailed`; then none stays."""
        name = self._class.__name__
        async with AsyncExitStack() as exits:
            bindings: list[Binding] = []
            for number, hardware in enumerate(self._wishes):
                worker = f"{name}-{number}"
                bindings.append(
                    self._pools.bind(worker, self._role, hardware=hardware, slots=self._slots)
                )
                exits.callback(self._unbind, worker)
            exits.push_async_callback(self._close)
            try:
                async with asyncio.TaskGroup() as group:
                    for binding in bindings:
                        group.create_task(self._spawn(binding))
            except BaseExceptionGroup as errors:
                raise first_error(errors) from None
            self._handles = {b.worker: self._handles[b.worker] for b in bindings}
            watchers = await exits.enter_async_context(asyncio.TaskGroup())
            exits.push_async_callback(self._close)  # before the group waits for the watchers
            for handle in self._handles.values():
                watchers.create_task(self._watch(handle))
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the workers and give their slots back."""
        await self._exits.aclose()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"{type(self).__name__} of {self._class!r} has no {name!r}")
        return partial(self._dispatch, name)

    async def _dispatch(self, method: str, *args: Any, **kwargs: Any) -> Any:
        declared = self._declared.get(method, NOTHING)
        if declared.mode is not None:
            return await self._broadcast(method, args, kwargs)
        wanted = None
        if declared.affinity is not None:
            wanted = declared.affinity.wanted(kwargs.get("tag_name", "default"))
        name = choose_worker(
            (
                Candidate(worker=one, hardware=self._handles[one].hardware, calls=self._calls[one])
                for one in self.workers
            ),
            wanted,
        )
        if name is None:
            dead = "; ".join(f"{one}: {why}" for one, why in self._dead.items())
            raise WorkerFailed(", ".join(self._dead) or "none", f"nobody is left ({dead})")
        return await self._call(name, method, args, kwargs)

    async def _broadcast(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Every worker's result. Raises `WorkerFailed` naming all that failed, once all ended."""
        outcomes = await asyncio.gather(
            *(self._call(name, method, args, kwargs) for name in self._handles),
            return_exceptions=True,
        )
        failed = [one for one in outcomes if isinstance(one, BaseException)]
        for one in failed:
            if not isinstance(one, WorkerFailed):
                raise one
        lost = [one for one in failed if isinstance(one, WorkerFailed)]
        if len(lost) == 1:
            raise lost[0]
        if lost:
            names = ", ".join(one.worker for one in lost)
            raise WorkerFailed(names, "; ".join(f"{one.worker}: {one.reason}" for one in lost))
        return outcomes

    async def _call(
        self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in self._dead:
            raise WorkerFailed(name, self._dead[name])
        self._calls[name] += 1
        try:
            return await self._handles[name].call(method, args, kwargs, seconds=self._call_s)
        finally:
            self._calls[name] -= 1

    async def _spawn(self, binding: Binding) -> None:
        self._calls[binding.worker] = 0
        self._handles[binding.worker] = await self._spawner.worker(
            binding, self._path, self._options
        )

    async def _watch(self, handle: WorkerHandle) -> None:
        self._dead[handle.id] = await handle.wait_dead()
        self._unbind(handle.id)

    def _unbind(self, worker: str) -> None:
        if any(bound.worker == worker for bound in self._pools.bindings):
            self._pools.unbind(worker)

    async def _close(self) -> None:
        async with asyncio.TaskGroup() as group:
            for handle in self._handles.values():
                group.create_task(handle.close())


def _role_of(kind: type[Worker], given: Role | str | None) -> Role:
    if given is not None:
        return Role(given)
    for base, role in ROLES.items():
        if issubclass(kind, base):
            return role
    raise ConfigError(
        f"class {kind.__name__}: is none of the four roles; say role= one of {', '.join(Role)}"
    )


def _public_methods(kind: type[Worker]) -> frozenset[str]:
    return frozenset(
        name
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "attach"
    )


def _refuse_misfits(
    kind: type[Worker], declared: Mapping[str, Declared], methods: frozenset[str]
) -> None:
    for name in methods:
        if hasattr(Cluster, name):
            raise ConfigError(
                f"{kind.__name__}.{name}: a cluster has a {name!r} of its own; rename the method"
            )
    for name, one in declared.items():
        if one.mode is not None and one.affinity is not None:
            raise ConfigError(
                f"{kind.__name__}.{name}: register sends a call to every worker and hw_mapping to "
                "one class; leave one out"
            )
        if one.serverless:
            raise ConfigError(
                f"{kind.__name__}.{name}: register_serverless works for a Reward given to "
                "rollart.run(reward=...), not in a Cluster; call the function itself"
            )
        takes = inspect.signature(getattr(kind, name)).parameters
        if one.affinity is not None and "tag_name" not in takes:
            raise ConfigError(
                f'{kind.__name__}.{name}: hw_mapping needs a parameter tag_name="default"'
            )


def _wishes(
    kind: type[Worker], declared: Mapping[str, Declared], size: int | Mapping[str, int]
) -> tuple[str | None, ...]:
    """The class of hardware that each worker wants."""
    if not isinstance(size, int):
        return tuple(name for name, count in size.items() for _ in range(count))
    affinities = [one.affinity for one in declared.values() if one.affinity is not None]
    named = [name for one in affinities for name in (*one.by_domain.values(), one.default) if name]
    classes = list(dict.fromkeys(named))
    if size < max(len(classes), 1):
        raise ConfigError(
            f"size = {size}: {kind.__name__} needs a worker for each of "
            f"{', '.join(classes) or 'its calls'}; use size = {max(len(classes), 1)} or more"
        )
    if not classes:
        return (None,) * size
    counts = shared_out(size, dict.fromkeys(classes, 1.0))
    return tuple(name for name in classes for _ in range(counts[name]))
