"""Planted bugs in what handles requests, engines and the six steps. Each class says what it does.

Every one of them was met in some system that does this job.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from rollart.control.deadline import within
from rollart.control.fleet import EngineSlot, EngineState, Fleet
from rollart.control.llm_proxy import Answer, GenerateCall, LLMProxy, StartSink, _Pending
from rollart.control.weight_sync import WeightSync
from rollart.core.errors import EngineLost
from rollart.core.events import Phase
from rollart.core.types import Group, TokenDelta


class StartsWhenItEnds(LLMProxy):
    """Reads the start version after the await, when the answer is there."""

    def _dispatch(self, pending: _Pending, slot: EngineSlot) -> None:
        on_start, pending.on_start = pending.on_start, lambda version: None
        pending.future.add_done_callback(lambda _: on_start(slot.version))
        super()._dispatch(pending, slot)


class Reencodes(LLMProxy):
    """Returns other ids than the engine sampled, as a decode and encode may."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        answer = await super().generate(call, on_start)
        ids = np.sort(np.asarray(answer.completion.ids))
        return replace(answer, completion=replace(answer.completion, ids=ids))


class LabelsWithTheNewest(LLMProxy):
    """Gives all tokens of a completion the version at its end."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        answer = await super().generate(call, on_start)
        versions = answer.completion.versions
        newest = (
            replace(versions, runs=((versions.newest, len(versions)),)) if versions else versions
        )
        return replace(answer, completion=replace(answer.completion, versions=newest))


class ForgetsOnDrop(LLMProxy):
    """A cancelled request is forgotten here and goes on at the engine."""

    async def _drop(self, pending: _Pending) -> None:
        self._detach(pending)


class ForgetsTokens(LLMProxy):
    """A request that moves begins anew."""

    def _move(self, slot: EngineSlot) -> int:
        for request_id in slot.inflight:
            pending = self._sent[request_id]
            pending.ids.clear()
            pending.logprobs.clear()
            pending.versions = replace(pending.versions, runs=())
        return super()._move(slot)


class WholeBudgetAgain(LLMProxy):
    """A request that moves may sample as much as it could at first."""

    def _budget(self, pending: _Pending) -> int:
        return min(pending.call.max_tokens, self._context - pending.prompt_tokens)


class SendsWhileSuspended(LLMProxy):
    """A second path to the engines, which nobody suspends."""

    def _pump(self) -> None:
        slot = self._fleet.slot("engine-0")
        while self._queue and slot is not None and slot.version >= 0:
            self._dispatch(self._queue.popleft(), slot)


class TakesLateResults(LLMProxy):
    """Takes whatever comes for a request, from whichever engine it is."""

    def _on_delta(
        self, pending: _Pending, serial: int, slot: EngineSlot, delta: TokenDelta
    ) -> None:
        now_at = pending.slot or slot
        super()._on_delta(pending, pending.serial, now_at, delta)


class KeepsPrefixes(LLMProxy):
    """Never tells an engine that a trajectory is over."""

    def _release_prefix(self, session: str) -> None:
        self._holder.pop(session, None)


class WatchesForEver(LLMProxy):
    """Watches each request with a task that nobody ends."""

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.create_task, within(1e9, loop.create_future(), TimeoutError))
        return await super().generate(call, on_start)


class RoutesBeforeTheAnswer(Fleet):
    """Takes an engine that lives for one that has the weights."""

    def _is_routable(self, slot: EngineSlot) -> bool:
        return slot.state is not EngineState.LOST


class AsksWithoutDeadline(Fleet):
    """Waits for an engine's answer as long as it takes."""

    async def _ask(self, slot: EngineSlot, command: Callable[[], Awaitable[object]]) -> None:
        try:
            await command()
        except EngineLost as error:
            self.lose(slot, error.reason)
        except Exception as error:
            self.lose(slot, repr(error))


class OverlooksDeaths(Fleet):
    """Learns of an engine's death only when it asks the engine for something."""

    async def _watch_death(self, slot: EngineSlot) -> None:
        await asyncio.get_running_loop().create_future()


class ResumesOnlyOnSuccess(WeightSync):
    """Resume is not in `finally`: an update that raises leaves the engines paused."""

    async def _overlapped(self, step: int) -> None:
        batch = await self._get_batch(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.end_surplus()
            await self._scheduler.abort_stale(self._trainer.version.number)
        await self._evaluation.settled()
        await self._suspend(step)
        await self._update(step)
        await self._resume(step)
        await self._recompute(step)
        await self._train(step, batch)


class AbortsAfterResume(WeightSync):
    """Ends what is surplus or stale only once the engines run again."""

    async def _overlapped(self, step: int) -> None:
        batch = await self._get_batch(step)
        await self._evaluation.settled()
        try:
            await self._suspend(step)
            await self._update(step)
        finally:
            await self._resume(step)
        async with self._phase(step, Phase.ABORT_STALE):
            await self._scheduler.end_surplus()
            await self._scheduler.abort_stale(self._trainer.version.number)
        await self._recompute(step)
        await self._train(step, batch)


class RecomputesNothing(WeightSync):
    """Goes on with KV that older weights have written."""

    async def _recompute(self, step: int) -> None:
        return


class TrainsUncommitted(WeightSync):
    """Goes on to train although no engine has the trainer's version."""

    async def _update(self, step: int) -> None:
        if step % 2 == 0:
            await super()._update(step)

    async def _train(self, step: int, groups: tuple[Group, ...]) -> None:
        committed, self._fleet.committed = self._fleet.committed, self._trainer.version.number
        await super()._train(step, groups)
        self._fleet.committed = committed
