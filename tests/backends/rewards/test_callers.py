"""Callers are opened as their places say, and end with whoever opened them."""

import asyncio
from pathlib import Path

import pytest

from rollart.backends.rewards.addresses import HOSTS
from rollart.backends.rewards.callers import Callers, most_calls
from rollart.backends.rewards.calling.records import PlatformState
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.core.errors import ConfigError
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.places import RewardPlace, reward_place
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer
from rollart.testing.platform import Act, ScriptedPlatform, told_document


def scripted(name: str) -> ScriptedPlatform[PlatformLimits]:
    limits = PlatformLimits(name=name, body_bytes=1 << 20)

    def fault(kind: str, reason: str, retry_after_s: float | None) -> PlatformFault:
        return PlatformFault(Fault(kind), reason, retry_after_s=retry_after_s)

    return ScriptedPlatform(limits, fault, lambda n, now, request: Act(seconds=0.01))


def opening(**environment: str) -> Callers:
    states: list[PlatformState] = []
    return Callers(environment=environment, on_state=states.append)


def test_the_operators_list_of_hosts_holds_for_every_place() -> None:
    async def main() -> None:
        callers = opening(**{HOSTS: "judge.example"})
        with pytest.raises(ConfigError, match=HOSTS) as refused:
            callers.open(reward_place("http://127.0.0.1:9/?code=SECRET"))
        assert "SECRET" not in str(refused.value)
        await callers.close()

    asyncio.run(main())


def test_a_place_says_how_many_calls_are_under_way_at_once() -> None:
    assert most_calls(reward_place("https://h/x")) == 64
    assert most_calls(reward_place("https://h/x?concurrency=3")) == 3
    assert most_calls(reward_place("local://judge:score")) == 8

    async def main() -> None:
        platform, callers = scripted("one"), opening()
        caller = callers.open(RewardPlace(platform="local://a:b", concurrency=2), local=platform)
        asked = (
            caller.score(told_document(f"{number}"), identity=f"{number}", seconds=30)
            for number in range(6)
        )
        await asyncio.gather(*asked)
        assert platform.seen.most == 2
        await callers.close()

    asyncio.run(main())


def test_functions_of_one_platform_share_its_limits() -> None:
    async def main() -> None:
        platforms, callers = [scripted("one"), scripted("one")], opening()
        both = [
            callers.open(RewardPlace(platform=f"local://a:{n}", concurrency=1), local=platform)
            for n, platform in enumerate(platforms)
        ]
        asked = (
            caller.score(told_document(f"{number}"), identity=f"{number}", seconds=30)
            for number in range(3)
            for caller in both
        )
        await asyncio.gather(*asked)
        assert [len(platform.seen.requests) for platform in platforms] == [3, 3]
        assert [platform.seen.most for platform in platforms] == [1, 1]
        await callers.close()

    asyncio.run(main())


def test_all_platforms_are_closed_fallbacks_included() -> None:
    async def main() -> None:
        first, second, third = (scripted(name) for name in "abc")
        callers = opening()
        last = callers.open(RewardPlace(platform="local://a:b"), local=first)
        callers.open(RewardPlace(platform="local://a:c"), local=second, fallback=last)
        callers.open(RewardPlace(platform="local://a:d"), local=third)
        await callers.close()
        assert [platform.closed for platform in (first, second, third)] == [True] * 3

    asyncio.run(main())


def test_a_call_is_told_by_what_may_be_shown_and_large_documents_lie_in_the_store(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    async def main() -> None:
        store = tmp_path.as_uri()
        handler = Handler(lambda trajectory: 0.5, path="judge:score", version="v1", store=store)

        async def answer(request: HttpRequest) -> HttpReply:
            asked.append(request.path)
            return HttpReply(body=handler.handle(request.body))

        async with LoopbackServer(answer) as server:
            callers = opening()
            url = f"{server.url}/score?code=SECRET&limit=2000"
            document = told_document("t", text="x" * 5000)
            for place, score in ((f"{url}&store={store}", 0.5), (url, None)):
                caller = callers.open(reward_place(place))
                outcome = await caller.score(document, identity="t", seconds=10)
                assert outcome.verdict.score == score
                assert outcome.served_by == caller.url == f"{server.url}/score"
            await callers.close()

    asyncio.run(main())
    assert asked == ["/score"]
    assert list(tmp_path.iterdir()) == []


def test_urls_that_say_different_limits_of_one_platform_are_refused() -> None:
    async def main() -> None:
        callers = opening()
        callers.open(reward_place("https://h.example/a?concurrency=64"))
        callers.open(reward_place("https://h.example/b"))
        callers.open(reward_place("https://other.example/b?concurrency=1"))
        with pytest.raises(ConfigError, match=r"\?concurrency=64 and no \?rate=; say the same"):
            callers.open(reward_place("https://h.example/c?concurrency=1&rate=2"))
        await callers.close()

    asyncio.run(main())
