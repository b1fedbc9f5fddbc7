"""Functions called through the gateway, by a domain and by a reward class while it judges."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart.core.documents import document_of
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.events import Event, FunctionInstance, RewardCalled
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.places import reward_place
from rollart.core.scoring.wire import Answer, decode_request, encode_answer
from rollart.core.types import Verdict
from rollart.process.owner import live_processes
from rollart.process.spawn import spawn
from rollart.runtimes.local import reward_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway, ServerlessReward
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.runtimes.local.reward_host import RewardHostConfig
from rollart.runtimes.local.rewards import LocalReward
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer
from rollart.testing.samples import sample_trajectory

RUN = "gateway-test"

JUDGE = """
import os, time
import rollart as ra

def score(trajectory):
    return trajectory.tokens / 10

def rich(trajectory):
    return ra.Verdict(score=1.0, components=(("style", 0.5),))

def turns(trajectory):
    return ra.Verdict(score=None, turns=(0.25,) * len(trajectory.turns))

def undecided(trajectory):
    return ra.Verdict(score=None, reason="no way to tell")

def hang(trajectory):
    time.sleep(1000)

def stumble(trajectory):
    raise ValueError("no")

def crash(trajectory):
    os._exit(7)

def slow(trajectory):
    time.sleep(0.3)
    return float(os.getpid())

def last_turn(trajectory):
    return float(len(trajectory.turns))
"""

CLASSES = """
import asyncio, os, time
from dataclasses import replace
import rollart as ra

class Base(ra.Reward):
    async def compute_rewards(self, trajectory):
        return 0.0

class Asks(ra.Reward):
    @ra.register_serverless(attribute="proxy", serverless_url="local://judge:score")
    async def compute_rewards(self, trajectory):
        return await self.proxy(trajectory) * 2

class AsksBlocking(ra.Reward):
    @ra.register_serverless(attribute="proxy", serverless_url="local://judge:rich")
    def compute_rewards(self, trajectory):
        return self.proxy(trajectory)

class AsksTwice(ra.Reward):
    @ra.register_serverless(attribute="count", serverless_url="local://judge:last_turn")
    async def compute_rewards(self, trajectory):
        none = replace(trajectory, turns=())
        both = await asyncio.gather(self.count(trajectory), self.count(none))
        return both[0] - both[1]

class AsksInVain(ra.Reward):
    @ra.register_serverless(attribute="hang", serverless_url="local://judge:hang")
    async def compute_rewards(self, trajectory):
        return await self.hang(trajectory)

class AsksAndSurvives(ra.Reward):
    @ra.register_serverless(attribute="stumble", serverless_url="local://judge:stumble")
    def compute_rewards(self, trajectory):
        try:
            return self.stumble(trajectory)
        except Exception as error:
            return ra.Verdict(score=0.5, reason=str(error))

class AsksForNonsense(ra.Reward):
    @ra.register_serverless(attribute="proxy", serverless_url="local://judge:score")
    def compute_rewards(self, trajectory):
        return self.proxy("what is it worth?")

class Blocks(ra.Reward):
    def compute_rewards(self, trajectory):
        time.sleep(1000)

class Knows(ra.Reward):
    def compute_rewards(self, trajectory):
        return float(self.worker.startswith("lake-reward") and self.hardware == "local")
"""


class Events:
    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)

    def calls(self) -> list[RewardCalled]:
        return [event for event in self.seen if isinstance(event, RewardCalled)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "classes.py").write_text(CLASSES)
    return tmp_path


@pytest.fixture
def events() -> Events:
    return Events()


def wish(url: str, version: str = "") -> FunctionWish:
    return FunctionWish(places=(Place(at=reward_place(url), version=version),))


Gateways = Callable[..., AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def gateway(folder: Path, events: Events) -> Gateways:
    @contextlib.asynccontextmanager
    async def make(*functions: str, processes: int = 8) -> AsyncIterator[Gateway]:
        made = Gateway(
            children=child_environment({"PATH": "/usr/bin"}, RUN),
            python_path=(str(folder),),
            logs=folder,
            events=events,
        )
        try:
            for name in functions:
                await made.open(wish(f"local://judge:{name}?concurrency={processes}", "v1"))
            yield made
        finally:
            await made.close()

    return make


Rewards = Callable[..., AbstractAsyncContextManager[LocalReward]]


@pytest.fixture
def reward(gateway: Gateways, folder: Path) -> Rewards:
    @contextlib.asynccontextmanager
    async def make(name: str, limit_s: float = 20.0) -> AsyncIterator[LocalReward]:
        config = RewardHostConfig(reward=f"classes:{name}", hardware="local")

        async def start(child: str) -> Any:
            return await spawn(
                reward_host.ENTRY,
                config,
                name=child,
                env=child_environment({"PATH": "/usr/bin"}, RUN),
                inherit_env=False,
                python_path=(str(folder),),
            )

        functions = ("score", "rich", "hang", "stumble", "last_turn")
        async with gateway(*functions) as functions_of_run:
            made = LocalReward("lake", start, limit_s=limit_s, gateway=functions_of_run)
            try:
                yield made
            finally:
                await made.close()

    return make


async def scored(gateway: Gateway, name: str, *, limit_s: float = 20.0, number: int = 0) -> Verdict:
    trajectory = sample_trajectory()
    trajectory = replace(trajectory, id=replace(trajectory.id, attempt=number))
    url = f"local://judge:{name}"
    return await ServerlessReward(gateway, url, limit_s=limit_s).score(trajectory)


def test_a_function_is_a_reward_by_itself_and_every_call_is_told(
    gateway: Gateways, events: Events
) -> None:
    async def main() -> None:
        async with gateway("score", "rich", "turns", "undecided", "stumble") as made:
            assert await scored(made, "score") == Verdict(score=0.9)
            assert await scored(made, "rich") == Verdict(score=1.0, components=(("style", 0.5),))
            assert await scored(made, "turns") == Verdict(score=0.25, turns=(0.25,))
            undecided = await scored(made, "undecided")
            assert (undecided.score, undecided.reason) == (None, "no way to tell")
            failed = await scored(made, "stumble")
            assert (failed.score, failed.failure) == (None, FailureKind.REWARD_ERROR)
            assert "ValueError: no" in failed.reason

    asyncio.run(main())
    calls = events.calls()
    outcomes = [call.outcome for call in calls]
    assert outcomes == [*["verdict"] * 3, "reward_no_verdict", "reward_error"]
    assert all(call.cold and call.tries == 1 and call.end > call.begin for call in calls)
    assert all(call.function_s is not None and call.sent_bytes > 100 for call in calls)
    ended = [event for event in events.seen if isinstance(event, FunctionInstance)]
    assert sorted(one.url for one in ended) == sorted(call.url for call in calls)
    assert live_processes(RUN) == ()


def test_a_function_that_hangs_or_crashes_gives_no_verdict_in_time(gateway: Gateways) -> None:
    async def main() -> None:
        async with gateway("hang", "crash") as made:
            began = time.monotonic()
            hung, crashed = await asyncio.gather(
                scored(made, "hang", limit_s=2), scored(made, "crash", limit_s=20)
            )
            assert hung.failure is FailureKind.REWARD_TIMEOUT
            assert crashed.failure is FailureKind.REWARD_ERROR
            assert "exit" in crashed.reason
            assert time.monotonic() - began < 15

    asyncio.run(main())


def test_a_gateway_that_is_killed_costs_no_call(gateway: Gateways) -> None:
    async def main() -> None:
        async with gateway("slow") as made:
            first = await scored(made, "slow", number=0)
            calls = [asyncio.create_task(scored(made, "slow", number=n)) for n in range(1, 4)]
            await asyncio.sleep(0.15)
            (pid,) = children()  # the functions' processes are the gateway's
            os.kill(pid, signal.SIGKILL)
            verdicts = await asyncio.gather(*calls)
            assert all(verdict.score is not None for verdict in (first, *verdicts)), verdicts

    asyncio.run(main())
    assert live_processes(RUN) == ()


def test_a_platform_that_is_down_does_not_keep_a_killed_gateway_from_the_others(
    gateway: Gateways, folder: Path
) -> None:
    async def main() -> None:
        platform = await asyncio.start_server(answer_health, "127.0.0.1", 0)
        port = platform.sockets[0].getsockname()[1]
        async with gateway("slow") as made:
            url = f"http://127.0.0.1:{port}/judge"
            await made.open(wish(url))
            platform.close()
            (pid,) = children()
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            there, here = await asyncio.gather(
                ServerlessReward(made, url, limit_s=3.0).score(sample_trajectory()),
                scored(made, "slow", limit_s=20),
            )
            assert there.failure is FailureKind.REWARD_TIMEOUT
            assert here.score is not None
            assert time.monotonic() - began < 10
            assert len(children()) == 1
        assert children() == []

    asyncio.run(main())


def test_a_store_that_is_gone_when_a_gateway_starts_again_costs_large_documents_alone(
    gateway: Gateways, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    store = (disk / "rewards").as_uri()
    handler = Handler(lambda trajectory: 0.5, path="judge:score", version="v", store=store)

    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(body=handler.handle(request.body))

    async def main() -> None:
        async with LoopbackServer(answer) as server, gateway("slow") as made:
            queries = (f"large?store={store}&limit=500", f"small?store={store}")
            wishes = [wish(f"{server.url}/{query}") for query in queries]
            large, small = (one.url for one in wishes)
            sample = sample_trajectory()
            for one in wishes:
                await made.open(one)
                reward = ServerlessReward(made, one.url, limit_s=10)
                assert (await reward.score(sample)).score == 0.5
            (disk / "rewards").rmdir()
            disk.rmdir()
            (pid,) = children()
            os.kill(pid, signal.SIGKILL)
            here = await scored(made, "slow")
            there = await ServerlessReward(made, small, limit_s=10).score(sample)
            lost = await ServerlessReward(made, large, limit_s=1).score(sample)
            assert here.score is not None
            assert there.score == 0.5
            assert lost.score is None
            assert f"there is no folder {disk} to make it in" in lost.reason
            with pytest.raises(ConfigError, match=f"there is no folder {disk} to make it in"):
                await made.open(wish(f"{server.url}/other?store={store}"))
        assert children() == []

    asyncio.run(main())
    assert not disk.exists()


async def answer_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An endpoint that says it is well, once."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split()[0])
    key = decode_request(await reader.readexactly(length)).key
    body = encode_answer(Answer(key=key, function="judge:score", version="v", instance="i"))
    length_line = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(b"HTTP/1.1 200 OK\r\n" + length_line.encode() + body)
    await writer.drain()
    writer.close()


def test_large_documents_that_come_together_wait_for_the_channel_and_are_all_scored(
    gateway: Gateways,
) -> None:
    async def main() -> None:
        async with gateway("score") as made:
            url = "local://judge:score"
            document = document_of(sample_trajectory())
            payload = {"text": "x" * 10_000_000}
            calls = [
                made.score(
                    url,
                    replace(document, id=f"t{n}", task=replace(document.task, payload=payload)),
                    seconds=100,
                )
                for n in range(40)
            ]
            outcomes = await asyncio.gather(*calls)
            assert {outcome.verdict for outcome in outcomes} == {Verdict(score=0.9)}

    asyncio.run(main())


def test_a_url_that_is_named_twice_with_other_limits_is_refused(gateway: Gateways) -> None:
    async def main() -> None:
        async with gateway("score") as made:
            await made.open(wish("local://judge:score?concurrency=8", "v1"))
            with pytest.raises(ConfigError, match="named twice, with other fallbacks, limits"):
                await made.open(wish("local://judge:score?concurrency=2", "v1"))

    asyncio.run(main())


def children() -> list[int]:
    """Child processes of this process that are the project's."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and b"rollart.process" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_who_is_cancelled_leaves_no_call_behind(gateway: Gateways, events: Events) -> None:
    async def main() -> None:
        async with gateway("hang", "score", processes=1) as made:
            call = asyncio.create_task(scored(made, "hang", limit_s=60))
            await asyncio.sleep(1.0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await scored(made, "score") == Verdict(score=0.9)

    asyncio.run(main())
    assert [call.outcome for call in events.calls()] == ["cancelled", "verdict"]
    assert live_processes(RUN) == ()


def test_the_control_loop_is_free_while_functions_block(gateway: Gateways) -> None:
    async def main() -> None:
        async with gateway("hang", "score") as made:
            await scored(made, "score")
            calls = [
                asyncio.create_task(scored(made, "hang", limit_s=2.0, number=n)) for n in range(64)
            ]
            loop = asyncio.get_running_loop()
            worst = 0.0
            until = loop.time() + 2.0
            while loop.time() < until:
                before = loop.time()
                await asyncio.sleep(0.01)
                worst = max(worst, loop.time() - before - 0.01)
            assert worst < 0.1
            verdicts = await asyncio.gather(*calls)
            assert {verdict.failure for verdict in verdicts} == {FailureKind.REWARD_TIMEOUT}
            began = loop.time()
        assert loop.time() - began < 5.0

    asyncio.run(main())
    assert live_processes(RUN) == ()


def test_a_platform_that_does_not_answer_is_refused_when_the_run_starts(gateway: Gateways) -> None:
    async def main() -> None:
        async with gateway() as made:
            with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
                await made.open(wish("http://127.0.0.1:9/judge"))

    asyncio.run(main())


def test_documents_that_differ_are_different_calls_of_a_class(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksTwice") as asks:
            assert await asks.score(sample_trajectory()) == Verdict(score=1.0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("Base", Verdict(score=0.0)),
        ("Asks", Verdict(score=1.8)),
        ("AsksBlocking", Verdict(score=1.0, components=(("style", 0.5),))),
        ("Knows", Verdict(score=1.0)),
    ],
)
def test_a_reward_class_judges_and_asks_while_it_does(
    reward: Rewards, name: str, verdict: Verdict
) -> None:
    async def main() -> None:
        async with reward(name) as judge:
            assert await judge.score(sample_trajectory()) == verdict

    asyncio.run(main())


def test_a_reward_class_hears_why_a_function_gave_nothing(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksAndSurvives") as judge:
            verdict = await judge.score(sample_trajectory())
            assert verdict.score == 0.5
            assert "ValueError: no" in verdict.reason
        async with reward("AsksForNonsense") as judge:
            verdict = await judge.score(sample_trajectory())
            assert verdict.failure is FailureKind.REWARD_ERROR
            assert "was called with str; give it the trajectory" in verdict.reason

    asyncio.run(main())


@pytest.mark.parametrize("name", ["AsksInVain", "Blocks"])
def test_a_reward_class_that_waits_in_vain_ends_by_its_deadline(reward: Rewards, name: str) -> None:
    async def main() -> None:
        async with reward(name, limit_s=2.0) as judge:
            began = time.monotonic()
            verdict = await judge.score(sample_trajectory())
            assert verdict.failure is FailureKind.REWARD_TIMEOUT
            assert time.monotonic() - began < 6.0

    asyncio.run(main())


def test_the_document_says_what_the_trajectory_says() -> None:
    trajectory = sample_trajectory()
    document = document_of(trajectory)
    assert (document.id, document.tokens) == (str(trajectory.id), trajectory.tokens)
