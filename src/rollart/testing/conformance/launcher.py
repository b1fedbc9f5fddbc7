"""Conformance of a `Launcher`, of an `Inventory` and of an `EventSink`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rollart.core.errors import WorkerFailed
from rollart.core.events import Event
from rollart.core.ports import Binding, Engine, EventSink, Inventory, Launcher, WorkerHandle
from rollart.core.types import Task
from rollart.testing.conformance.contract import Contract
from rollart.testing.samples import every_event
from rollart.testing.workers import PARROT

MakeLauncher = Callable[[], Awaitable[Launcher]]
SLOWEST_EMIT_S = 0.01
"""Mean seconds an `emit` may take before it counts as blocking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherTrial:
    """What the suite may assume about the launcher it is given.

    Attributes:
        engines, trainer: bindings to launch on; engines differ in their workers.
        domain: one that it knows.
        kill: ends an engine as a crash would; without it, that a binding can be used again is
            checked after `close`.
        heldout: how many held-out tasks to ask for.
        training: how many training tasks to compare them with.
    """

    engines: tuple[Binding, ...]
    trainer: Binding
    domain: str
    kill: Callable[[Engine], None] | None = None
    heldout: int = 8
    training: int = 64
    patience_s: float = 60.0


async def check_launcher(make: MakeLauncher, trial: LauncherTrial) -> None:
    """Every clause of the `Launcher` port; raises `ConformanceError` at the first broken one."""
    contract = Contract("Launcher", trial.patience_s)
    launcher = await contract.soon(make(), "a launcher can be made")
    launched = [asyncio.ensure_future(launcher.engine(binding)) for binding in trial.engines]
    engines = [await contract.soon(one, "an engine is launched") for one in launched]
    for binding, engine in zip(trial.engines, engines, strict=True):
        _is_bound(contract, binding, engine)
    await _replaces(contract, trial, launcher, engines)
    trainer = await contract.soon(launcher.trainer(trial.trainer), "a trainer is launched")
    contract.require(bool(trainer.version.policy), "the trainer names its policy", f"{trainer}")
    for part in (launcher.environments, launcher.reward):
        await contract.soon(part(trial.domain), "a domain has environments and a reward")
    await contract.soon(launcher.renderer(), "there is a renderer")
    worker = await _runs_workers(contract, launcher)
    await _holds_tasks_out(contract, trial, launcher)
    ends = [asyncio.ensure_future(part.wait_dead()) for part in (*engines, trainer, worker)]
    for _ in range(2):
        await contract.soon(launcher.close(), "close returns, also twice")
    for end in ends:
        await contract.soon(end, "what it launched ends when it is closed")


def _is_bound(contract: Contract, binding: Binding, engine: Engine) -> None:
    found = (engine.id, engine.hardware)
    wanted = (binding.worker, binding.hardware)
    contract.require(found == wanted, "an engine is what its binding says", f"{found}, {wanted}")


async def _replaces(
    contract: Contract, trial: LauncherTrial, launcher: Launcher, engines: list[Engine]
) -> None:
    """A dead engine's binding gets a new one, and the others do not notice."""
    if trial.kill is not None:
        trial.kill(engines[0])
        await contract.soon(engines[0].wait_dead(), "a killed engine is known to be dead")
    await contract.soon(engines[0].close(), "an engine can be closed")
    clause = "a binding whose engine has gone gets a new one"
    fresh = await contract.soon(launcher.engine(trial.engines[0]), clause)
    contract.require(fresh is not engines[0], clause, "it got the old one")
    _is_bound(contract, trial.engines[0], fresh)
    engines[0] = fresh
    for engine in engines:
        await contract.soon(engine.pause(), "the other engines go on")


async def _runs_workers(contract: Contract, launcher: Launcher) -> WorkerHandle:
    """A class is made with its options, called, and reported by name when it fails."""
    first = Binding(worker="parrot-0", hardware="green")
    options = {"prefix": "so "}
    worker = await contract.soon(launcher.worker(first, PARROT, options), "a worker is launched")
    found = (worker.id, worker.hardware)
    contract.require(
        found == (first.worker, first.hardware), "a worker is what its binding says", f"{found}"
    )
    said = await contract.soon(
        worker.call("say", ("what",), {}, seconds=contract.patience_s), "a worker answers"
    )
    contract.require(said == "so what", "a worker answers with its method's result", f"{said!r}")
    where = await contract.soon(
        worker.call("where", (), {}, seconds=contract.patience_s), "async methods answer, too"
    )
    contract.require(
        where == [first.worker, first.hardware], "an instance knows its place", f"{where!r}"
    )
    clause = "a call that raises is WorkerFailed with the worker's name, and the worker goes on"
    await _fails(contract, worker, "fail", contract.patience_s, clause)
    await contract.soon(worker.call("say", ("x",), {}, seconds=contract.patience_s), clause)
    hung = Binding(worker="parrot-1", hardware="green")
    other = await contract.soon(launcher.worker(hung, PARROT, {}), "a worker is launched")
    clause = "a call that hangs is WorkerFailed by its deadline, and the worker is dead"
    await _fails(contract, other, "hang", 0.2, clause)
    await contract.soon(other.wait_dead(), clause)
    return worker


async def _fails(
    contract: Contract, worker: WorkerHandle, method: str, seconds: float, clause: str
) -> None:
    failed = await contract.raises(
        worker.call(method, (), {}, seconds=seconds), (WorkerFailed,), clause
    )
    named = isinstance(failed, WorkerFailed) and failed.worker == worker.id
    contract.require(named, clause, f"it named another: {failed}")


async def _holds_tasks_out(contract: Contract, trial: LauncherTrial, launcher: Launcher) -> None:
    heldout = await contract.soon(
        launcher.heldout(trial.domain, trial.heldout), "there are held-out tasks"
    )
    keys = [task.key for task in heldout]
    few = len(keys) <= trial.heldout and len(set(keys)) == len(keys)
    contract.require(few, "held-out tasks are distinct, at most as many as asked", f"{keys}")
    source = await contract.soon(launcher.tasks(trial.domain), "a domain has tasks")
    trained: list[Task] = []
    while len(trained) < trial.training:
        task = await contract.soon(source.next(), "a task source answers")
        if task is None:
            break
        trained.append(task)
    contract.require(bool(trained), "a domain has tasks", "it had none")
    met = {task.key for task in trained} & set(keys)
    contract.require(not met, "training never meets a held-out task", f"{sorted(met)}")
    measured = await contract.soon(
        launcher.baselines(trial.domain, heldout), "baselines are measured on held-out tasks"
    )
    shares = all(name and 0 <= success <= 1 for name, success in measured)
    contract.require(shares, "a baseline has a name and a share of success", f"{measured}")
    domains = {task.domain for task in (*heldout, *trained)}
    contract.require(domains == {trial.domain}, "tasks are of their domain", f"{domains}")


async def check_inventory(
    make: Callable[[], Awaitable[Inventory]], *, patience_s: float = 30.0
) -> None:
    """Every clause of the `Inventory` port; raises `ConformanceError` at the first broken one."""
    contract = Contract("Inventory", patience_s)
    inventory = await contract.soon(make(), "an inventory can be made")
    for _ in range(2):
        pools = await contract.soon(inventory.pools(), "pools returns")
        names = [pool.name for pool in pools]
        contract.require(len(set(names)) == len(names), "pools have names of their own", f"{names}")
        for pool in pools:
            named = bool(pool.name) and bool(pool.hardware)
            contract.require(named, "a pool says its name and hardware", f"{pool}")
            fits = 0 <= pool.free <= pool.slots
            contract.require(fits, "free slots are among the slots", f"{pool}")


async def check_event_sink(
    make: Callable[[], EventSink],
    *,
    kept: Callable[[EventSink], Sequence[Event]] | None = None,
    times: int = 50,
) -> None:
    """Every clause of the `EventSink` port; raises `ConformanceError` at the first broken one.

    Args:
        make: makes a sink; called on the running loop.
        kept: the events that a sink has kept, in order; without it that is not checked.
        times: how often every kind of event is emitted.
    """
    contract = Contract("EventSink")
    sink = make()
    events = every_event() * times
    began = asyncio.get_running_loop().time()
    for event in events:
        try:
            sink.emit(event)
        except Exception as error:
            contract.require(False, "emit never raises", f"{error!r} for {event}")
    mean_s = (asyncio.get_running_loop().time() - began) / len(events)
    contract.require(mean_s < SLOWEST_EMIT_S, "emit does not block", f"{mean_s:.3f} s an event")
    if kept is not None:
        found = list(kept(sink))
        contract.require(
            found == events, "events are kept in order", f"{len(found)} of {len(events)}"
        )
