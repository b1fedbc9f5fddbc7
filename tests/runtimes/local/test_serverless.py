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

def give(what):
    import numpy
    values = {
        "numpy": numpy.float64(1.5), "huge": 2**70, "keys": {1: "a"}, "text": "\\ud800",
        "pid": os.getpid(),
    }
    return values[what]

def meet(folder):
    open(f"{folder}/met-{os.getpid()}", "w").close()
    while sum(name.startswith("met-") for name in os.listdir(folder)) < 2:
        time.sleep(0.02)
    return os.getpid()

def much():
    return "x" * 5_000

"""

SLOW = """
import os, time

with open(__file__ + ".log", "a") as log:
    log.write("begun ")
time.sleep(1.5)

def pid():
    return os.getpid()
"""

CLASSES = """
import asyncio, os, time
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
    @ra.register_serverless(attribute="meet", serverless_url="local://judge:meet")
    async def compute_rewards(self, trajectory):
        here = os.path.dirname(__file__)
        first, second = await asyncio.gather(self.meet(here), self.meet(here))
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
    (tmp_path / "slow.py").write_text(SLOW)
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
    async def make(name: str, module: str = "judge", **limits: Any) -> AsyncIterator[LocalFunction]:
        made = LocalFunction(f"{module}:{name}", spawned, **limits)
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
    function: Functions, tmp_path: Path
) -> None:
    async def main() -> None:
        async with function("meet", most=3, idle_s=0.3) as meet:
            assert meet.processes == 0
            here = (str(tmp_path),)  # the first call ends only when a second process is there
            pids = await asyncio.gather(*(meet.call(here, {}, seconds=60) for _ in range(4)))
            assert 1 < len(set(pids)) <= 3
            assert len(live_processes(RUN)) <= 3
            await wait_for_processes(meet, 0)
            assert await meet.call(here, {}, seconds=30) not in pids

    asyncio.run(main())


def test_a_start_longer_than_a_call_may_take_serves_a_later_call(
    function: Functions, folder: Path
) -> None:
    async def main() -> None:
        async with function("pid", "slow", idle_s=0.3) as slow:
            told: list[ServerlessFailed] = []
            answered = None
            while answered is None and len(told) < 30:
                try:
                    answered = await slow.call((), {}, seconds=1.0)
                except ServerlessFailed as failed:
                    told.append(failed)
            assert answered is not None, "it never started"
            assert all(failed.overran for failed in told)
            assert str(told[0]) == (
                "slow:pid: no process was free within 1 s: the first is still starting, "
                "for later calls; raise timeouts.reward_s"
            )
            assert (folder / "slow.py.log").read_text() == "begun ", "started once"
            await wait_for_processes(slow, 0)

    asyncio.run(main())


def test_a_start_that_nobody_waits_for_any_more_goes_idle_and_away(function: Functions) -> None:
    async def main() -> None:
        async with function("pid", "slow", idle_s=0.5) as slow:
            with pytest.raises(ServerlessFailed, match="still starting"):
                await slow.call((), {}, seconds=0.1)
            await wait_for_processes(slow, 1)
            await wait_for_processes(slow, 0)

    asyncio.run(main())


def test_closing_waits_for_a_child_that_has_just_gone_idle(spawned: Spawn) -> None:
    children: list[Child] = []

    async def remembered(path: str, name: str) -> Child:
        children.append(await spawned(path, name))
        return children[-1]

    async def main() -> None:
        pool = LocalFunction("judge:echo", remembered, idle_s=0.01)
        await pool.call((), {}, seconds=30)
        while pool.processes:  # noqa: ASYNC110  every turn: it must be met while it is dying
            await asyncio.sleep(0)
        await pool.close()
        assert not children[0].alive

    asyncio.run(main())


def test_closing_ends_a_start_that_nobody_waits_for_any_more(function: Functions) -> None:
    async def main() -> None:
        async with function("pid", "slow") as slow:
            with pytest.raises(ServerlessFailed, match="still starting"):
                await slow.call((), {}, seconds=0.1)
            assert len(live_processes(RUN)) == 1
            began = time.monotonic()
            await slow.close()
            assert time.monotonic() - began < 5.0
            assert live_processes(RUN) == ()
            with pytest.raises(ServerlessFailed, match="closed"):
                await slow.call((), {}, seconds=0.1)

    asyncio.run(main())


def test_a_start_that_fails_when_its_caller_has_left_is_told_to_the_next(
    function: Functions,
) -> None:
    async def main() -> None:
        async with function("missing", "slow") as missing:
            with pytest.raises(ServerlessFailed, match="still starting"):
                await missing.call((), {}, seconds=0.1)
            with pytest.raises(ServerlessFailed, match=r"cannot be started: .*has no 'missing'"):
                await missing.call((), {}, seconds=30)

    asyncio.run(main())


async def wait_for_processes(function: LocalFunction, number: int) -> None:
    async with asyncio.timeout(30):
        while function.processes != number or len(live_processes(RUN)) != number:  # noqa: ASYNC110  a pool tells nobody of its size
            await asyncio.sleep(0.02)


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


def test_a_value_that_cannot_be_sent_costs_one_call_and_no_process(function: Functions) -> None:
    async def main() -> None:
        async with function("give") as give:
            pid = await give.call(("pid",), {}, seconds=30)
            assert await give.call(("numpy",), {}, seconds=30) == 1.5
            for what, told in (("huge", "71 bits"), ("keys", "key 1"), ("text", "surrogates")):
                with pytest.raises(ServerlessFailed, match=told):
                    await give.call((what,), {}, seconds=30)
            assert await give.call(("pid",), {}, seconds=30) == pid

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
