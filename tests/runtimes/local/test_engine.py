"""An engine in a child, against full forward passes of the same model in this process."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from rollart.core.errors import EngineLost, WeightsMissing, WeightSyncFailed
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, WeightTensor
from rollart.core.tokens import Prompt, TokenBlock
from rollart.core.types import GenerateRequest, RequestCost, StopReason, TokenDelta
from rollart.runtimes.local.engine import LocalEngine
from rollart.runtimes.local.launcher import weights_root

pytestmark = pytest.mark.real

TOLERANCE = 1e-4


@dataclass(slots=True)
class Answer:
    """What came back for one request."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish: StopReason | None = None
    refused: str | None = None
    cost: RequestCost | None = None
    deltas: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, delta: TokenDelta) -> None:
        self.ids += np.asarray(delta.ids).tolist() if len(delta.ids) else []
        self.logprobs += np.asarray(delta.logprobs).tolist() if len(delta.logprobs) else []
        self.versions += [delta.version] * len(delta.ids)
        self.finish, self.refused, self.cost = delta.finish, delta.refused, delta.cost
        self.deltas += 1
        self.changed.set()

    async def until(self, enough: Callable[["Answer"], bool]) -> "Answer":
        async with asyncio.timeout(30):
            while not enough(self):
                self.changed.clear()
                await self.changed.wait()
        return self

    async def whole(self) -> "Answer":
        return await self.until(lambda answer: answer.finish is not None)


def block(*ids: int) -> TokenBlock:
    return np.array(ids, np.int32)


def ask(
    engine: LocalEngine,
    name: str,
    prompt: Prompt,
    *,
    session: str = "",
    max_tokens: int = 8,
    temperature: float = 1.0,
) -> Answer:
    answer = Answer()
    request = GenerateRequest(
        id=name,
        session=session or name,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=7,
    )
    engine.add(request, answer.take)
    return answer


class Reference:
    """The model in this process."""

    def __init__(self, folder, change: float = 0.0) -> None:
        import torch
        from transformers import Qwen3ForCausalLM

        self._torch = torch
        self.model = Qwen3ForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.0 + change)

    def logprobs(self, prompt: list[int], sampled: list[int], temperature: float) -> list[float]:
        torch = self._torch
        ids = torch.tensor([[*prompt, *sampled]])
        with torch.no_grad():
            logits = self.model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])
        return chosen[:, 0].tolist()

    def tensors(self) -> list[WeightTensor]:
        return [
            WeightTensor(
                name=name,
                shape=tuple(tensor.shape),
                dtype="float32",
                data=tensor.contiguous().view(-1).view(self._torch.uint8).numpy(),
            )
            for name, tensor in self.model.state_dict().items()
        ]


@pytest.fixture(scope="module")
def engine(stage) -> LocalEngine:
    return stage.run(stage.launcher.engine(Binding(worker="engine-0", hardware="local")))


@pytest.fixture(scope="module")
def reference(tiny_model) -> Reference:
    return Reference(tiny_model)


@pytest.fixture
def publish(stage, tmp_path_factory):
    from rollart.backends.weights.shm import SharedMemoryWeightStore

    launcher = stage.launcher
    store = SharedMemoryWeightStore(weights_root(launcher.run_directory), launcher.run_id)
    yield lambda number, tensors: store.publish(PolicyVersion("agent", number), tensors)
    store.close()


def let_frames_pile_up() -> None:
    """Keep the loop from reading while the engine goes on."""
    time.sleep(0.3)


def near(found: list[float], expected: list[float]) -> bool:
    return len(found) == len(expected) and bool(
        np.max(np.abs(np.array(found) - np.array(expected))) < TOLERANCE
    )


def test_log_probs_are_those_of_a_full_forward_pass(stage, engine, reference):
    async def main():
        asked = {
            name: (prompt, ask(engine, name, (block(*prompt),), temperature=0.8))
            for name, prompt in {"a": [5, 6, 7], "b": [9], "c": list(range(4, 40))}.items()
        }
        for prompt, answer in asked.values():
            await answer.whole()
            assert near(answer.logprobs, reference.logprobs(prompt, answer.ids, 0.8))
            assert set(answer.versions) == {0}
            assert answer.finish is (StopReason.STOP if answer.ids[-1] == 0 else StopReason.LENGTH)
            assert answer.cost is not None
            assert answer.cost.decode_tokens == len(answer.ids)

    stage.run(main())


def test_a_later_turn_sends_the_new_tokens_only_and_means_the_whole_prompt(
    stage, engine, reference
):
    async def main():
        first = block(*range(4, 40))
        one = await ask(engine, "s1", (first,), session="s", max_tokens=3).whole()
        second = (first, block(*one.ids), block(20, 21, 22))
        sent = engine.sent_bytes
        two = await ask(engine, "s2", second, session="s", max_tokens=4).whole()
        assert engine.sent_bytes - sent == 4 * (len(one.ids) + 3)
        prompt = np.concatenate([np.asarray(part) for part in second]).tolist()
        assert near(two.logprobs, reference.logprobs(prompt, two.ids, 1.0))
        assert two.cost is not None
        assert two.cost.cached_tokens >= 36

        rewritten = (block(*range(24, 40)), second[2])
        three = await ask(engine, "s3", rewritten, session="s", max_tokens=4).whole()
        prompt = np.concatenate([np.asarray(part) for part in rewritten]).tolist()
        assert near(three.logprobs, reference.logprobs(prompt, three.ids, 1.0))

        engine.release("s")
        sent = engine.sent_bytes
        four = await ask(engine, "s4", rewritten, session="s", max_tokens=4).whole()
        assert engine.sent_bytes - sent == 4 * (16 + 3), "nothing is known any more"
        assert four.ids == three.ids
        engine.release("s")

    stage.run(main())


def test_a_request_that_can_never_be_served_is_refused_and_the_engine_goes_on(stage, engine):
    async def main():
        too_long = ask(engine, "long", (block(*([5] * 255)),), max_tokens=8)
        await too_long.until(lambda answer: answer.refused is not None)
        assert "exceeds the context of 256" in str(too_long.refused)
        assert (await ask(engine, "fine", (block(5),), max_tokens=2).whole()).ids

    stage.run(main())


def test_after_abort_has_been_called_nothing_more_comes(stage, engine):
    async def main():
        names = [f"dropped{number}" for number in range(10)]
        dropped = [
            ask(engine, name, (block(5, number),), max_tokens=200, temperature=5.0)
            for number, name in enumerate(names, 10)
        ]
        kept = ask(engine, "kept", (block(5, 6),), session="kept", max_tokens=24)
        for answer in dropped:
            await answer.until(lambda one: one.deltas > 0)
        running = [answer for answer in dropped if answer.finish is None]
        assert running
        let_frames_pile_up()
        aborting = asyncio.create_task(engine.abort([*names, "unknown"]))
        await asyncio.sleep(0)
        seen = [answer.deltas for answer in running]
        await aborting
        await kept.whole()
        assert [answer.deltas for answer in running] == seen

    stage.run(main())


def test_while_paused_nothing_is_sampled_and_requests_stay(stage, engine):
    async def main():
        answer = ask(engine, "paused", (block(7, 8),), max_tokens=40)
        await answer.until(lambda one: one.deltas > 0)
        await engine.pause()
        seen = len(answer.ids)
        late = ask(engine, "late", (block(9),), max_tokens=2)
        await asyncio.sleep(0.2)
        assert (len(answer.ids), late.deltas) == (seen, 0)
        await engine.resume()
        await answer.whole()
        await late.whole()

    stage.run(main())


def test_an_update_in_mid_generation_splits_versions_and_both_log_probs_are_right(
    stage, engine, reference, publish, tiny_model
):
    changed = Reference(tiny_model, change=0.05)
    publish(1, changed.tensors())

    async def main():
        prompt = [11, 12, 13]
        answer = ask(engine, "two-versions", (block(*prompt),), max_tokens=120, temperature=2.0)
        await answer.until(lambda one: len(one.ids) >= 3 or one.finish is not None)
        await engine.pause()
        await engine.update(PolicyVersion("agent", 1))
        rebuilt = await engine.rebuild_kv()
        await engine.resume()
        await answer.whole()
        old = answer.versions.count(0)
        assert answer.versions == [0] * old + [1] * (len(answer.ids) - old)
        assert 3 <= old < len(answer.ids)
        assert rebuilt >= len(prompt)
        before = reference.logprobs(prompt, answer.ids[:old], 2.0)
        after = changed.logprobs([*prompt, *answer.ids[:old]], answer.ids[old:], 2.0)
        assert near(answer.logprobs, before + after)
        stale = reference.logprobs([*prompt, *answer.ids[:old]], answer.ids[old:], 2.0)
        assert not near(answer.logprobs, before + stale), "the change would not have been seen"

    stage.run(main())


def test_a_version_that_is_missing_or_does_not_fit_leaves_the_old_one_whole(
    stage, engine, publish, tiny_model
):
    changed = Reference(tiny_model, change=0.05)  # what version 1 is
    publish(7, changed.tensors()[:3])

    async def main():
        await engine.pause()
        with pytest.raises(WeightsMissing, match="agent@99"):
            await engine.update(PolicyVersion("agent", 99))
        with pytest.raises(WeightSyncFailed, match=r"WeightsRejected.*missing"):
            await engine.update(PolicyVersion("agent", 7))
        await engine.resume()
        with pytest.raises(WeightSyncFailed, match="pause the engine first"):
            await engine.update(PolicyVersion("agent", 1))
        answer = await ask(engine, "after", (block(5, 6),), max_tokens=6).whole()
        assert set(answer.versions) == {1}
        assert near(answer.logprobs, changed.logprobs([5, 6], answer.ids, 1.0))

    stage.run(main())


def test_busy_intervals_arrive_in_order_and_merged(stage, engine):
    async def main():
        await asyncio.sleep(1.2)  # what the tests before left is told by now
        loop = asyncio.get_running_loop()
        began = loop.time()
        stage.events.seen.clear()
        answers = [ask(engine, f"busy{n}", (block(5, n),), max_tokens=100) for n in range(4, 10)]
        for answer in answers:
            await answer.whole()
        await asyncio.sleep(1.2)
        found = stage.events.busy("engine-0")
        assert found
        assert all(began <= one.begin <= one.end <= loop.time() for one in found)
        assert all(a.end <= b.begin for a, b in itertools.pairwise(found))
        assert {one.work for one in found} <= {"prefill", "decode", "mixed", "rebuild", "update"}
        assert len(found) < 60, "about six hundred steps' worth of tokens in merged records"

    stage.run(main())


def test_a_killed_engine_is_noticed_at_once_and_every_wait_ends(stage):
    async def main():
        engine = await stage.launcher.engine(Binding(worker="engine-1", hardware="local"))
        answer = ask(engine, "lost", (block(5, 6),), max_tokens=200)
        await answer.until(lambda one: one.deltas > 0)
        dead = asyncio.create_task(engine.wait_dead())
        os.kill(engine.pid, signal.SIGSTOP)
        pausing = asyncio.create_task(engine.pause())
        await asyncio.sleep(0.1)
        assert not dead.done()
        os.kill(engine.pid, signal.SIGKILL)
        async with asyncio.timeout(3):
            assert "SIGKILL" in await dead
            with pytest.raises(EngineLost, match="engine-1 is lost"):
                await pausing
        seen = answer.deltas
        with pytest.raises(EngineLost):
            await engine.resume()
        ask(engine, "nobody", (block(5),))
        engine.release("nobody")
        await engine.close()
        assert answer.deltas == seen

    stage.run(main())
