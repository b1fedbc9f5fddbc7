"""Functions in pools that come and go, called directly and by a reward class while it judges."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError, FailureKind
from rollart.core.types import Verdict
from rollart.process.child import Child
from rollart.process.errors import ProcessError
from rollart.process.frames import FRAME_LIMIT
from rollart.process.owner import live_processes
from rollart.process.spawn import spawn
from rollart.runtimes.local import function_host, reward_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.reward_host import RewardHostConfig
from rollart.runtimes.local.rewards import LocalReward
from rollart.runtimes.local.serverless import (
    LocalFunction,
    Serverless,
    ServerlessFailed,
    ServerlessReward,
)
from rollart.testing.samples import sample_trajectory

RUN = "serverless-test"

JUDGE = """
import asyncio, os, time

def score(trajectory):
    return trajectory.tokens / 10

def echo(*args, **kwargs):
    return [list(args), kwargs]

async def soon(value):
    await asyncio.sleep(0.001)
    return value

def hang(*ignored):
    time.sleep(1000)

def hold():
    sum(range(10**12))

def crash():
    os._exit(7)

def stumble():
    raise ValueError("no")

def nothing():
    return object()

def much():
    return "x" * 5_000

def nap(seconds):
    time.sleep(seconds)
    return os.getpid()
"""

CLASSES = """
import asyncio, time
import rollart as ra

class Base(ra.Reward):
    async def compute_rewards(self, trajectory):
        return 0.0

class Asks(ra.Reward):
    @ra.register_serverless(attribute="proxy", serverless_url="local://judge:score")
    async def compute_rewards(self, trajectory):
        return await self.proxy(trajectory)

class AsksBlocking(ra.Reward):
    @ra.register_serverless(attribute="proxy", serverless_url="local://judge:score")
    def compute_rewards(self, trajectory):
        return self.proxy(trajectory)

class AsksTwice(ra.Reward):
    @ra.register_serverless(attribute="nap", serverless_url="local://judge:nap")
    async def compute_rewards(self, trajectory):
        first, second = await asyncio.gather(self.nap(0.3), self.nap(0.3))
        return 1.0 if first != second else 0.0

class AsksInVain(ra.Reward):
    @ra.register_serverless(attribute="hang", serverless_url="local://judge:hang")
    async def compute_rewards(self, trajectory):
        return await self.hang()

class AsksAndSurvives(ra.Reward):
    @ra.register_serverless(attribute="stumble", serverless_url="local://judge:stumble")
    def compute_rewards(self, trajectory):
        try:
            return self.stumble()
        except Exception as error:
            return ra.Verdict(score=0.5, reason=str(error))

class AsksForNonsense(ra.Reward):
    @ra.register_serverless(attribute="echo", serverless_url="local://judge:echo")
    def compute_rewards(self, trajectory):
        return self.echo({1, 2})

class AsksForMuch(ra.Reward):
    @ra.register_serverless(attribute="much", serverless_url="local://judge:much")
    def compute_rewards(self, trajectory):
        return float(len(self.much()))

class Blocks(ra.Reward):
    def compute_rewards(self, trajectory):
        time.sleep(1000)

class Knows(ra.Reward):
    def compute_rewards(self, trajectory):
        return float(self.worker.startswith("lake-reward") and self.hardware == "local")
"""

Spawn = Callable[[str, str], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "classes.py").write_text(CLASSES)
    return tmp_path


@pytest.fixture
def spawned(folder: Path) -> Spawn:
    async def start(path: str, name: str) -> Any:
        return await spawn(
            function_host.ENTRY,
            path,
            name=name,
            env=child_environment({"PATH": "/usr/bin"}, RUN),
            inherit_env=False,
            python_path=(str(folder),),
            heartbeat_timeout=1e9,
        )

    return start


Functions = Callable[..., AbstractAsyncContextManager[LocalFunction]]


@pytest.fixture
def function(spawned: Spawn) -> Functions:
    @contextlib.asynccontextmanager
    async def make(name: str, **limits: Any) -> AsyncIterator[LocalFunction]:
        made = LocalFunction(f"judge:{name}", spawned, **limits)
        try:
            yield made
        finally:
            await made.close()

    return make


Rewards = Callable[..., AbstractAsyncContextManager[LocalReward]]


@pytest.fixture
def reward(spawned: Spawn, folder: Path) -> Rewards:
    @contextlib.asynccontextmanager
    async def make(
        name: str, limit_s: float = 20.0, frame_limit: int = FRAME_LIMIT
    ) -> AsyncIterator[LocalReward]:
        config = RewardHostConfig(reward=f"classes:{name}", hardware="local")

        async def start(child: str) -> Any:
            return await spawn(
                reward_host.ENTRY,
                config,
                name=child,
                env=child_environment({"PATH": "/usr/bin"}, RUN),
                inherit_env=False,
                python_path=(str(folder),),
                frame_limit=frame_limit,
            )

        serverless = Serverless(spawned)
        made = LocalReward("lake", start, limit_s=limit_s, serverless=serverless)
        try:
            yield made
        finally:
            await made.close()
            await serverless.close()

    return make


def test_values_of_every_kind_travel_both_ways(function: Functions) -> None:
    async def main() -> None:
        async with function("echo") as echo:
            sent = [1, 2.5, None, True, "ö", b"\0", [1, [2]], {"a": {"b": []}}]
            assert await echo.call(sent, {"k": "v"}, seconds=20) == [sent, {"k": "v"}]
        async with function("score") as score:
            assert await score.call((sample_trajectory(),), {}, seconds=20) == 0.9
        async with function("soon") as soon:
            verdict = Verdict(score=1.0, components=(("style", 0.5),))
            assert await soon.call((verdict,), {}, seconds=20) == verdict

    asyncio.run(main())


def test_a_pool_starts_at_zero_grows_with_the_load_and_goes_back_to_zero(
    function: Functions,
) -> None:
    async def main() -> None:
        async with function("nap", most=3, idle_s=0.3) as nap:
            assert nap.processes == 0
            pids = await asyncio.gather(*(nap.call((0.4,), {}, seconds=30) for _ in range(6)))
            assert 1 < len(set(pids)) <= 3
            assert nap.processes == len(set(pids)) == len(live_processes(RUN))
            await asyncio.sleep(1.5)
            assert nap.processes == 0
            assert live_processes(RUN) == ()
            assert await nap.call((0.0,), {}, seconds=30) not in pids

    asyncio.run(main())


@pytest.mark.parametrize("name", ["hang", "hold"])
def test_a_function_that_hangs_is_killed_at_its_deadline(function: Functions, name: str) -> None:
    async def main() -> None:
        async with function(name) as hung:
            began = time.monotonic()
            with pytest.raises(ServerlessFailed, match="no answer within 3 s") as caught:
                await hung.call((), {}, seconds=3.0)
            assert caught.value.overran
            assert time.monotonic() - began < 4.0
            assert hung.processes == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("stumble", (), "judge:stumble: ValueError: no"),
        ("crash", (), "judge:crash: .*exit"),
        ("missing", (), "judge:missing: cannot be started: .*has no 'missing'"),
        ("nothing", (), "object cannot be sent to another process"),
        ("echo", ({1},), "judge:echo: set cannot be sent to another process; use a Trajectory"),
    ],
)
def test_what_gives_no_value_says_why(
    function: Functions, name: str, args: tuple[Any, ...], told: str
) -> None:
    async def main() -> None:
        async with function(name) as failing:
            with pytest.raises(ServerlessFailed, match=told) as caught:
                await failing.call(args, {}, seconds=20)
            assert not caught.value.overran

    asyncio.run(main())


def test_equal_urls_share_a_pool_and_other_platforms_are_refused(spawned: Spawn) -> None:
    serverless = Serverless(spawned)

    async def main() -> None:
        one = serverless.open("local://judge:score")
        assert serverless.open("local://judge:score") is one
        assert serverless.open("local://judge:echo") is not one

    asyncio.run(main())
    with pytest.raises(ConfigError, match=r"fc:// is not supported yet; use local://"):
        serverless.open("fc://account/function")


def test_a_function_is_a_reward_by_itself(function: Functions) -> None:
    async def main() -> None:
        async with function("score") as score:
            verdict = await ServerlessReward(score, limit_s=20).score(sample_trajectory())
            assert verdict == Verdict(score=0.9)
        async with function("stumble") as stumble:
            verdict = await ServerlessReward(stumble, limit_s=20).score(sample_trajectory())
            assert (verdict.score, verdict.failure) == (None, FailureKind.REWARD_ERROR)
        async with function("echo") as echo:
            verdict = await ServerlessReward(echo, limit_s=20).score(sample_trajectory())
            assert verdict.score is None
            assert verdict.reason == "a reward returned list; return a float or a rollart Verdict"
        async with function("hang") as hang:
            verdict = await ServerlessReward(hang, limit_s=2).score(sample_trajectory())
            assert verdict.failure is FailureKind.REWARD_TIMEOUT

    asyncio.run(main())


@pytest.mark.parametrize("name", ["Asks", "AsksBlocking"])
def test_a_reward_class_asks_a_function_and_scores_with_its_answer(
    reward: Rewards, name: str
) -> None:
    async def main() -> None:
        async with reward(name) as judge:
            verdicts = await asyncio.gather(*(judge.score(sample_trajectory()) for _ in range(12)))
            assert verdicts == [Verdict(score=0.9)] * 12

    asyncio.run(main())


def test_what_a_class_asks_at_once_runs_at_once(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksTwice") as judge:
            assert await judge.score(sample_trajectory()) == Verdict(score=1.0)

    asyncio.run(main())


def test_a_function_that_hangs_is_killed_at_the_rewards_deadline_and_is_no_verdict(
    reward: Rewards,
) -> None:
    async def main() -> None:
        async with reward("AsksInVain", limit_s=3.0) as judge:
            began = time.monotonic()
            verdict = await judge.score(sample_trajectory())
            assert verdict.score is None
            assert verdict.failure is FailureKind.REWARD_TIMEOUT
            assert verdict.reason.startswith("judge:hang: no answer within")
            assert time.monotonic() - began < 5.0
            assert judge.processes == 1, "the judge itself is fine"

    asyncio.run(main())


def test_a_class_may_catch_what_its_function_raised(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksAndSurvives") as judge:
            verdict = await judge.score(sample_trajectory())
            assert verdict.score == 0.5
            assert "ValueError: no" in verdict.reason
        async with reward("AsksForNonsense") as judge:
            verdict = await judge.score(sample_trajectory())
            assert verdict.score is None
            assert "set cannot be sent to another process" in verdict.reason

    asyncio.run(main())


def test_a_verdict_that_nobody_waits_for_any_more_ends_what_it_asked_for(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksInVain", limit_s=6.0) as judge:
            task = asyncio.create_task(judge.score(sample_trajectory()))
            await asyncio.sleep(1.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            verdict = await judge.score(sample_trajectory())
            assert verdict.failure is FailureKind.REWARD_TIMEOUT
            assert judge.processes >= 1

    asyncio.run(main())


def test_a_class_that_blocks_is_killed_like_a_function(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("Blocks", limit_s=0.5) as judge:
            verdict = await judge.score(sample_trajectory())
            assert verdict.reason.startswith("timeout: no answer within 0.5 s")

    asyncio.run(main())


def test_an_instance_knows_its_worker_and_hardware(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("Knows") as judge:
            assert await judge.score(sample_trajectory()) == Verdict(score=1.0)

    asyncio.run(main())


def test_a_reward_beside_functions_that_cannot_start_is_no_verdict_with_the_reason(
    spawned: Spawn,
) -> None:
    async def refused(name: str) -> Child:
        raise ProcessError(f"{name}: cannot fork: Resource temporarily unavailable")

    async def main() -> None:
        judge = LocalReward("lake", refused, limit_s=1.0, serverless=Serverless(spawned))
        for verdict in await asyncio.gather(*(judge.score(sample_trajectory()) for _ in range(3))):
            assert verdict.failure is FailureKind.REWARD_ERROR
            assert verdict.reason.startswith("the reward cannot be started: lake-reward-")
            assert "Resource temporarily unavailable" in verdict.reason

    asyncio.run(main())


def test_what_is_too_large_to_be_sent_to_a_judge_costs_its_own_call_only(reward: Rewards) -> None:
    async def main() -> None:
        async with reward("AsksForMuch", frame_limit=4_000) as judge:
            small, large = sample_trajectory(), sample_trajectory()
            large = replace(large, detail="x" * 5_000)
            verdict = await judge.score(large)
            assert verdict.failure is FailureKind.REWARD_ERROR
            assert verdict.reason.startswith("the reward cannot be sent the trajectory: a frame of")
            verdict = await judge.score(small)
            assert verdict.failure is FailureKind.REWARD_ERROR
            assert verdict.reason.startswith("the answer cannot be sent: a frame of")
            assert judge.processes == 1, "the judge itself is fine"

    asyncio.run(main())
