"""A scripted engine: one token a delta, each after a drawn time, with real command semantics.

Invariant: it behaves as the Engine port says (the conformance suite runs on it), including what
is easily wrong: commands act between tokens, an abort is acknowledged after the last delta, KV
written under an older version is rebuilt or, if told to be careless, counted as `stale_kv_reads`.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollart.core.errors import EngineLost, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink
from rollart.core.tokens import NO_VERSIONS, VersionRuns
from rollart.core.types import GenerateRequest, RequestCost, StopReason, TokenDelta
from rollart.testing.script import Script


@dataclass(slots=True, eq=False, kw_only=True)
class Dispatch:
    """A request as it came: at which loop time (s), and under which version of the engine.

    `sampled` are the versions that sampled its tokens since.
    """

    at: float
    version: int
    request: GenerateRequest
    sampled: VersionRuns = NO_VERSIONS


@dataclass(slots=True, eq=False)
class _Running:
    request: GenerateRequest
    sink: DeltaSink
    dispatch: Dispatch
    wanted: int
    task: "asyncio.Task[None] | None" = None
    sampled: int = 0
    kv_version: int = -1


@dataclass(slots=True, kw_only=True)
class EngineLog:
    """What was asked of the engine, in order, and what a careless one did wrong.

    `left_at_close` counts the requests that it still held when it was closed.
    """

    calls: list[str] = field(default_factory=list[str])
    aborted: list[str] = field(default_factory=list[str])
    dispatches: list[Dispatch] = field(default_factory=list[Dispatch])
    left_at_close: int = 0
    stale_kv_reads: int = 0
    tokens: int = 0


class ScriptedEngine:
    """Draws its timing and its tokens from a `Script`.

    A token follows from the request's seed and its place; its log-prob from the version of the KV
    that it attends to.

    Args:
        rebuilds_kv: False plants the bug of going on with KV of an older version.
        missing: versions that no weight store has, so that an update to them fails.
        keeps_log: False for runs so long that calls and dispatches would fill the memory.
    """

    def __init__(
        self,
        name: str = "engine-0",
        script: Script | None = None,
        *,
        hardware: str = "virtual",
        incarnation: int = 0,
        rebuilds_kv: bool = True,
        missing: Collection[int] = (),
        keeps_log: bool = True,
    ) -> None:
        self._name = name
        self._script = script or Script()
        self._hardware = hardware
        self._rebuilds_kv = rebuilds_kv
        self._missing = missing
        self._keeps_log = keeps_log
        self._running: dict[str, _Running] = {}
        self._prefixes: dict[str, int] = {}
        self._paused = False
        self._go = asyncio.Event()
        self._go.set()
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._updates = 0
        deaths = sorted(n for engine, n in self._script.engine_deaths if engine == name)
        self._dies_at = deaths[incarnation] if incarnation < len(deaths) else None
        self.version = -1
        self.log = EngineLog()

    @property
    def id(self) -> str:
        return self._name

    @property
    def hardware(self) -> str:
        return self._hardware

    @property
    def live_requests(self) -> int:
        return len(self._running)

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        if self._dead.done():
            return
        self._note(f"add {request.id}")
        if request.max_tokens < 1 or request.prompt_tokens < 1:
            self._refuse(request, sink)
            return
        rng = self._script.draw.rng("tokens", request.seed)
        low, high = self._script.tokens_per_turn
        wanted = rng.randint(low, high) - request.offset
        now = asyncio.get_running_loop().time()
        dispatch = Dispatch(at=now, version=self.version, request=request)
        if self._keeps_log:
            self.log.dispatches.append(dispatch)
        running = _Running(request=request, sink=sink, dispatch=dispatch, wanted=max(1, wanted))
        self._running[request.id] = running
        running.task = asyncio.get_running_loop().create_task(self._generate(running))

    def _note(self, call: str) -> None:
        if self._keeps_log:
            self.log.calls.append(call)

    def _refuse(self, request: GenerateRequest, sink: DeltaSink) -> None:
        delta = TokenDelta(
            request_id=request.id,
            ids=np.zeros(0, np.int32),
            logprobs=np.zeros(0, np.float32),
            version=self.version,
            refused=f"prompt of {request.prompt_tokens} tokens, max_tokens {request.max_tokens}",
        )
        asyncio.get_running_loop().call_soon(sink, delta)

    async def _generate(self, running: _Running) -> None:
        request = running.request
        session = request.session
        running.kv_version = self._prefixes.get(session, -1)
        rng = self._script.draw.rng("token times", request.seed, request.offset)
        while True:
            await asyncio.sleep(rng.uniform(*self._script.token_s))
            await self._go.wait()
            if running.kv_version not in (-1, self.version):
                if self._rebuilds_kv:
                    running.kv_version = self.version
                else:
                    self.log.stale_kv_reads += 1
            if running.kv_version == -1:
                running.kv_version = self.version
            running.sampled += 1
            running.dispatch.sampled = running.dispatch.sampled.append(self.version, 1)
            self.log.tokens += 1
            self._emit(running)
            if request.id not in self._running:
                return
            if self._dies_at is not None and self.log.tokens >= self._dies_at:
                self.die("scripted death")
                return

    def _emit(self, running: _Running) -> None:
        request = running.request
        ends = running.sampled >= running.wanted
        full = running.sampled >= request.max_tokens
        finish = StopReason.STOP if ends else StopReason.LENGTH if full else None
        token = (request.seed + request.offset + running.sampled) % 97
        cost = RequestCost(prefill_tokens=request.prompt_tokens, decode_tokens=running.sampled)
        if finish is not None:
            del self._running[request.id]
            self._prefixes[request.session] = running.kv_version
        running.sink(
            TokenDelta(
                request_id=request.id,
                ids=np.array([token], np.int32),
                logprobs=np.array([-1.0 - running.kv_version / 64], np.float32),
                version=self.version,
                finish=finish,
                cost=cost if finish is not None else None,
            )
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._check()
        for name in request_ids:
            self._note(f"abort {name}")
            running = self._running.pop(name, None)
            if running is not None and running.task is not None:
                running.task.cancel()
                self._prefixes.pop(running.request.session, None)
                if self._keeps_log:
                    self.log.aborted.append(name)
        await asyncio.sleep(0)

    def release(self, session: str) -> None:
        self._prefixes.pop(session, None)

    async def pause(self) -> None:
        self._check()
        self._note("pause")
        self._go.clear()
        await asyncio.sleep(0)

    async def resume(self) -> None:
        self._check()
        self._note("resume")
        self._go.set()
        await asyncio.sleep(0)

    async def update(self, version: PolicyVersion) -> None:
        self._check()
        if self._go.is_set():
            raise RuntimeError(f"{self._name}: update to {version} while not paused")
        self._updates += 1
        self._note(f"update {version.number}")
        await asyncio.sleep(
            self._script.draw.seconds(self._script.update_s, "update", self._name, self._updates)
        )
        self._check()
        if (self._name, self._updates) in self._script.update_failures:
            raise RuntimeError(f"scripted failure of update {self._updates}")
        if version.number in self._missing:
            raise WeightsMissing(f"weights {version} are in no store")
        self.version = version.number

    async def rebuild_kv(self) -> int:
        self._check()
        self._note("rebuild_kv")
        await asyncio.sleep(0)
        return sum(running.request.prompt_tokens for running in self._running.values())

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    def die(self, reason: str) -> None:
        """End as a killed process does: in the middle of everything."""
        for running in self._running.values():
            if running.task is not None and running.task is not asyncio.current_task():
                running.task.cancel()
        self._running.clear()
        if not self._dead.done():
            self._dead.set_result(reason)

    async def close(self) -> None:
        self.log.left_at_close += len(self._running)
        self.die("closed")

    def _check(self) -> None:
        if self._dead.done():
            raise EngineLost(self._name, self._dead.result())
