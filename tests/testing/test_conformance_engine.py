"""The engine suite passes a right engine, and names the clause that a wrong one breaks."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink, Engine
from rollart.core.types import GenerateRequest, TokenDelta
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import ConformanceError, EngineTrial, check_engine
from rollart.testing.engine import ScriptedEngine
from rollart.testing.script import Script

LONG = Script(tokens_per_turn=(30, 60), token_s=(0.001, 0.003), update_s=(0.0, 0.01))


def die(engine: Engine) -> None:
    assert isinstance(engine, ScriptedEngine)
    engine.die("killed")


TRIAL = EngineTrial(
    missing=PolicyVersion("agent", 99),
    impossible=GenerateRequest(
        id="impossible",
        session="impossible",
        prompt=(np.ones(3, np.int32),),
        max_tokens=0,
        temperature=1.0,
        seed=0,
    ),
    kill=die,
)


def engine(
    kind: type[ScriptedEngine] = ScriptedEngine, *, rebuilds_kv: bool = True
) -> ScriptedEngine:
    return kind("engine-0", LONG, missing=(99,), rebuilds_kv=rebuilds_kv)


async def check(make: Callable[[], ScriptedEngine], trial: EngineTrial = TRIAL) -> None:
    async def made() -> Engine:
        return make()

    await check_engine(made, trial)


def broken_clause(make: Callable[[], ScriptedEngine]) -> str:
    impatient = replace(TRIAL, patience_s=5.0)
    with pytest.raises(ConformanceError) as caught:
        run_virtual(lambda: check(make, impatient))
    return caught.value.clause


def test_the_scripted_engine_conforms_under_virtual_time() -> None:
    run_virtual(lambda: check(engine))


def test_the_scripted_engine_conforms_on_the_real_loop_in_real_time() -> None:
    asyncio.run(check(engine, replace(TRIAL, quiet_s=0.05)))


def test_an_engine_may_be_told_to_keep_old_kv() -> None:
    trial = replace(TRIAL, keeps_kv=True)
    run_virtual(lambda: check(lambda: engine(rebuilds_kv=False), trial))


def test_kv_of_an_older_version_in_use_is_found() -> None:
    assert "never attended to" in broken_clause(lambda: engine(rebuilds_kv=False))


class LabelsByStart(ScriptedEngine):
    """Labels a whole request with the version it began under."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        began = self.version
        super().add(request, lambda delta: sink(replace(delta, version=began)))


class AbortsLater(ScriptedEngine):
    """Acknowledges an abort before it has let go."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        names = tuple(request_ids)
        asyncio.get_running_loop().call_later(0.01, lambda: self._really(names))

    def _really(self, names: Sequence[str]) -> None:
        asyncio.get_running_loop().create_task(super().abort(names))


class AbortsOnlyWhileRunning(ScriptedEngine):
    """Handles an abort between steps, so never while paused."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._go.wait()
        await super().abort(request_ids)


class IgnoresPause(ScriptedEngine):
    """Stands still while weights load, and no longer."""

    async def pause(self) -> None:
        return

    async def update(self, version: PolicyVersion) -> None:
        self._go.clear()
        await super().update(version)
        self._go.set()


class RefusesWhilePaused(ScriptedEngine):
    """Loses what is added while it is paused."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        if self._go.is_set():
            super().add(request, sink)


class DropsOnUpdate(ScriptedEngine):
    """Ends what is in flight when new weights come."""

    async def update(self, version: PolicyVersion) -> None:
        await super().update(version)
        await self.abort(list(self._running))


class TakesBadWeights(ScriptedEngine):
    """Believes that it has a version whose weights it could not load."""

    async def update(self, version: PolicyVersion) -> None:
        try:
            await super().update(version)
        finally:
            self.version = version.number


class OneLogprobMore(ScriptedEngine):
    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        def padded(delta: TokenDelta) -> None:
            sink(replace(delta, logprobs=np.zeros(len(delta.ids) + 1, np.float32)))

        super().add(request, padded)


class ForgetsTheOffset(ScriptedEngine):
    """Begins its stream of random numbers anew when a request is continued."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        super().add(replace(request, offset=0), sink)


class OneSeedForAll(ScriptedEngine):
    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        super().add(replace(request, seed=0), sink)


class WakesOneWaiter(ScriptedEngine):
    """A waiter that gives up takes the news of the death with it."""

    async def wait_dead(self) -> str:
        return await self._dead


class RaisesInAdd(ScriptedEngine):
    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        self._check()
        super().add(request, sink)


class HangsWhenDead(ScriptedEngine):
    async def pause(self) -> None:
        if self._dead.done():
            await asyncio.get_running_loop().create_future()
        await super().pause()


class SpeaksAfterClose(ScriptedEngine):
    """Closing leaves what runs running."""

    async def close(self) -> None:
        if not self._dead.done():
            self._dead.set_result("closed")


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (LabelsByStart, "each token carries the version that sampled it"),
        (AbortsLater, "after abort has returned, no delta"),
        (AbortsOnlyWhileRunning, "abort returns"),
        (IgnoresPause, "no step runs while paused"),
        (RefusesWhilePaused, "a request that was added yields tokens"),
        (DropsOnUpdate, "a request that was added yields tokens"),
        (TakesBadWeights, "on error it holds its old version"),
        (OneLogprobMore, "each sampled id has one log-prob"),
        (ForgetsTheOffset, "a continued request goes on where it was"),
        (OneSeedForAll, "the seed decides what is sampled"),
        (WakesOneWaiter, "one who stops waiting does not wake the others"),
        (RaisesInAdd, "add never raises"),
        (HangsWhenDead, "a command to a dead engine fails soon"),
        (SpeaksAfterClose, "no delta comes after close"),
    ],
)
def test_each_broken_engine_fails_its_own_clause(kind: type[ScriptedEngine], clause: str) -> None:
    assert clause in broken_clause(lambda: engine(kind))
