"""LLMProxy: routing, continuation, budgets, suspension, aborts."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollart.control.llm_proxy import Answer
from rollart.core.errors import TokenMismatch, TrajectoryFailure
from rollart.core.events import LateResult
from rollart.core.identity import PolicyVersion, derive_seed, request_seed, request_seeds
from rollart.core.ports import Affinity, Binding, DeltaSink, Engine
from rollart.core.types import GenerateRequest, StopReason, TokenDelta
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.engine import ScriptedEngine
from rollart.testing.parts import ScriptedLauncher
from rollart.testing.rig import ProxyRig, identity, proxy_rig
from rollart.testing.script import Script

LONG = Script(tokens_per_turn=(40, 40), token_s=(1.0, 1.0), update_s=(0.5, 0.5))
"""One token a second, and more of them than any test asks for."""


def tokens_of(answer: Answer) -> list[int]:
    return np.asarray(answer.completion.ids).tolist()


def versions_of(answer: Answer) -> list[int]:
    return answer.completion.versions.expand()


async def give_up(task: "asyncio.Task[Answer]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def launching(kind: type[ScriptedEngine], script: Script = LONG) -> ScriptedLauncher:
    """A launcher of engines of one kind."""

    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            self.engines.append(kind(binding.worker, script, hardware=binding.hardware))
            return self.engines[-1]

    return Launches(script)


def test_a_weight_update_in_mid_generation_leaves_each_token_its_own_version() -> None:
    async def main() -> None:
        async with proxy_rig(LONG) as rig:
            for number in (1, 2, 3):
                await rig.update(number)
            started: list[int] = []
            asked = rig.ask(tokens=5, on_start=started.append)
            await asyncio.sleep(2.5)
            await rig.update(4)
            assert versions_of(await asked) == [3, 3, 4, 4, 4]
            assert started == [3]

    run_virtual(main)


def test_an_engine_lost_in_mid_request_costs_none_of_its_tokens() -> None:
    async def main() -> None:
        async with proxy_rig(LONG, engines=2) as rig:
            undisturbed = await rig.ask(member=1, tokens=10)
            asked = rig.ask(member=1, tokens=10)
            await asyncio.sleep(6.5)
            rig.engines[0].die("killed")
            answer = await asked
            assert tokens_of(answer) == tokens_of(undisturbed)
            assert (answer.interruptions, answer.completion.engine) == (1, "engine-1")

    run_virtual(main)


def test_a_continued_request_asks_only_for_what_is_left_of_its_budget() -> None:
    requests: list[GenerateRequest] = []

    class Records(ScriptedEngine):
        def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
            requests.append(request)
            super().add(request, sink)

    async def main() -> None:
        async with proxy_rig(engines=3, context=16, launcher=launching(Records)) as rig:
            asked = rig.ask(tokens=10)
            for engine, pause in zip(range(3), (6.5, 2.5, 1.5), strict=True):
                await asyncio.sleep(pause)
                if not asked.done():
                    rig.engines[engine].die("killed")
            answer = await asked
            assert len(answer.completion.ids) == 10
            assert answer.completion.stop is StopReason.LENGTH

    run_virtual(main)
    assert [(r.max_tokens, r.offset, r.prompt_tokens) for r in requests] == [
        (10, 0, 4),
        (4, 6, 10),
        (2, 8, 12),
    ]
    assert len({request.seed for request in requests}) == 1


def test_two_requests_of_one_turn_are_told_apart() -> None:
    async def main() -> None:
        names: list[str] = []

        class Records(ScriptedEngine):
            def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
                names.append(request.id)
                super().add(request, sink)

        async with proxy_rig(engines=2, launcher=launching(Records)) as rig:
            first, second = rig.ask(tokens=10), rig.ask(tokens=10)
            await asyncio.sleep(2.5)
            rig.engines[0].die("killed")
            await asyncio.sleep(1.0)
            await give_up(first)
            third = rig.ask(tokens=10)
            assert (await second).interruptions == 1
            assert (await third).interruptions == 0
            assert len((await third).completion.ids) == 10
            await rig.ask(turn=1, tokens=1)
        assert len(set(names)) == len(names) == 6
        assert names[-1].endswith("/t1#1"), "a turn counts from one"

    run_virtual(main)


class SaysTheEndApart(ScriptedEngine):
    """Sends the end of a request a second after its last token."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        def apart(delta: TokenDelta) -> None:
            sink(replace(delta, finish=None, cost=None))
            if delta.finish is not None:
                nothing = np.zeros(0, np.int32)
                end = replace(delta, ids=nothing, logprobs=nothing.astype(np.float32))
                asyncio.get_running_loop().call_later(1.0, sink, end)

        super().add(request, apart)


def test_a_request_whose_budget_is_used_up_is_not_sent_again() -> None:
    async def main() -> None:
        async with proxy_rig(engines=2, launcher=launching(SaysTheEndApart)) as rig:
            asked = rig.ask(tokens=3)
            await asyncio.sleep(3.5)
            rig.engines[0].die("killed")
            answer = await asked
            assert len(answer.completion.ids) == 3
            assert answer.completion.stop is StopReason.LENGTH
            assert not any(call.startswith("add") for call in rig.engines[1].log.calls)

    run_virtual(main)


def test_a_budget_shrinks_to_what_the_context_leaves_and_the_prompt_is_kept_whole() -> None:
    requests: list[GenerateRequest] = []

    class Records(ScriptedEngine):
        def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
            requests.append(request)
            super().add(request, sink)

    quick = Script(tokens_per_turn=(500, 500), token_s=(0.001, 0.001))

    async def main() -> None:
        async with proxy_rig(context=512, launcher=launching(Records, quick)) as rig:
            answer = await rig.ask(prompt=300, tokens=400)
            assert answer.completion.stop is StopReason.LENGTH
            full = await rig.ask(member=1, prompt=600, tokens=400)
            assert full.completion.stop is StopReason.CONTEXT
            assert len(full.completion.ids) == 0

    run_virtual(main)
    assert [(r.prompt_tokens, r.max_tokens) for r in requests] == [(300, 212)]


def test_a_cancelled_request_has_left_its_engine_when_the_cancellation_returns() -> None:
    class AbortsInASecond(ScriptedEngine):
        async def abort(self, request_ids: Sequence[str]) -> None:
            await asyncio.sleep(1.0)
            await super().abort(request_ids)

    async def main() -> None:
        async with proxy_rig(launcher=launching(AbortsInASecond)) as rig:
            asked = rig.ask()
            await asyncio.sleep(2.5)
            assert rig.engines[0].live_requests == 1
            await give_up(asked)
            assert rig.engines[0].live_requests == 0
            assert asyncio.get_running_loop().time() == pytest.approx(4.0)

    run_virtual(main)


def test_a_cancelled_request_that_waits_is_forgotten() -> None:
    async def main() -> None:
        async with proxy_rig(LONG) as rig:
            await rig.proxy.suspend()
            asked = rig.ask()
            await asyncio.sleep(1)
            assert rig.proxy.waiting == 1
            await give_up(asked)
            await rig.proxy.resume()
            await asyncio.sleep(1)
            assert (rig.proxy.waiting, rig.engines[0].live_requests) == (0, 0)

    run_virtual(main)


def test_nothing_is_sent_while_suspended_and_what_waited_starts_under_the_new_version() -> None:
    async def main() -> None:
        async with proxy_rig(LONG, engines=2) as rig:
            await rig.proxy.suspend()
            started: list[int] = []
            asked = [rig.ask(member, tokens=2, on_start=started.append) for member in range(4)]
            await asyncio.sleep(5)
            await rig.fleet.update(PolicyVersion("agent", 1))
            assert not started
            await rig.proxy.resume()
            answers = [await one for one in asked]
            assert started == [1] * 4
            assert all(versions_of(answer) == [1, 1] for answer in answers)
            assert all(answer.queued_s == pytest.approx(5.5) for answer in answers)

    run_virtual(main)


def test_turns_of_a_trajectory_stay_with_the_engine_that_holds_its_prefix() -> None:
    async def main() -> None:
        async with proxy_rig(LONG, engines=3) as rig:
            first = await rig.ask(member=0, tokens=1)
            crowd = [rig.ask(member, tokens=5) for member in range(1, 7)]
            await asyncio.sleep(0.5)
            again = await rig.ask(member=0, turn=1, tokens=1)
            assert first.completion.engine == again.completion.engine == "engine-0"
            for one in crowd:
                await one

    run_virtual(main)


def test_a_domain_goes_to_its_hardware_and_elsewhere_when_that_is_gone() -> None:
    affinity = Affinity(by_domain={"lake": "fast"}, default="slow")

    async def main() -> None:
        async with proxy_rig(LONG, engines=2, hardware=("slow", "fast"), affinity=affinity) as rig:
            lake = await rig.ask(0, domain="lake", tokens=1)
            other = await rig.ask(1, domain="maze", tokens=1)
            assert (lake.completion.engine, other.completion.engine) == ("engine-1", "engine-0")
            asked = rig.ask(2, domain="lake", tokens=3)
            await asyncio.sleep(1.5)
            rig.engines[1].die("killed")
            assert (await asked).completion.engine == "engine-0"

    run_virtual(main)


class OneLogprobTooMany(ScriptedEngine):
    """Its third delta has a log-prob more than ids."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        seen: list[TokenDelta] = []

        def padded(delta: TokenDelta) -> None:
            seen.append(delta)
            if len(seen) == 3:
                delta = TokenDelta(
                    request_id=delta.request_id,
                    ids=delta.ids,
                    logprobs=np.zeros(2, np.float32),
                    version=delta.version,
                )
            sink(delta)

        super().add(request, padded)


def test_an_answer_of_two_lengths_is_refused_with_both_and_never_padded() -> None:
    async def main() -> None:
        async with proxy_rig(launcher=launching(OneLogprobTooMany)) as rig:
            with pytest.raises(TokenMismatch) as caught:
                await rig.ask()
            assert (caught.value.ids, caught.value.logprobs) == (1, 2)
            assert caught.value.request_id in str(caught.value)
            assert rig.engines[0].live_requests == 0

    run_virtual(main)


def test_a_request_that_an_engine_refuses_fails_alone_and_in_its_words() -> None:
    async def main() -> None:
        async with proxy_rig(LONG) as rig:
            good = rig.ask(1, tokens=2)
            with pytest.raises(TrajectoryFailure, match="engine-0: prompt of 0 tokens"):
                await rig.ask(prompt=0)
            assert len((await good).completion.ids) == 2

    run_virtual(main)


class SpeaksAfterDeath(ScriptedEngine):
    """Delivers each delta three seconds late, also after its death."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        super().add(request, lambda d: asyncio.get_running_loop().call_later(3.0, sink, d) and None)


def test_deltas_of_an_engine_that_was_given_up_change_nothing() -> None:
    async def main() -> None:
        async with proxy_rig(engines=2, launcher=launching(SpeaksAfterDeath)) as rig:
            asked = rig.ask(tokens=4)
            await asyncio.sleep(3.5)
            rig.engines[0].die("killed")
            answer = await asked
            assert tokens_of(answer) == [1, 2, 3, 4]
            assert [late.what for late in rig.events.of(LateResult)] == ["tokens"] * 3

    run_virtual(main)


class ListsReleases(ScriptedEngine):
    """Keeps the sessions that it was told to forget."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.released: list[str] = []

    def release(self, session: str) -> None:
        super().release(session)
        self.released.append(session)


def test_the_engine_that_holds_a_prefix_is_told_when_the_trajectory_is_over() -> None:
    async def main() -> None:
        async with proxy_rig(engines=2, launcher=launching(ListsReleases)) as rig:
            await rig.ask(tokens=1)
            rig.proxy.release(identity())
            rig.proxy.release(identity())
            assert released(rig) == [[identity().session], []]

    run_virtual(main)


def test_a_trajectory_that_moves_leaves_no_prefix_behind() -> None:
    script = replace(LONG, update_failures=(("engine-0", 2),))

    async def main() -> None:
        async with proxy_rig(engines=2, launcher=launching(ListsReleases, script)) as rig:
            assert (await rig.ask(tokens=1)).completion.engine == "engine-0"
            await rig.update(1)
            assert (await rig.ask(turn=1, tokens=1)).completion.engine == "engine-1"
            assert released(rig) == [[identity().session], []]

    run_virtual(main)


def released(rig: ProxyRig) -> list[list[str]]:
    return [engine.released for engine in rig.engines if isinstance(engine, ListsReleases)]


def test_requests_that_wait_are_served_first_come_first_served() -> None:
    async def main() -> None:
        async with proxy_rig(LONG) as rig:
            await rig.proxy.suspend()
            order: list[int] = []
            asked = [
                rig.ask(member, tokens=1, on_start=lambda _, m=member: order.append(m))
                for member in range(5)
            ]
            await asyncio.sleep(1)
            await rig.proxy.resume()
            for one in asked:
                await one
            assert order == [0, 1, 2, 3, 4]

    run_virtual(main)


def test_a_group_of_eight_on_four_engines_has_eight_seeds_and_another_attempt_has_more() -> None:
    group = [replace(identity(), member=member) for member in range(8)]
    again = [replace(one, attempt=1) for one in group]
    later = [replace(one, group=1) for one in group]
    seeds = {request_seed(one, run_seed=0, turn=0) for one in (*group, *again, *later)}
    assert len(seeds) == 24
    assert len({request_seed(group[0], run_seed=0, turn=turn) for turn in range(8)}) == 8
    by_turn = request_seeds(group[0], run_seed=0)
    assert [by_turn(turn) for turn in (7, 0)] == [
        derive_seed(0, "train", "lake", "task-0", 0, 0, 0, turn) for turn in (7, 0)
    ]
