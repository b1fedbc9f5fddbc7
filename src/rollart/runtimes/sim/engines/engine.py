"""The `Engine` port over a modelled machine: it answers with lengths, at the right times.

A machine is pure and told the time; this drives it with one timer. Tokens of a request are told
when it ends, at a pause (so that each keeps the version that sampled it), at death, and now and
then for one of those under way; to control that looks like a stream read late.
Invariants: after `abort` was called nothing is told of those requests any more; a command to a dead
engine raises `EngineLost` at once, also one that was waiting; a hung one never answers.
Who waits: callers of `pause` and `abort`, for the iteration that is running; of `update`, for the
source of weights.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollart.core.events import Work
from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink, EventSink
from rollart.core.tokens import NO_TOKENS
from rollart.core.types import GenerateRequest, StopReason, TokenDelta
from rollart.runtimes.sim.engines.api import (
    DEFAULT_SETTINGS,
    EngineSettings,
    Machine,
    Sampled,
    WeightSource,
    Workload,
    without_content,
)
from rollart.runtimes.sim.engines.busy_log import BusyLog
from rollart.runtimes.sim.engines.life import Life
from rollart.runtimes.sim.engines.seq import Seq
from rollart.runtimes.sim.engines.step_clock import StepClock
from rollart.runtimes.sim.hardware.roofline import Roofline


@dataclass(slots=True, eq=False)
class _Live:
    """A request under way; `told` counts its tokens that the sink has had."""

    request: GenerateRequest
    sink: DeltaSink
    seq: Seq
    stop: StopReason
    told: int = 0


class ModelledEngine:
    """One engine, on a machine of its own.

    Args:
        worker: its id, and that of its device where it has only one.
        hardware: the class that control knows it by.
        logs: one for each device that the machine has; updates are booked on all.
        content: makes what stands for tokens; without it they have a length only.
    """

    def __init__(
        self,
        *,
        worker: str,
        hardware: str,
        machine: Machine,
        logs: Sequence[BusyLog],
        workload: Workload,
        weights: WeightSource,
        settings: EngineSettings = DEFAULT_SETTINGS,
        content: Sampled = without_content,
    ) -> None:
        self._id = worker
        self._hardware = hardware
        self._machine = machine
        self._logs = tuple(logs)
        self._workload = workload
        self._weights = weights
        self._settings = settings
        self._heartbeat_s = settings.heartbeat_s
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._life = Life(worker)
        self._live: dict[str, _Live] = {}
        self._refused: dict[str, asyncio.Handle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._heard_at = 0.0
        self._paused = False
        self._to_rebuild = 0
        self._version = -1
        weights.attach(worker)

    @property
    def id(self) -> str:
        return self._id

    @property
    def hardware(self) -> str:
        return self._hardware

    @property
    def version(self) -> int:
        """Number of the policy version it holds; -1 for none."""
        return self._version

    @property
    def live_requests(self) -> int:
        return len(self._live)

    # -- requests --------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Queue a request. When the engine is gone or hangs this does nothing."""
        if self._life.still:
            return
        prompt = request.prompt_tokens
        if prompt < 1 or request.max_tokens < 1:
            self._refuse(request, sink, "both must be at least 1")
            return
        rest = max(1, self._workload.answer_tokens(request.session, request.seed) - request.offset)
        wanted = min(rest, request.max_tokens)
        if prompt + wanted > self._machine.capacity:
            rule = f"the engine holds {self._machine.capacity} tokens; ask for less"
            self._refuse(request, sink, rule)
            return
        now = self._loop.time()
        if not self._live:
            self._heard_at = now
        seq = Seq(
            name=request.id,
            session=request.session,
            prompt=prompt,
            wanted=wanted,
            share=self._workload.cached_share(request.session),
        )
        stop = StopReason.STOP if rest <= request.max_tokens else StopReason.LENGTH
        self._tell_whole(now)
        self._live[request.id] = _Live(request, sink, seq, stop)
        self._machine.add(seq, now)
        self._set_timer()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; returns at the end of the iteration that computes on them."""
        async with self._life.alive():
            now = self._loop.time()
            self._tell_whole(now)
            for name in request_ids:
                self._live.pop(name, None)
                handle = self._refused.pop(name, None)
                if handle is not None:
                    handle.cancel()
            at = self._machine.abort(request_ids, now)
            self._set_timer()
            await self._life.until(at)

    def release(self, session: str) -> None:
        """The session will not return: its idle prefix goes."""
        self._machine.release(session)

    def _refuse(self, request: GenerateRequest, sink: DeltaSink, rule: str) -> None:
        delta = TokenDelta(
            request_id=request.id,
            ids=NO_TOKENS,
            logprobs=NO_TOKENS,
            version=self._version,
            refused=f"prompt of {request.prompt_tokens} tokens and max_tokens "
            f"{request.max_tokens}: {rule}",
        )

        def tell() -> None:
            self._refused.pop(request.id, None)
            sink(delta)

        self._refused[request.id] = self._loop.call_soon(tell)

    # -- commands --------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Returns at the end of the iteration that is running. Raises `EngineLost`."""
        async with self._life.alive():
            now = self._loop.time()
            self._tell_whole(now)
            self._paused = True
            at = self._machine.stop(now)
            self._set_timer()
            await self._life.until(at)
            self._tell_whole(self._loop.time())
            for live in list(self._live.values()):
                self._tell_part(live)
            self._set_timer()

    async def resume(self) -> None:
        """Iterations run again. Raises `EngineLost`."""
        async with self._life.alive():
            now = self._heard_at = self._loop.time()
            self._tell_whole(now)
            self._paused = False
            self._machine.start(now)
            self._set_timer()

    async def update(self, version: PolicyVersion) -> None:
        """Take a version, as soon as it is here.

        Raises:
            EngineLost: it died meanwhile.
            WeightsMissing: it cannot be had; the old version stays.
        """
        async with self._life.alive():
            if not self._machine.stopped:
                raise RuntimeError(f"{self._id}: update to {version} while it runs; pause it first")
            began = self._loop.time()
            await self._weights.pulled(self._id, version.number)
            now = self._loop.time()
            for log in self._logs:
                log.add(Work.UPDATE, max(began, now - self._settings.install_s), now)
            self._tell_whole(now)
            self._to_rebuild = self._machine.renew(version.number, now, keep=self._settings.keep_kv)
            self._version = version.number
            self._set_timer()

    async def rebuild_kv(self) -> int:
        """Tokens of KV that are computed anew since the last update.

        Nothing waits for them: what is in flight is rebuilt, as prefill, before it decodes on.
        """
        async with self._life.alive():
            tokens, self._to_rebuild = self._to_rebuild, 0
            await asyncio.sleep(0)  # an answer comes in a later pass of the loop, as a real one's
            return tokens

    async def wait_dead(self) -> str:
        return await self._life.ended()

    async def close(self) -> None:
        self._end("closed")

    # -- faults ----------------------------------------------------------------------------------

    def die(self, reason: str) -> None:
        """End as a crash does, in the middle of an iteration. Idempotent.

        What was sampled before has been streamed by then, so it is told first.
        """
        if not self._life.over:
            self._tell_all()
            self._end(reason)

    def hang(self) -> None:
        """Compute nothing, say nothing and answer no command from now on."""
        if not self._life.still:
            self._tell_all()
            self._life.hangs = True
            self._stop_timer()
            self._machine.close(self._loop.time())

    def set_pace(self, pace: float) -> None:
        """From the next iteration on each takes `pace` times as long; 1 is as modelled."""
        if not pace > 0:
            raise ValueError(f"pace {pace}: iterations take some time; use 1 or more, or hang()")
        if not self._life.still:
            now = self._loop.time()
            self._tell_whole(now)
            self._machine.set_pace(pace, now)
            self._set_timer()

    def _end(self, reason: str) -> None:
        if self._life.over:
            return
        self._life.end(reason)
        self._stop_timer()
        self._live.clear()
        for handle in self._refused.values():
            handle.cancel()
        self._refused.clear()
        if not self._life.hangs:
            self._machine.close(self._loop.time())
        for log in self._logs:
            log.flush()
        self._weights.detach(self._id)

    # -- telling -----------------------------------------------------------------------------------

    def _tell_whole(self, now: float) -> None:
        """Let the machine come up to now, and tell of the requests that are whole."""
        if self._machine.next_event_at > now:
            return
        for seq in self._machine.advance(now):
            live = self._live.pop(seq.name, None)
            if live is None:
                continue  # aborted, and not yet let go
            self._tell(live, seq.sampled, now, live.stop)

    def _tell_part(self, live: _Live) -> bool:
        """Tell of the tokens that a request has by now; whether there were any."""
        now = self._loop.time()
        count = self._machine.sampled(live.seq, now)
        if count == live.told:
            return False
        self._tell(live, count, now, None)
        return True

    def _tell_all(self) -> None:
        if self._life.hangs:
            return
        self._tell_whole(self._loop.time())
        for live in list(self._live.values()):
            self._tell_part(live)

    def _tell(self, live: _Live, count: int, now: float, finish: StopReason | None) -> None:
        seq = live.seq
        before, live.told = live.told, count
        ids, logprobs = self._content(live.request, before, count - before, seq.kv_version)
        self._heard_at = now
        live.sink(
            TokenDelta(
                request_id=seq.name,
                ids=ids,
                logprobs=logprobs,
                version=self._version,
                finish=finish,
                cost=seq.cost() if finish is not None else None,
            )
        )

    def _beat(self, now: float) -> None:
        """A sign of life: tokens of the request that has most untold, be they none."""
        live = max(
            self._live.values(), key=lambda each: self._machine.sampled(each.seq, now) - each.told
        )
        if not self._tell_part(live):
            self._tell(live, live.told, now, None)

    # -- time --------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Wake when something happens or a sign of life is due; an earlier timer may stay."""
        at = self._machine.next_event_at
        if self._live and not self._paused:
            beat = self._heard_at + self._heartbeat_s
            at = beat if beat < at else at
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(at, self._wake), at

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, -math.inf  # and none is set any more

    def _wake(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time()
        self._tell_whole(now)
        if now >= self._heard_at + self._heartbeat_s and self._live and not self._paused:
            self._beat(now)
        self._set_timer()


def modelled_engine(
    *,
    worker: str,
    hardware: str,
    roofline: Roofline,
    workload: Workload,
    weights: WeightSource,
    events: EventSink,
    settings: EngineSettings = DEFAULT_SETTINGS,
    content: Sampled = without_content,
) -> ModelledEngine:
    """An engine that prefills and decodes on the same GPUs.

    Raises `ConfigError` when the model does not fit on them.
    """
    log = BusyLog(worker, roofline.gpu.name, events)
    machine = StepClock(
        roofline,
        capacity=roofline.kv_capacity_tokens,
        step_tokens=settings.step_tokens,
        most_running=settings.most_running,
        busy=log.add,
    )
    return ModelledEngine(
        worker=worker,
        hardware=hardware,
        machine=machine,
        logs=(log,),
        workload=workload,
        weights=weights,
        settings=settings,
        content=content,
    )
