"""A modelled engine is an `Engine`: commands, weights, what it tells, costs and busy times."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from rollart.core.errors import ConfigError, EngineLost, WeightsMissing
from rollart.core.events import DeviceBusy, Event, Work
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Engine
from rollart.core.tokens import LengthOnly, TokenBlock
from rollart.core.types import GenerateRequest, StopReason, TokenDelta
from rollart.runtimes.sim.engines.api import EngineSettings, Sampled, without_content
from rollart.runtimes.sim.engines.busy_log import BusyLog
from rollart.runtimes.sim.engines.engine import ModelledEngine, modelled_engine
from rollart.runtimes.sim.engines.step_clock import StepClock
from rollart.runtimes.sim.hardware.catalogue import gpu
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.hardware.network import Network
from rollart.runtimes.sim.hardware.roofline import Roofline
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.training.weights import ModelledStore, WeightSettings
from rollart.testing.conformance import ConformanceError, EngineTrial, check_engine

ROOFLINE = Roofline(model=model_shape("Qwen3-8B"), gpu=gpu("H800"))
QUICK = EngineSettings(heartbeat_s=0.02)


class Answers:
    """Answers of 60 to 89 tokens by seed; half of a prefix is found again."""

    def __init__(self, tokens: int | None = None, share: float = 0.5) -> None:
        self._tokens = tokens
        self._share = share

    def answer_tokens(self, session: str, seed: int) -> int:
        return self._tokens or 60 + seed % 30

    def cached_share(self, session: str) -> float:
        return self._share


class Weights:
    """Versions are there after `seconds`, but for version 99."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.attached: list[str] = []

    def attach(self, engine: str) -> None:
        self.attached.append(engine)

    def detach(self, engine: str) -> None:
        if engine in self.attached:
            self.attached.remove(engine)

    async def pulled(self, engine: str, version: int) -> None:
        await asyncio.sleep(self.seconds)
        if version == 99:
            raise WeightsMissing(f"weights of version {version} are nowhere")


class Events:
    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)

    def busy(self, device: str = "engine-0") -> list[DeviceBusy]:
        return [e for e in self.seen if isinstance(e, DeviceBusy) and e.device == device]


def numbers(
    request: GenerateRequest, before: int, count: int, kv_version: int
) -> tuple[TokenBlock, TokenBlock]:
    """Ids by seed and place; log-probs by the oldest version whose KV is attended to."""
    places = np.arange(count, dtype=np.int64) + request.offset + before
    ids = ((request.seed * 31 + places) % 97).astype(np.int32)
    return ids, np.full(count, -1.0 - kv_version / 64, np.float32)


def engine(
    *,
    settings: EngineSettings = QUICK,
    workload: Answers | None = None,
    weights: Weights | ModelledStore | None = None,
    events: Events | None = None,
    content: Sampled = without_content,
    roofline: Roofline = ROOFLINE,
    worker: str = "engine-0",
) -> ModelledEngine:
    return modelled_engine(
        worker=worker,
        hardware="H800",
        roofline=roofline,
        workload=workload or Answers(),
        weights=weights or Weights(),
        events=events or Events(),
        settings=settings,
        content=content,
    )


def request(
    name: str = "r",
    *,
    session: str = "",
    prompt: int = 100,
    tokens: int = 1000,
    seed: int = 0,
    offset: int = 0,
) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        session=session or f"run/lake/{name}",
        prompt=(LengthOnly(prompt),),
        max_tokens=tokens,
        temperature=1.0,
        seed=seed,
        offset=offset,
    )


class Told:
    """Deltas as they come, with the loop time of each."""

    def __init__(self) -> None:
        self.deltas: list[tuple[float, TokenDelta]] = []
        self.ended = asyncio.Event()

    def sink(self, delta: TokenDelta) -> None:
        self.deltas.append((asyncio.get_running_loop().time(), delta))
        if delta.finish is not None or delta.refused is not None:
            self.ended.set()

    @property
    def last(self) -> TokenDelta:
        return self.deltas[-1][1]

    @property
    def tokens(self) -> int:
        return sum(len(delta.ids) for _, delta in self.deltas)


def add(one: Engine, asked: GenerateRequest) -> Told:
    told = Told()
    one.add(asked, told.sink)
    return told


async def started(one: ModelledEngine, version: int = 0) -> ModelledEngine:
    await one.pause()
    await one.update(PolicyVersion("agent", version))
    await one.resume()
    return one


def now() -> float:
    return asyncio.get_running_loop().time()


# -- the port ------------------------------------------------------------------------------------


def die(one: Engine) -> None:
    assert isinstance(one, ModelledEngine)
    one.die("killed")


TRIAL = EngineTrial(
    missing=PolicyVersion("agent", 99),
    impossible=request("impossible", tokens=0),
    kill=die,
    patience_s=60.0,
    quiet_s=5.0,
)


def conforms(make: Callable[[], Engine], trial: EngineTrial = TRIAL) -> None:
    async def made() -> Engine:
        return make()

    run_virtual(lambda: check_engine(made, trial))


def test_it_conforms_to_the_engine_port() -> None:
    conforms(lambda: engine(content=numbers))


def test_it_may_be_told_to_keep_old_kv() -> None:
    settings = EngineSettings(heartbeat_s=0.02, keep_kv=True)
    trial = EngineTrial(missing=TRIAL.missing, keeps_kv=True, kill=die, quiet_s=5.0)
    conforms(lambda: engine(content=numbers, settings=settings), trial)


class KeepsOldKV(StepClock):
    """Takes new weights and attends to what older ones wrote."""

    def renew(self, version: int, now: float, *, keep: bool) -> int:
        return super().renew(version, now, keep=True)


class RunsOn(ModelledEngine):
    """Stands still while weights load, and no longer."""

    async def pause(self) -> None:
        return

    async def update(self, version: PolicyVersion) -> None:
        await super().pause()
        await super().update(version)
        await super().resume()


def on(
    machine: type[StepClock] = StepClock, kind: type[ModelledEngine] = ModelledEngine
) -> ModelledEngine:
    log = BusyLog("engine-0", "H800", Events())
    return kind(
        worker="engine-0",
        hardware="H800",
        machine=machine(ROOFLINE, capacity=ROOFLINE.kv_capacity_tokens, busy=log.add),
        logs=(log,),
        workload=Answers(),
        weights=Weights(),
        settings=QUICK,
        content=numbers,
    )


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (lambda: on(KeepsOldKV), "never attended to"),
        (lambda: on(kind=RunsOn), "no step runs while paused"),
    ],
)
def test_one_that_breaks_the_port_is_found(make: Callable[[], Engine], clause: str) -> None:
    with pytest.raises(ConformanceError, match=clause):
        conforms(make)


# -- what it tells ---------------------------------------------------------------------------------


def test_tokens_come_at_the_end_and_cost_what_the_machine_says() -> None:
    async def main() -> None:
        one = await started(engine(settings=EngineSettings(), workload=Answers(300)))
        began = now()
        told = add(one, request())
        await told.ended.wait()
        cost = told.last.cost
        assert len(told.deltas) == 1
        assert cost is not None
        assert (told.tokens, told.last.finish, told.last.version) == (300, StopReason.STOP, 0)
        assert (cost.prefill_tokens, cost.decode_tokens, cost.cached_tokens) == (100, 300, 0)
        spent = cost.queued_s + cost.prefill_s + cost.decode_s
        assert spent == pytest.approx(now() - began)
        first = ROOFLINE.step_s(
            decoding=0, prefill_tokens=100, context_tokens=0, prefill_context=50
        )
        rest = ROOFLINE.step_s(decoding=1, prefill_tokens=0, context_tokens=250, prefill_context=0)
        assert spent == pytest.approx(first + 299 * rest, rel=1e-3)

    run_virtual(main)


def test_a_cut_off_answer_says_so_and_a_continued_one_gives_the_rest() -> None:
    async def main() -> None:
        one = await started(engine(workload=Answers(100)))
        short = add(one, request("short", tokens=40))
        rest = add(one, request("rest", tokens=500, offset=30))
        await short.ended.wait()
        await rest.ended.wait()
        assert (short.tokens, short.last.finish) == (40, StopReason.LENGTH)
        assert (rest.tokens, rest.last.finish) == (70, StopReason.STOP)

    run_virtual(main)


def test_a_session_that_returns_finds_its_share_of_the_prefix() -> None:
    async def main() -> None:
        one = await started(engine(workload=Answers(50, share=0.5)))
        first = add(one, request("one", session="s", prompt=150))
        await first.ended.wait()
        second = add(one, request("two", session="s", prompt=300))
        await second.ended.wait()
        assert second.last.cost is not None
        assert (second.last.cost.cached_tokens, second.last.cost.prefill_tokens) == (100, 200)
        one.release("s")
        third = add(one, request("three", session="s", prompt=400))
        await third.ended.wait()
        assert third.last.cost is not None
        assert third.last.cost.cached_tokens == 0

    run_virtual(main)


def test_a_busy_engine_is_never_silent_for_longer_than_its_heartbeat() -> None:
    async def main() -> None:
        settings = EngineSettings(heartbeat_s=20.0)
        one = await started(engine(settings=settings, workload=Answers(30_000)))
        told = [add(one, request(f"r{index}", tokens=30_000)) for index in range(3)]
        for each in told:
            await each.ended.wait()
        times = sorted(at for each in told for at, _ in each.deltas)
        assert times[-1] > 200
        assert all(after - before <= 20.0 + 1e-6 for before, after in pairwise([0.1, *times]))
        assert len(times) <= 3 + times[-1] / 20

    run_virtual(main)


def test_tokens_before_an_update_keep_the_version_that_sampled_them() -> None:
    async def main() -> None:
        one = await started(engine(settings=EngineSettings(), workload=Answers(400)))
        told = add(one, request())
        await asyncio.sleep(1.0)
        await one.pause()
        before = told.tokens
        assert 50 < before < 300
        await one.update(PolicyVersion("agent", 1))
        await one.resume()
        assert await one.rebuild_kv() == 100 + before
        assert await one.rebuild_kv() == 0
        await told.ended.wait()
        runs = [(delta.version, len(delta.ids)) for _, delta in told.deltas]
        assert runs == [(0, before), (1, 400 - before)]
        assert told.last.cost is not None
        assert told.last.cost.prefill_tokens == 100 + 100 + before

    run_virtual(main)


def test_a_request_that_can_never_fit_is_refused() -> None:
    async def main() -> None:
        one = await started(engine(workload=Answers(100)))
        most = ROOFLINE.kv_capacity_tokens
        fits = add(one, request("fits", prompt=most - 100))
        over = add(one, request("over", prompt=most - 99))
        await over.ended.wait()
        assert str(most) in (over.last.refused or "")
        gone = add(one, request("gone", prompt=most))
        await one.abort(["gone"])
        await fits.ended.wait()
        assert fits.tokens == 100
        assert gone.deltas == []

    run_virtual(main)


# -- weights -------------------------------------------------------------------------------------


def test_what_was_pulled_in_the_background_is_not_waited_for() -> None:
    """One engine pulls while versions are pushed; the other comes when all is there."""

    async def main() -> tuple[float, float]:
        model = ROOFLINE.model
        store = ModelledStore(model=model, settings=WeightSettings(), network=Network())
        one = engine(weights=store, workload=Answers(50))
        await store.push(0)
        await started(one)
        await store.push(1)
        began = now()
        await started(one, 1)
        background = now() - began
        await store.push(2)
        late = engine(weights=store, worker="late")
        began = now()
        await started(late, 2)
        return background, now() - began

    background, late = run_virtual(main)
    whole = ROOFLINE.model.weight_bytes
    settings = WeightSettings()
    assert late == pytest.approx(
        settings.pull.seconds(whole) + settings.install.seconds(whole), rel=0.05
    )
    assert background < late / 3


def test_a_failed_update_keeps_the_old_version_and_an_unpaused_one_is_an_error() -> None:
    async def main() -> None:
        one = await started(engine())
        with pytest.raises(RuntimeError, match="pause it first"):
            await one.update(PolicyVersion("agent", 1))
        await one.pause()
        with pytest.raises(WeightsMissing):
            await one.update(PolicyVersion("agent", 99))
        assert one.version == 0

    run_virtual(main)


# -- faults --------------------------------------------------------------------------------------


async def lost(what: Awaitable[object]) -> str:
    with pytest.raises(EngineLost) as caught:
        await what
    return caught.value.reason


def test_death_ends_what_waits_and_gives_what_was_streamed() -> None:
    async def main() -> None:
        weights = Weights(seconds=100.0)
        one = engine(settings=EngineSettings(), workload=Answers(400), weights=weights)
        told = add(one, request())
        await asyncio.sleep(1.0)
        await one.pause()
        updating = asyncio.ensure_future(lost(one.update(PolicyVersion("agent", 0))))
        await asyncio.sleep(1.0)
        before = told.tokens
        assert before > 0
        one.die("power")
        one.die("again")
        assert await updating == "power"
        assert await one.wait_dead() == "power"
        assert now() == pytest.approx(2.0, abs=0.1)
        assert weights.attached == []
        add(one, request("late"))
        await asyncio.sleep(100.0)
        assert told.tokens == before

    run_virtual(main)


def test_a_death_in_mid_iteration_tells_of_the_tokens_that_were_there() -> None:
    async def main() -> None:
        one = await started(engine(settings=EngineSettings(), workload=Answers(400)))
        told = add(one, request())
        await asyncio.sleep(1.0)
        assert told.deltas == []
        one.die("power")
        assert 50 < told.tokens < 300
        assert told.last.finish is None

    run_virtual(main)


def test_a_hung_engine_says_nothing_until_it_is_closed() -> None:
    async def main() -> None:
        one = await started(engine())
        told = add(one, request())
        one.hang()
        pausing = asyncio.ensure_future(lost(one.pause()))
        add(one, request("late"))
        await asyncio.sleep(1000.0)
        assert told.deltas == []
        assert not pausing.done()
        await one.close()
        assert await pausing == "closed"

    run_virtual(main)


def test_a_slow_engine_is_slow_by_the_factor() -> None:
    async def main() -> float:
        one = await started(engine(workload=Answers(500)))
        one.set_pace(4.0)
        began = now()
        await add(one, request()).ended.wait()
        slow = now() - began
        one.set_pace(1.0)
        began = now()
        await add(one, request("again", session="other")).ended.wait()
        with pytest.raises(ValueError, match="pace"):
            one.set_pace(0.0)
        return slow / (now() - began)

    assert run_virtual(main) == pytest.approx(4.0, rel=1e-6)


# -- busy times ----------------------------------------------------------------------------------


def test_busy_times_do_not_overlap_and_add_up() -> None:
    async def main() -> tuple[Events, float]:
        events = Events()
        one = await started(engine(events=events, workload=Answers(3000)))
        began = now()
        told = [add(one, request(f"r{index}", tokens=3000)) for index in range(20)]
        for each in told:
            await each.ended.wait()
        worked = now() - began
        await asyncio.sleep(50.0)
        await add(one, request("last")).ended.wait()
        worked += now() - began - worked - 50.0
        await one.close()
        return events, worked

    events, worked = run_virtual(main)
    busy = [event for event in events.busy() if event.work != "update"]
    assert all(one.end <= two.begin + 1e-9 for one, two in pairwise(busy))
    assert sum(event.end - event.begin for event in busy) == pytest.approx(worked)
    assert {event.work for event in busy} == {"prefill", "decode"}
    assert len(busy) <= 4 + 2 * worked / 30


def test_a_busy_log_tells_each_kind_of_a_window_once() -> None:
    events = Events()
    log = BusyLog("engine-0", "H800", events)
    at = 0.0
    while at < 29.5:
        log.add(Work.DECODE, at, at + 0.4)
        log.add(Work.MIXED, at + 0.4, at + 0.5)
        at += 0.5
    assert events.busy() == []
    log.add(Work.DECODE, 100.0, 101.0)
    log.flush()
    told = [(e.work, round(e.begin, 6), round(e.end, 6)) for e in events.busy()]
    assert told == [("decode", 0.0, 23.6), ("mixed", 23.6, 29.5), ("decode", 100.0, 101.0)]


# -- what cannot be ------------------------------------------------------------------------------


def test_settings_that_no_engine_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="most_running = 9000"):
        EngineSettings(most_running=9000)
    with pytest.raises(ConfigError, match="heartbeat_s = 0"):
        EngineSettings(heartbeat_s=0.0)


def test_a_model_that_does_not_fit_is_refused() -> None:
    async def main() -> None:
        roofline = Roofline(model=model_shape("Qwen3-235B-A22B"), gpu=gpu("H800"))
        with pytest.raises(ConfigError, match="does not fit"):
            engine(roofline=roofline)

    run_virtual(main)


def test_the_same_requests_are_told_at_the_same_times() -> None:
    async def main() -> Sequence[tuple[float, int]]:
        one = await started(engine(settings=EngineSettings()))
        told: list[Told] = []
        for index in range(60):
            told.append(add(one, request(f"r{index}", seed=index, prompt=50 + 7 * index)))
            await asyncio.sleep(0.013 * (index % 5))
        for each in told:
            await each.ended.wait()
        return [(at, len(delta.ids)) for each in told for at, delta in each.deltas]

    first = run_virtual(main)
    assert first == run_virtual(main)
    assert not math.isclose(first[0][0], first[-1][0])
