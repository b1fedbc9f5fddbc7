"""The engines: which live, which version each has acknowledged, which may be routed to.

Invariant: an engine is routable only while it lives and has acknowledged the target version; the
committed version is the newest that a routable engine has acknowledged. `pause` and `resume` bind
every live engine, and one that fails to take a version is never left paused: it is resumed,
unrouted, and catches up in the background or is replaced.
Who waits: weight_sync, for acknowledgements (deadline `weights_s`); watchers, for an engine's end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rollart.control.deadline import now, within
from rollart.core.errors import EngineLost, WeightSyncFailed
from rollart.core.events import Committed, EngineAcknowledged, EngineDown, EngineUp, Warned
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, Engine, EventSink, Launcher

RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0
CATCH_UP_TRIES = 5


class EngineState(Enum):
    CATCHING_UP = "catching up"
    LIVE = "live"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class EngineSlot:
    """One binding and the engine that serves it now.

    `inflight` has the ids of its requests, in order of dispatch; LLMProxy keeps it.
    """

    binding: Binding
    engine: Engine
    state: EngineState = EngineState.CATCHING_UP
    version: int = -1
    inflight: dict[str, None] = field(default_factory=dict[str, None])
    progress_at: float = 0.0
    restarts: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""

    @property
    def hardware(self) -> str:
        return self.binding.hardware

    @property
    def load(self) -> int:
        return len(self.inflight)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Seconds: `engine_s` without progress is a hang; `weights_s` bounds one weight update."""

    engine_s: float
    weights_s: float
    restarts: int
    policy: str = "agent"


class Fleet:
    """Owns the engines' life cycle and versions.

    `on_fatal` is called when no engine is left and none can be restarted.
    """

    def __init__(
        self,
        launcher: Launcher,
        bindings: Sequence[Binding],
        settings: FleetSettings,
        events: EventSink,
    ) -> None:
        self._launcher = launcher
        self._bindings = tuple(bindings)
        self._settings = settings
        self._events = events
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._group: asyncio.TaskGroup | None = None
        self._slots: dict[str, EngineSlot] = {}
        self._routable: dict[str, EngineSlot] | None = None
        self._on_lost: Callable[[EngineSlot], int] = lambda slot: len(slot.inflight)
        self._on_routable: Callable[[], None] = lambda: None
        self._closing = False
        self.suspended = True
        self.target = PolicyVersion(settings.policy, 0)
        self.committed = -1
        self.on_fatal: Callable[[Exception], None] = lambda error: None

    def connect(
        self, *, on_lost: Callable[[EngineSlot], int], on_routable: Callable[[], None]
    ) -> None:
        """Say whose requests these engines serve.

        Args:
            on_lost: takes the requests of a slot back and returns how many; called when it is
                lost or may not be routed to any more.
            on_routable: sends what waits; called when engines have become routable.
        """
        self._on_lost = on_lost
        self._on_routable = on_routable

    # -- what others may see ---------------------------------------------------------------

    def slot(self, engine: str) -> EngineSlot | None:
        return self._slots.get(engine)

    def routable(self) -> Mapping[str, EngineSlot]:
        """Engines that may be given requests, by id, in order of attachment."""
        if self._routable is None:
            self._routable = {
                name: slot for name, slot in self._slots.items() if self._is_routable(slot)
            }
        return self._routable

    def _reroute(self) -> None:
        """After every change of a slot's state or version, of the target or of the slots.

        Who is routable is seen when somebody asks: in an update each engine changes once, and
        nobody is routed to meanwhile.
        """
        self._routable = None

    def _is_routable(self, slot: EngineSlot) -> bool:
        return slot.state is EngineState.LIVE and slot.version == self.target.number

    def _set_state(self, slot: EngineSlot, state: EngineState) -> None:
        slot.state = state
        self._reroute()

    def _live(self) -> list[EngineSlot]:
        return [slot for slot in self._slots.values() if slot.state is EngineState.LIVE]

    # -- life cycle ------------------------------------------------------------------------

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Launch all engines, paused and without a version; `update` makes them routable."""
        self._group = group
        async with asyncio.TaskGroup() as launches:
            launched = [
                launches.create_task(self._launcher.engine(binding)) for binding in self._bindings
            ]
        for binding, launch in zip(self._bindings, launched, strict=True):
            slot = EngineSlot(binding=binding, engine=launch.result(), state=EngineState.LIVE)
            self._attach(slot)
        await self.pause()

    def _attach(self, slot: EngineSlot) -> None:
        self._slots[slot.binding.worker] = slot
        self._reroute()
        slot.progress_at = now()
        self._events.emit(EngineUp(engine=slot.binding.worker, hardware=slot.binding.hardware))
        self._spawn(self._watch_death(slot))
        self._spawn(self._watch_progress(slot))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        assert self._group is not None, "start() first"
        task = self._group.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _watch_death(self, slot: EngineSlot) -> None:
        reason = await slot.engine.wait_dead()
        self.lose(slot, reason)

    async def _watch_progress(self, slot: EngineSlot) -> None:
        """An engine that holds requests and yields nothing for `engine_s` is as good as dead."""
        patience = self._settings.engine_s
        while slot.state is not EngineState.LOST:
            busy = bool(slot.inflight) and not self.suspended
            until = (slot.progress_at if busy else now()) + patience
            if now() >= until:
                self.lose(slot, f"no token for {patience:.1f} s with {len(slot.inflight)} requests")
                return
            await _wait_until(slot.lost, until)

    def lose(self, slot: EngineSlot, reason: str) -> None:
        """Declare an engine gone: its requests move, and its binding gets a new engine."""
        if slot.state is EngineState.LOST or self._closing:
            return
        self._set_state(slot, EngineState.LOST)
        slot.reason = reason
        slot.lost.set()
        moved = self._on_lost(slot)
        self._events.emit(
            EngineDown(engine=slot.binding.worker, reason=reason, moved_requests=moved)
        )
        self._spawn(self._replace(slot))

    async def _replace(self, slot: EngineSlot) -> None:
        """Restart on the same binding; give the binding up after too many restarts."""
        await self._close(slot)
        restarts = slot.restarts
        while restarts < self._settings.restarts:
            restarts += 1
            try:
                engine = await self._launcher.engine(slot.binding)
            except Exception as error:
                self._events.emit(
                    Warned(message=f"engine {slot.binding.worker} did not restart: {error}")
                )
                await asyncio.sleep(backoff(restarts))
                continue
            fresh = EngineSlot(binding=slot.binding, engine=engine, restarts=restarts)
            self._attach(fresh)
            await self._catch_up(fresh)
            return
        del self._slots[slot.binding.worker]
        self._reroute()
        if not self._slots:
            self.on_fatal(
                EngineLost(
                    slot.binding.worker,
                    f"{slot.reason}; no engine is left after {restarts} restarts of each",
                )
            )

    async def _close(self, slot: EngineSlot) -> None:
        try:
            await within(self._settings.engine_s, slot.engine.close(), TimeoutError)
        except Exception as error:
            self._events.emit(
                Warned(message=f"engine {slot.binding.worker} did not close: {error!r}")
            )

    async def close(self) -> None:
        """End the watchers, then the engines."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        for slot in self._slots.values():
            await self._close(slot)

    # -- the steps of a weight update --------------------------------------------------------

    async def pause(self) -> None:
        """Returns when every live engine has stopped between two of its steps."""
        self.suspended = True
        await self._all(self._live(), lambda slot: self._ask(slot, slot.engine.pause))

    async def resume(self) -> None:
        """Lets every live engine run on, whatever version it holds; then requests may be sent."""
        resumed: set[EngineSlot] = set()
        while waiting := [slot for slot in self._live() if slot not in resumed]:
            for slot in waiting:
                slot.progress_at = now()
            await self._all(waiting, lambda slot: self._ask(slot, slot.engine.resume))
            resumed.update(waiting)
        self.suspended = False
        self._on_routable()

    async def update(self, version: PolicyVersion) -> None:
        """Give `version` to every live engine; done when at least one has acknowledged.

        Those that did not are unrouted and catch up by themselves.

        Raises:
            WeightSyncFailed: none acknowledged within `weights_s`; the message has their words.
        """
        self.target = version
        self._reroute()
        until = now() + self._settings.weights_s
        tries = 0
        errors: dict[str, str] = {}
        while not self._acknowledged():
            if tries:
                await asyncio.sleep(min(backoff(tries), max(0.0, until - now())))
            tries += 1
            if now() >= until:
                said = "; ".join(f"{name}: {text}" for name, text in errors.items())
                raise WeightSyncFailed(
                    f"no engine acknowledged {version} within {self._settings.weights_s:g} s "
                    f"({said or 'no engine is live'}); see the engine's log, or raise "
                    "timeouts.weights_s"
                )
            await self._all(
                self._live(), lambda slot: self._load(slot, version, until - now(), errors)
            )
        self._commit(version)
        for slot in self._live():
            if slot.version != version.number:
                self._demote(slot, errors.get(slot.binding.worker, "did not acknowledge"))

    def _acknowledged(self) -> bool:
        return any(self._is_routable(slot) for slot in self._live())

    def _commit(self, version: PolicyVersion) -> None:
        self.committed = version.number
        self._events.emit(Committed(version=version.number))

    async def _load(
        self, slot: EngineSlot, version: PolicyVersion, seconds: float, errors: dict[str, str]
    ) -> None:
        """One engine takes one version, or its words are kept in `errors`."""
        if slot.version == version.number:
            return
        began = now()
        name = slot.binding.worker
        try:
            await within(
                max(seconds, 0.0),
                slot.engine.update(version),
                lambda: EngineLost(name, f"no acknowledgement within {seconds:.1f} s"),
            )
        except EngineLost as error:
            errors[name] = error.reason
            self.lose(slot, error.reason)
        except Exception as error:
            errors[name] = str(error) or repr(error)
        else:
            slot.version = version.number
            self._reroute()
            self._events.emit(
                EngineAcknowledged(engine=name, version=version.number, seconds=now() - began)
            )

    def _demote(self, slot: EngineSlot, why: str) -> None:
        """Unroute an engine that holds an old version; its requests move, and it catches up."""
        self._set_state(slot, EngineState.CATCHING_UP)
        dropped = tuple(slot.inflight)
        moved = self._on_lost(slot)
        name = slot.binding.worker
        self._events.emit(
            Warned(message=f"engine {name} is not routable, {moved} requests moved: {why}")
        )
        self._spawn(self._catch_up(slot, dropped))

    async def _catch_up(self, slot: EngineSlot, dropped: Sequence[str] = ()) -> None:
        """Bring one engine to the target version, then let it be routed to."""
        if dropped:
            await self.abort(slot, dropped)
        tries = 0
        while tries < CATCH_UP_TRIES and slot.state is EngineState.CATCHING_UP:
            errors: dict[str, str] = {}
            await self._ask(slot, slot.engine.pause)
            await self._load(slot, self.target, self._settings.weights_s, errors)
            if self.suspended and self._is_current(slot):
                self._set_state(slot, EngineState.LIVE)
                return
            await self._ask(slot, slot.engine.resume)
            if not self.suspended and self._is_current(slot):
                self._set_state(slot, EngineState.LIVE)
                slot.progress_at = now()
                self._on_routable()
                return
            if errors:
                tries += 1
                await asyncio.sleep(backoff(tries))
        self.lose(slot, f"could not take {self.target} in {CATCH_UP_TRIES} tries")

    def _is_current(self, slot: EngineSlot) -> bool:
        return slot.state is EngineState.CATCHING_UP and slot.version == self.target.number

    async def rebuild_kv(self) -> None:
        """Ask every live engine to rebuild the KV of what it has in flight."""
        await self._all(self._live(), lambda slot: self._ask(slot, slot.engine.rebuild_kv))

    # -- asking ------------------------------------------------------------------------------

    async def _ask(self, slot: EngineSlot, command: Callable[[], Awaitable[object]]) -> None:
        """A command that a healthy engine answers in `engine_s`; otherwise the engine is lost."""
        name = slot.binding.worker
        try:
            await within(
                self._settings.engine_s,
                command(),
                lambda: EngineLost(name, f"no answer within {self._settings.engine_s:g} s"),
            )
        except EngineLost as error:
            self.lose(slot, error.reason)
        except Exception as error:
            self.lose(slot, repr(error))

    async def abort(self, slot: EngineSlot, request_ids: Sequence[str]) -> None:
        """Make an engine drop requests; returns when it has let go, or is lost.

        A cancellation while waiting is put off until then (at most `engine_s`): whoever is
        cancelled may count on the engine's having let go.
        """
        asking = asyncio.create_task(
            self._ask(slot, lambda: slot.engine.abort(request_ids)), name="abort"
        )
        cancelled = False
        while not asking.done():
            try:
                await asyncio.wait([asking])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def _all(
        self,
        slots: Sequence[EngineSlot],
        work: Callable[[EngineSlot], Coroutine[None, None, None]],
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for slot in slots:
                group.create_task(work(slot))


def backoff(tries: int) -> float:
    """Seconds before the next try: doubling, bounded."""
    return min(RETRY_FIRST_S * 2 ** (tries - 1), RETRY_MOST_S)


async def _wait_until(event: asyncio.Event, time: float) -> None:
    """Returns at loop time `time` (s) or when the event is set, whichever is first.

    A time, not what is left until it: that, added to now, may be rounded to now again.
    """
    try:
        async with asyncio.timeout_at(time):
            await event.wait()
    except TimeoutError:
        return
