"""An engine, and what stands between it and control: lags, silence, death, results gone astray.

Invariant: without a fault nothing is changed or put off. Whatever control may not take any more
(of a request that ended, was aborted, was sent on, or whose engine was given up) is known here
without asking control, which is accused if it takes it.
Who waits: control, for an answer (at most as long as the fault lasts; a death ends every wait).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from rollart.core.errors import EngineLost
from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink, Engine
from rollart.core.tokens import NO_VERSIONS, TokenBlock, VersionRuns
from rollart.core.types import GenerateRequest, TokenDelta
from rollart.runtimes.sim.chaos.driver import FaultDriver, Placed
from rollart.runtimes.sim.chaos.evidence import turn_of
from rollart.runtimes.sim.chaos.faults import FaultKind
from rollart.runtimes.sim.chaos.weights import WeightTrouble

T = TypeVar("T")


@dataclass(slots=True, eq=False, kw_only=True)
class Sent:
    """A request as it was sent to an engine, and what control took of it.

    Attributes:
        over: why nothing of it may be taken any more; empty while it goes on.
        held_until: loop time (s) before which none of its results comes through.
        straggles: its results come whatever has become of the engine.
    """

    at: float
    version: int
    request: GenerateRequest
    sink: DeltaSink
    sampled: VersionRuns = NO_VERSIONS
    ids: list[TokenBlock] = field(default_factory=list[TokenBlock])
    over: str = ""
    aborted: bool = False
    lost: bool = False
    held_until: float = 0.0
    straggles: bool = False
    queued: int = 0


class FaultyEngine:
    """Stands around any engine.

    Attributes:
        calls: what it was asked, in order.
        dispatches: the requests that it was sent, in order.
        died_at: loop time (s) of a death that a fault brought.
        given_up: control has declared it lost.
        left: requests and sessions that it still held when it was closed, unless it was lost.

    Args:
        turns: the latest dispatch of each turn, over all engines of the run.
    """

    def __init__(
        self, inner: Engine, driver: FaultDriver, weights: WeightTrouble, turns: dict[str, Sent]
    ) -> None:
        self._inner = inner
        self._driver = driver
        self._weights = weights
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[str] = self._loop.create_future()
        self._slow: Placed | None = None
        self._silent: Placed | None = None
        self._out_at = 0.0
        self._sent: dict[str, Sent] = {}
        self._running: dict[str, None] = {}
        self._sessions: dict[str, None] = {}
        self.version = -1
        self.calls: list[str] = []
        self.dispatches: list[Sent] = []
        self.died_at: float | None = None
        self.given_up = False
        self.left: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def hardware(self) -> str:
        return self._inner.hardware

    @property
    def alive(self) -> bool:
        return not self._dead.done()

    # -- what befalls it -----------------------------------------------------------------------

    def die(self, reason: str) -> None:
        """It ends in the middle of everything."""
        if not self._dead.done():
            self.died_at = self._loop.time()
            self._dead.set_result(reason)

    def slow_down(self, placed: Placed) -> None:
        """What goes in and comes out takes a while longer, as long as the fault lasts."""
        self._slow = placed

    def fall_silent(self, placed: Placed) -> None:
        """Nothing goes in or comes out while the fault lasts; then everything at once."""
        self._silent = placed

    def give_up(self) -> None:
        """Control has declared it lost: nothing of it may be taken any more."""
        self.given_up = True
        for sent in self.dispatches:
            sent.over = sent.over or "was on an engine that had been given up"

    # -- the way in and out --------------------------------------------------------------------

    def _passes_at(self) -> float:
        """Loop time (s) at which what is said now has come through."""
        now = at = self._loop.time()
        if (slow := self._lasting(self._slow)) is not None:
            slow.felt += 1
            at = now + 0.1 + slow.fault.pick % 30 / 10
        if (silent := self._lasting(self._silent)) is not None:
            silent.felt += 1
            at = max(at, (silent.at or 0.0) + silent.fault.lasts_s)
        return at

    def _lasting(self, placed: Placed | None) -> Placed | None:
        if placed is None or placed.at is None:
            return None
        return placed if self._loop.time() < placed.at + placed.fault.lasts_s else None

    def _comes_out_at(self) -> float:
        """The same for what comes out, where nothing overtakes."""
        self._out_at = max(self._out_at, self._passes_at())
        return self._out_at

    async def _until(self, at: float) -> None:
        if at > self._loop.time():
            await asyncio.wait([self._dead], timeout=at - self._loop.time())
        self._check()

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self._check()
        self.calls.append(what)
        await self._until(self._passes_at())
        result = await call()
        await self._until(self._comes_out_at())
        return result

    def _check(self) -> None:
        if self._dead.done():
            raise EngineLost(self.id, self._dead.result())

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        if self._dead.done():
            return
        self.calls.append(f"add {request.id}")
        sent = Sent(at=self._loop.time(), version=self.version, request=request, sink=sink)
        turn = turn_of(request.id)
        if turn in self._turns:
            self._turns[turn].over = self._turns[turn].over or "had been sent on"
        self._turns[turn] = sent
        self.dispatches.append(sent)
        self._sent[request.id] = sent
        self._running[request.id] = None
        self._sessions[request.session] = None
        self._inner.add(request, partial(self._said, sent))

    def _said(self, sent: Sent, delta: TokenDelta) -> None:
        """The engine says something; when it comes through is another matter."""
        ends = delta.finish is not None or delta.refused is not None
        if ends:
            self._running.pop(sent.request.id, None)
        now = self._loop.time()
        sent.lost = sent.lost or self._driver.take(FaultKind.DELTAS_LOST) is not None
        if sent.lost:
            return
        if not sent.held_until and (late := self._driver.take(FaultKind.DELTAS_LATE)) is not None:
            sent.held_until, sent.straggles = now + late.fault.lasts_s, True
        sent.straggles = sent.straggles or self._lasting(self._silent) is not None
        if self._dead.done() and not sent.straggles:
            return
        at = max(self._comes_out_at(), sent.held_until)
        if at > now or sent.queued:
            sent.queued += 1
            self._loop.call_at(at, self._arrive, sent, delta)
        else:
            self._deliver(sent, delta)
        if ends and (twice := self._driver.take(FaultKind.DELTAS_TWICE)) is not None:
            self._loop.call_at(at + twice.fault.pick % 3, self._deliver, sent, delta)

    def _arrive(self, sent: Sent, delta: TokenDelta) -> None:
        sent.queued -= 1
        if sent.straggles or not (sent.aborted or self._dead.done()):
            self._deliver(sent, delta)

    def _deliver(self, sent: Sent, delta: TokenDelta) -> None:
        before = self._driver.late_results
        sent.sink(delta)
        if self._driver.late_results > before:
            return
        if sent.over:
            self._driver.accusations.append(
                f"late: control took {len(delta.ids)} tokens of {sent.request.id}, "
                f"which {sent.over}"
            )
            return
        sent.sampled = sent.sampled.append(delta.version, len(delta.ids))
        sent.ids.append(delta.ids)
        if delta.finish is not None or delta.refused is not None:
            sent.over = "had ended"

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._ask(f"abort {' '.join(request_ids)}", lambda: self._inner.abort(request_ids))
        for name in request_ids:
            self._running.pop(name, None)
            if (sent := self._sent.get(name)) is not None:
                sent.aborted, sent.over = True, sent.over or "had been aborted"

    def release(self, session: str) -> None:
        self._sessions.pop(session, None)
        self._inner.release(session)

    # -- commands ------------------------------------------------------------------------------

    async def pause(self) -> None:
        await self._ask("pause", self._inner.pause)

    async def resume(self) -> None:
        await self._ask("resume", self._inner.resume)

    async def update(self, version: PolicyVersion) -> None:
        await self._ask(f"update {version.number}", lambda: self._load(version))
        self.version = version.number

    async def _load(self, version: PolicyVersion) -> None:
        await self._weights.pull(self.id, version)
        await self._inner.update(version)

    async def rebuild_kv(self) -> int:
        return await self._ask("rebuild_kv", self._inner.rebuild_kv)

    async def wait_dead(self) -> str:
        inner = asyncio.ensure_future(self._inner.wait_dead())
        try:
            await asyncio.wait([inner, self._dead], return_when=asyncio.FIRST_COMPLETED)
        finally:
            inner.cancel()
        if not self._dead.done():
            self._dead.set_result(inner.result())
        return self._dead.result()

    async def close(self) -> None:
        if not self._dead.done():
            self.left = () if self.given_up else (*self._running, *self._sessions)
            self._dead.set_result("closed")
        await self._inner.close()
