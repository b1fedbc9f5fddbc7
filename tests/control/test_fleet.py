"""The fleet: who lives, who has acknowledged what, who may be routed to."""

import asyncio
from dataclasses import replace
from typing import ClassVar

import pytest

from rollart.control.fleet import EngineSlot, EngineState, Fleet, FleetSettings, backoff
from rollart.control.llm_proxy import LLMProxy
from rollart.core.errors import EngineLost, WeightSyncFailed
from rollart.core.events import (
    Committed,
    EngineAcknowledged,
    EngineDown,
    EngineUp,
    Warned,
)
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, Engine
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.engine import ScriptedEngine
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.rig import SETTINGS, ProxyRig, proxy_rig
from rollart.testing.script import Script

STEADY = Script(tokens_per_turn=(40, 40), token_s=(1.0, 1.0), update_s=(0.5, 0.5))


def now() -> float:
    return asyncio.get_running_loop().time()


def routable(rig: ProxyRig) -> list[str]:
    return list(rig.fleet.routable())


def first_is(kind: type[ScriptedEngine], script: Script = STEADY) -> ScriptedLauncher:
    """Its first engine is of `kind`; the others, and every replacement, are plain."""

    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            made = ScriptedEngine if self.engines else kind
            self.engines.append(made(binding.worker, script, hardware=binding.hardware))
            return self.engines[-1]

    return Launches(script)


class NeverUpdates(ScriptedEngine):
    """Takes version 0 and never answers another update."""

    async def update(self, version: PolicyVersion) -> None:
        if version.number > 0:
            await asyncio.get_running_loop().create_future()
        await super().update(version)


class RefusesUpdates(ScriptedEngine):
    """Takes version 0 and answers 500 to every other update."""

    async def update(self, version: PolicyVersion) -> None:
        if version.number > 0:
            raise RuntimeError("500: the store is not reachable")
        await super().update(version)


class DiesInUpdate(ScriptedEngine):
    async def update(self, version: PolicyVersion) -> None:
        if version.number > 0:
            self.die("killed during the transfer")
        await super().update(version)


def test_an_engine_is_routable_once_it_has_acknowledged_and_not_before() -> None:
    async def main() -> None:
        async with proxy_rig(STEADY, engines=2) as rig:
            assert routable(rig) == ["engine-0", "engine-1"]
            await rig.proxy.suspend()
            updating = asyncio.get_running_loop().create_task(
                rig.fleet.update(PolicyVersion("agent", 1))
            )
            await asyncio.sleep(0.25)
            assert (routable(rig), rig.fleet.committed) == ([], 0)
            await updating
            assert (routable(rig), rig.fleet.committed) == (["engine-0", "engine-1"], 1)
            await rig.proxy.resume()
            acknowledged = [(e.engine, e.version) for e in rig.events.of(EngineAcknowledged)]
            assert acknowledged == [(f"engine-{i}", v) for v in (0, 1) for i in (0, 1)]

    run_virtual(main)


@pytest.mark.parametrize("kind", [NeverUpdates, RefusesUpdates])
def test_an_update_that_no_engine_takes_fails_at_its_deadline_with_the_engines_words(
    kind: type[ScriptedEngine],
) -> None:
    settings = replace(SETTINGS, weights_s=4.0, restarts=0)

    async def main() -> None:
        fatal: list[Exception] = []
        async with proxy_rig(settings=settings, launcher=first_is(kind)) as rig:
            rig.fleet.on_fatal = fatal.append
            began = now()
            with pytest.raises(WeightSyncFailed, match="no engine acknowledged agent@1") as caught:
                await rig.update(1)
            assert now() - began == pytest.approx(4.0, abs=0.1)
            words = "500: the store" if kind is RefusesUpdates else "no acknowledgement within 4.0"
            assert words in str(caught.value)
            assert rig.fleet.committed == 0
            assert rig.engines[0].log.calls[-1] in ("resume", "pause")

    run_virtual(main)


def test_an_engine_that_refused_once_takes_the_next_attempt_of_the_same_update() -> None:
    script = replace(STEADY, update_failures=(("engine-0", 2), ("engine-0", 3)))

    async def main() -> None:
        async with proxy_rig(script) as rig:
            await rig.update(1)
            assert rig.fleet.committed == 1
            assert rig.engines[0].log.calls.count("update 1") == 3

    run_virtual(main)


def test_an_update_goes_on_without_the_one_of_four_that_dies_in_it() -> None:
    async def main() -> None:
        settings = replace(SETTINGS, restarts=0)
        async with proxy_rig(engines=4, launcher=first_is(DiesInUpdate), settings=settings) as rig:
            began = now()
            await rig.update(1)
            assert now() - began < 1.0
            assert routable(rig) == ["engine-1", "engine-2", "engine-3"]
            (down,) = rig.events.of(EngineDown)
            assert (down.engine, down.reason) == ("engine-0", "killed during the transfer")

    run_virtual(main)


def test_a_restarted_engine_gets_no_request_before_it_has_acknowledged_the_version() -> None:
    async def main() -> None:
        async with proxy_rig(STEADY, engines=2) as rig:
            await rig.update(1)
            rig.engines[0].die("killed")
            await asyncio.sleep(0.1)
            asked = [rig.ask(member, tokens=2) for member in range(4)]
            await asyncio.sleep(0.1)
            fresh = rig.engines[2]
            assert (fresh.id, fresh.version, fresh.live_requests) == ("engine-0", -1, 0)
            await asyncio.sleep(1.0)
            assert (fresh.version, routable(rig)) == (1, ["engine-0", "engine-1"])
            assert (await rig.ask(9, tokens=1)).completion.engine == "engine-0"
            for one in asked:
                assert (await one).completion.engine == "engine-1"
            assert {dispatch.version for dispatch in fresh.log.dispatches} == {1}

    run_virtual(main)


def test_an_engine_that_refuses_a_version_is_unrouted_moves_its_work_and_catches_up() -> None:
    script = replace(STEADY, update_failures=(("engine-0", 2),))

    async def main() -> None:
        async with proxy_rig(script, engines=2) as rig:
            asked = rig.ask(0, tokens=6)
            await asyncio.sleep(2.5)
            await rig.update(1)
            assert routable(rig) == ["engine-1"]
            answer = await asked
            assert (answer.completion.engine, answer.interruptions) == ("engine-1", 1)
            assert answer.completion.versions.expand() == [0, 0, 1, 1, 1, 1]
            assert routable(rig) == ["engine-0", "engine-1"]
            assert rig.engines[0].log.calls[-1] == "resume"
            assert any("1 requests moved" in w.message for w in rig.events.of(Warned))

    run_virtual(main)


def test_an_engine_that_holds_requests_and_is_silent_is_lost_and_its_requests_move() -> None:
    class Stops(ScriptedEngine):
        async def _generate(self, running) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with proxy_rig(engines=2, launcher=first_is(Stops)) as rig:
            answer = await rig.ask(0, tokens=3)
            assert answer.completion.engine == "engine-1"
            (down,) = rig.events.of(EngineDown)
            assert "no token for" in down.reason
            assert now() < 2 * SETTINGS.engine_s + 5.0

    run_virtual(main)


def test_an_idle_or_a_suspended_engine_is_not_taken_for_silent() -> None:
    async def main() -> None:
        async with proxy_rig(STEADY) as rig:
            asked = rig.ask(0, tokens=3)
            await asyncio.sleep(1.5)
            await rig.proxy.suspend()
            await asyncio.sleep(10 * SETTINGS.engine_s)
            await rig.proxy.resume()
            await asked
            await asyncio.sleep(10 * SETTINGS.engine_s)
            assert not rig.events.of(EngineDown)

    run_virtual(main)


def test_an_engine_that_does_not_answer_a_command_is_lost_at_its_deadline() -> None:
    class NeverPauses(ScriptedEngine):
        async def pause(self) -> None:
            if self.version >= 0:
                await asyncio.get_running_loop().create_future()
            await super().pause()

    async def main() -> None:
        async with proxy_rig(engines=2, launcher=first_is(NeverPauses)) as rig:
            began = now()
            await rig.update(1)
            assert now() - began == pytest.approx(SETTINGS.engine_s, abs=1.0)
            assert "no answer within 10 s" in rig.events.of(EngineDown)[0].reason

    run_virtual(main)


def test_a_binding_is_given_up_after_its_restarts_and_the_last_one_is_fatal() -> None:
    settings = FleetSettings(engine_s=10.0, weights_s=10.0, restarts=2)

    async def main() -> list[Exception]:
        fatal: list[Exception] = []
        async with proxy_rig(STEADY, settings=settings) as rig:
            rig.fleet.on_fatal = fatal.append
            for life in range(3):
                assert not fatal
                rig.engines[life].die(f"death {life}")
                await asyncio.sleep(5.0)
            assert routable(rig) == []
            assert len(rig.events.of(EngineUp)) == 3
        return fatal

    (error,) = run_virtual(main)
    assert isinstance(error, EngineLost)
    assert "death 2; no engine is left after 2 restarts" in str(error)


def test_a_launch_that_fails_is_tried_again_and_counts_as_a_restart() -> None:
    class FailsOnce(ScriptedLauncher):
        tries = 0

        async def engine(self, binding: Binding) -> Engine:
            self.tries += 1
            if self.tries == 2:
                raise OSError("no memory")
            return await super().engine(binding)

    async def main() -> None:
        async with proxy_rig(launcher=FailsOnce(STEADY)) as rig:
            rig.engines[0].die("killed")
            await asyncio.sleep(5.0)
            slot = rig.fleet.slot("engine-0")
            assert slot is not None
            assert (slot.state, slot.restarts) == (EngineState.LIVE, 2)
            assert any("no memory" in warning.message for warning in rig.events.of(Warned))

    run_virtual(main)


def test_an_engine_lost_while_suspended_joins_paused_and_is_resumed_with_the_others() -> None:
    async def main() -> None:
        async with proxy_rig(STEADY, engines=2) as rig:
            await rig.proxy.suspend()
            rig.engines[0].die("killed")
            await asyncio.sleep(3.0)
            assert rig.engines[2].log.calls == ["pause", "update 0"]
            await rig.proxy.resume()
            assert rig.engines[2].log.calls[-1] == "resume"
            assert routable(rig) == ["engine-0", "engine-1"]

    run_virtual(main)


def test_every_commit_is_told_once_and_in_order() -> None:
    async def main() -> list[int]:
        async with proxy_rig(STEADY, engines=2) as rig:
            for number in (1, 2, 3):
                await rig.update(number)
            return [event.version for event in rig.events.of(Committed)]

    assert run_virtual(main) == [0, 1, 2, 3]


class ForgetsToReroute(Fleet):
    """Goes on routing by what was so before a slot's state changed."""

    def _set_state(self, slot: EngineSlot, state: EngineState) -> None:
        slot.state = state


class ComparesWhenItSends(LLMProxy):
    """Each time requests could be sent: do the routable engines live and hold the version?"""

    agreed: ClassVar[list[bool]]

    def _pump(self) -> None:
        slots = [slot for i in range(3) if (slot := self._fleet.slot(f"engine-{i}"))]
        fit = [
            slot.binding.worker
            for slot in slots
            if slot.state is EngineState.LIVE and slot.version == self._fleet.target.number
        ]
        self.agreed.append(sorted(self._fleet.routable()) == fit)
        super()._pump()


@pytest.mark.parametrize(("fleet", "agrees"), [(Fleet, True), (ForgetsToReroute, False)])
def test_the_engines_to_route_to_are_those_that_live_and_hold_the_version_whenever_one_is_chosen(
    fleet: type[Fleet], agrees: bool
) -> None:
    class Compares(ComparesWhenItSends):
        agreed: ClassVar[list[bool]] = []

    script = replace(
        STEADY,
        engine_deaths=(("engine-0", 3), ("engine-1", 9), ("engine-0", 5)),
        update_failures=(("engine-1", 2), ("engine-2", 3)),
    )

    async def main() -> None:
        async with proxy_rig(script, engines=3, fleet=fleet, proxy=Compares) as rig:
            asked = [rig.ask(member, tokens=12) for member in range(6)]
            for number in range(1, 5):
                await asyncio.sleep(2.5)
                await rig.update(number)
            for one in asked:
                one.cancel()
            await asyncio.wait(asked)

    run_virtual(main)
    assert len(Compares.agreed) > 10
    assert all(Compares.agreed) is agrees


def test_waiting_doubles_from_try_to_try_and_is_bounded() -> None:
    assert [backoff(tries) for tries in range(1, 8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
