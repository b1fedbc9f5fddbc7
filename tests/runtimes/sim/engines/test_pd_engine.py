"""A prefill/decode group is one engine; of its KV no more crosses the link than is lacking."""

import asyncio
import math
import random

import numpy as np
import pytest

from rollart.core.events import DeviceBusy, Event
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Engine
from rollart.core.tokens import LengthOnly, TokenBlock
from rollart.core.types import GenerateRequest, RequestCost, TokenDelta
from rollart.runtimes.sim.engines.api import EngineSettings, Sampled, without_content
from rollart.runtimes.sim.engines.engine import ModelledEngine
from rollart.runtimes.sim.engines.pd_engine import PrefillDecode, prefill_decode_engine
from rollart.runtimes.sim.engines.seq import Seq
from rollart.runtimes.sim.engines.step_clock import StepClock
from rollart.runtimes.sim.hardware.catalogue import LinkClass, gpu, link
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.hardware.roofline import Roofline
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.conformance import EngineTrial, check_engine

MODEL = model_shape("Qwen3-8B")
COMPUTE = Roofline(model=MODEL, gpu=gpu("H800"))
BANDWIDTH = Roofline(model=MODEL, gpu=gpu("H20"))
SLOW = LinkClass(name="slow", latency_s=0.01, gb_s=0.1)


class Answers:
    def answer_tokens(self, session: str, seed: int) -> int:
        return 60 + seed % 30

    def cached_share(self, session: str) -> float:
        return 1.0


class Weights:
    def attach(self, engine: str) -> None:
        return

    def detach(self, engine: str) -> None:
        return

    async def pulled(self, engine: str, version: int) -> None:
        await asyncio.sleep(0.01)
        if version == 99:
            raise ValueError("no such version")


class Events:
    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)


def group_engine(
    *,
    prefill: int = 1,
    decode: int = 2,
    events: Events | None = None,
    content: Sampled = without_content,
    heartbeat_s: float = 0.02,
) -> ModelledEngine:
    return prefill_decode_engine(
        worker="engine-0",
        hardware="PD",
        prefill=[COMPUTE] * prefill,
        decode=[BANDWIDTH] * decode,
        link=link("infiniband-400"),
        workload=Answers(),
        weights=Weights(),
        events=events or Events(),
        settings=EngineSettings(heartbeat_s=heartbeat_s),
        content=content,
    )


def clocks(
    *, prefill: int = 1, decode: int = 1, over: LinkClass = SLOW, capacity: int = 100_000
) -> PrefillDecode:
    return PrefillDecode(
        prefill=[StepClock(COMPUTE, capacity=capacity) for _ in range(prefill)],
        decode=[StepClock(BANDWIDTH, capacity=capacity) for _ in range(decode)],
        link=over,
        kv_bytes=MODEL.kv_bytes_per_token,
    )


def seq(name: str, *, session: str = "", prompt: int = 1000, wanted: int = 100) -> Seq:
    return Seq(name=name, session=session or name, prompt=prompt, wanted=wanted)


def run_until(group: PrefillDecode, at: float) -> dict[str, float]:
    ended: dict[str, float] = {}
    while group.next_event_at <= at:
        now = group.next_event_at
        ended.update((whole.name, now) for whole in group.advance(now))
    return ended


def prefill_s(tokens: int) -> float:
    return COMPUTE.step_s(
        decoding=0, prefill_tokens=tokens, context_tokens=0, prefill_context=tokens / 2
    )


def decode_s(first: int, tokens: int) -> float:
    """One sequence from a context of `first` on."""
    return sum(
        BANDWIDTH.step_s(
            decoding=1, prefill_tokens=0, context_tokens=first + index, prefill_context=0
        )
        for index in range(tokens)
    )


def sent_s(tokens: int, over: LinkClass = SLOW) -> float:
    return over.seconds(tokens * MODEL.kv_bytes_per_token)


# -- as a port -----------------------------------------------------------------------------------


def numbers(
    request: GenerateRequest, before: int, count: int, kv_version: int
) -> tuple[TokenBlock, TokenBlock]:
    places = np.arange(count, dtype=np.int64) + request.offset + before
    ids = ((request.seed * 31 + places) % 97).astype(np.int32)
    return ids, np.full(count, -1.0 - kv_version / 64, np.float32)


def die(one: Engine) -> None:
    assert isinstance(one, ModelledEngine)
    one.die("killed")


@pytest.mark.parametrize(("prefill", "decode"), [(1, 3), (2, 2), (3, 1)])
def test_a_group_conforms_to_the_engine_port(prefill: int, decode: int) -> None:
    async def make() -> Engine:
        return group_engine(prefill=prefill, decode=decode, content=numbers)

    trial = EngineTrial(missing=PolicyVersion("agent", 99), kill=die, patience_s=60.0, quiet_s=5.0)
    run_virtual(lambda: check_engine(make, trial))


# -- the way of a request --------------------------------------------------------------------------


def test_a_request_is_prefilled_sent_and_decoded() -> None:
    group = clocks()
    one = seq("one")
    group.add(one, 0.0)
    ended = run_until(group, 100.0)["one"]
    expected = prefill_s(1000) + sent_s(1001) + decode_s(1001, 99)
    assert ended == pytest.approx(expected, rel=1e-6)
    cost = one.cost()
    assert (cost.prefill_tokens, cost.decode_tokens, cost.cached_tokens) == (1000, 100, 0)
    assert cost.queued_s + cost.prefill_s + cost.decode_s == pytest.approx(ended)
    assert cost.decode_s == pytest.approx(decode_s(1001, 99))


def test_the_next_turn_computes_the_answer_again_and_sends_only_what_is_new() -> None:
    group = clocks()
    group.add(seq("one", session="s"), 0.0)
    run_until(group, 100.0)
    assert group.sent_tokens == 1001
    two = seq("two", session="s", prompt=1000 + 100 + 300)
    group.add(two, 100.0)
    run_until(group, 200.0)
    assert (two.cached, two.prefilled) == (1001, 399)
    assert group.sent_tokens == 1001 + 1401 - 1100


def test_a_released_session_is_sent_whole_again() -> None:
    group = clocks()
    group.add(seq("one", session="s"), 0.0)
    run_until(group, 100.0)
    group.release("s")
    group.add(seq("two", session="s"), 100.0)
    run_until(group, 200.0)
    assert group.sent_tokens == 2 * 1001


def test_transfers_to_one_worker_come_one_after_another() -> None:
    group = clocks()
    for name in ("one", "two"):
        group.add(seq(name, wanted=2), 0.0)
    ended = run_until(group, 100.0)
    apart = ended["two"] - ended["one"]
    assert apart == pytest.approx(1001 * MODEL.kv_bytes_per_token / 0.1e9, rel=0.01)


def test_new_sessions_go_to_the_worker_with_least_to_do_and_old_ones_home() -> None:
    group = clocks(prefill=2, decode=2)
    for name in ("a", "b", "c", "d"):
        group.add(seq(name), 0.0)
    run_until(group, 1000.0)
    before = group.sent_tokens
    for name in ("d", "c", "b", "a"):
        group.add(seq(f"{name}2", session=name, prompt=1200), 1000.0)
    run_until(group, 2000.0)
    assert group.sent_tokens - before == 4 * (1201 - 1100)


def test_an_answer_of_one_token_is_not_sent() -> None:
    group = clocks()
    group.add(seq("one", wanted=1), 0.0)
    assert run_until(group, 100.0)["one"] == pytest.approx(prefill_s(1000))
    assert group.sent_tokens == 0


@pytest.mark.parametrize("after_s", [0.001, 0.5, 1.2])
def test_an_abort_lets_go_in_prefill_on_the_link_and_in_decode(after_s: float) -> None:
    group = clocks(over=SLOW)
    group.add(seq("doomed", prompt=500, wanted=400), 0.0)
    group.add(seq("other", prompt=500), 0.0)
    assert run_until(group, after_s) == {}
    at = group.abort(["doomed", "unknown"], after_s)
    assert after_s <= at < after_s + 0.1
    assert set(run_until(group, 100.0)) == {"other"}


@pytest.mark.parametrize("after_s", [0.001, 0.5, 2.0])
def test_after_an_update_everything_is_prefilled_anew(after_s: float) -> None:
    group = clocks(over=SLOW)
    names = [f"r{index}" for index in range(2)]
    seqs = [seq(name, prompt=500, wanted=400) for name in names]
    for one in seqs:
        group.add(one, 0.0)
    run_until(group, after_s)
    at = group.stop(after_s)
    assert run_until(group, at) == {}
    assert group.stopped
    before = sum(group.sampled(one, at) for one in seqs)
    had = sum(one.prompt for one in seqs)
    rebuilt = group.renew(1, at, keep=False)
    assert rebuilt == had + before
    group.start(at)
    assert set(run_until(group, 1000.0)) == set(names)
    assert [one.sampled for one in seqs] == [400, 400]
    assert sum(one.prefilled for one in seqs) == had + rebuilt
    assert {one.kv_version for one in seqs} == {1}


def test_kept_kv_is_decoded_on() -> None:
    group = clocks(over=SLOW)
    one = seq("one", prompt=500, wanted=400)
    group.add(one, 0.0)
    run_until(group, 2.0)
    run_until(group, group.stop(2.0))
    assert group.renew(1, 3.0, keep=True) == 0
    group.start(3.0)
    run_until(group, 100.0)
    assert (one.prefilled, one.sampled) == (500, 400)


# -- as an engine ----------------------------------------------------------------------------------


def test_its_devices_are_told_apart_by_phase() -> None:
    async def main() -> tuple[Events, RequestCost | None]:
        events = Events()
        one = group_engine(events=events, heartbeat_s=20.0)
        await one.pause()
        await one.update(PolicyVersion("agent", 0))
        await one.resume()
        ended = asyncio.Event()
        costs: list[RequestCost | None] = []

        def sink(delta: TokenDelta) -> None:
            costs.append(delta.cost)
            ended.set()

        one.add(
            GenerateRequest(
                id="r",
                session="s",
                prompt=(LengthOnly(5000),),
                max_tokens=500,
                temperature=1.0,
                seed=3,
            ),
            sink,
        )
        await ended.wait()
        await one.close()
        return events, costs[-1]

    events, cost = run_virtual(main)
    busy = [event for event in events.seen if isinstance(event, DeviceBusy)]
    worked = {(event.device, event.hardware, event.work) for event in busy}
    assert worked == {
        ("engine-0/prefill-0", "H800", "prefill"),
        ("engine-0/decode-0", "H20", "decode"),
    }
    assert cost is not None
    assert cost.decode_tokens == 63


def test_a_group_without_both_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="needs both"):
        PrefillDecode(prefill=[], decode=[], link=SLOW, kv_bytes=1.0)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_comes_between_every_request_ends_whole_or_aborted(seed: int) -> None:
    """Crowded workers, so that they preempt too; stops with new weights; aborts anywhere."""
    rng = random.Random(seed)
    link_ = rng.choice([SLOW, link("infiniband-400")])
    group = clocks(prefill=rng.randint(1, 3), decode=rng.randint(1, 3), over=link_, capacity=3000)
    asked: dict[str, Seq] = {}
    aborted: set[str] = set()
    ended: dict[str, float] = {}
    at = 0.0
    for step in range(120):
        at += rng.expovariate(5.0)
        ended |= run_until(group, at)
        chance = rng.random()
        if chance < 0.6:
            one = seq(
                f"r{step}",
                session=f"s{rng.randrange(8)}",
                prompt=rng.randint(1, 1000),
                wanted=rng.randint(1, 300),
            )
            asked[one.name] = one
            group.add(one, at)
        elif chance < 0.75 and asked:
            name = rng.choice(list(asked))
            group.abort([name], at)
            if name not in ended:
                aborted.add(name)
        elif chance < 0.85:
            group.release(f"s{rng.randrange(8)}")
        else:
            still = group.stop(at)
            ended |= run_until(group, still)
            at = still + rng.uniform(0.0, 1.0)
            ended |= run_until(group, at)
            if rng.random() < 0.7:
                group.renew(step, at, keep=rng.random() < 0.3)
            group.start(at)
    ended |= run_until(group, 1e6)
    assert group.next_event_at == math.inf
    assert ended.keys() | aborted == asked.keys()
    assert not ended.keys() & aborted
    assert all(asked[name].sampled == asked[name].wanted for name in ended)
    assert sum(asked[name].prefilled + asked[name].cached for name in ended) >= sum(
        asked[name].prompt for name in ended
    )
