"""Rewards in killable children: every call ends with a verdict, and costs no other call."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator

import pytest

from rollart.core.identity import TrajectoryId
from rollart.core.tokens import LengthOnly, VersionRuns
from rollart.core.types import Piece, Segment, Status, Task, Trajectory, Turn, Verdict
from rollart.process.owner import live_processes
from rollart.runtimes.local import reward_host
from rollart.runtimes.local.reward_host import RewardHostConfig
from rollart.runtimes.local.rewards import LocalReward

EPISODE = "rollart.backends.rewards.episode:episode_return"


def trajectory(*actions: str) -> Trajectory:
    pieces = (
        Piece(ids=LengthOnly(30)),
        Piece(ids=LengthOnly(4), logprobs=LengthOnly(4), versions=VersionRuns(((2, 4),))),
    )
    return Trajectory(
        id=TrajectoryId(run="test-run", domain="lake", task="t0", group=1, member=0),
        policy="policy",
        task=Task(domain="lake", key="t0", payload={"map": "SFFG"}),
        segments=(Segment(pieces=pieces),),
        turns=tuple(
            Turn(segment=0, start=30, end=34, observation="@00", action=action, reward=0.25)
            for action in actions
        ),
        start_version=2,
        status=Status.FINISHED,
        metrics=(("success", 1.0),),
    )


@pytest.fixture
def rewards(warm_forks):
    @contextlib.asynccontextmanager
    async def make(
        path: str = "my_rewards:by_word", *, limit_s: float = 5.0, most: int = 4
    ) -> AsyncIterator[LocalReward]:
        config = RewardHostConfig(reward=path)
        async with warm_forks() as forks:
            reward = LocalReward(
                "lake",
                lambda name: forks.fork(reward_host.ENTRY, config, name=name),
                limit_s=limit_s,
                most=most,
            )
            try:
                yield reward
            finally:
                await reward.close()

    return make


def test_a_number_and_a_verdict_are_both_scores(rewards):
    async def main():
        async with rewards() as reward:
            assert await reward.score(trajectory("fine")) == Verdict(score=0.5)
        async with rewards("my_rewards:slowly") as reward:
            verdict = await reward.score(trajectory("fine"))
            assert verdict == Verdict(score=1.5, components=(("style", 0.5),))

    asyncio.run(main())


def test_scorers_see_lengths_of_tokens_but_not_the_tokens(rewards):
    async def main():
        async with rewards() as reward:
            assert await reward.score(trajectory("tokens")) == Verdict(score=34.0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("raise", "KeyError: 'judge'"),
        ("nan", "ValueError: a reward returned nan; return a finite number"),
        ("text", "TypeError: a reward returned str; return a float or a rollart Verdict"),
        ("crash", "crash: lake-reward-1"),
    ],
)
def test_what_is_no_score_is_no_verdict_with_the_reason(rewards, word, reason):
    async def main():
        async with rewards() as reward:
            verdict = await reward.score(trajectory(word))
            assert verdict.score is None
            assert reason in verdict.reason
            assert await reward.score(trajectory("fine")) == Verdict(score=0.5)

    asyncio.run(main())


@pytest.mark.parametrize("word", ["hang", "hold"])
def test_a_call_that_hangs_times_out_alone_while_the_loop_stays_responsive(rewards, word):
    async def main():
        async with rewards(limit_s=0.4, most=2) as reward:
            hung = [asyncio.create_task(reward.score(trajectory(word))) for _ in range(2)]
            others = [asyncio.create_task(reward.score(trajectory("fine"))) for _ in range(6)]
            worst = 0.0
            while not all(task.done() for task in hung):
                before = time.monotonic()
                await asyncio.sleep(0.005)
                worst = max(worst, time.monotonic() - before - 0.005)
            for task in hung:
                assert (await task).score is None
                assert (await task).reason.startswith("timeout: no answer within 0.4 s")
            assert await asyncio.gather(*others) == [Verdict(score=0.5)] * 6
            assert worst < 0.1

    asyncio.run(main())


def test_a_crash_costs_one_call_though_several_were_queued_behind_it(rewards):
    async def main():
        async with rewards(most=1) as reward:
            for _ in range(20):  # quick ones, so that calls are queued in the child
                await reward.score(trajectory("fine"))
            words = ["sleep 0.05", "crash", *["fine"] * 12]
            verdicts = await asyncio.gather(*(reward.score(trajectory(word)) for word in words))
            assert [verdict.score for verdict in verdicts] == [0.5, None, *[0.5] * 12]

    asyncio.run(main())


def test_slow_calls_get_more_children_up_to_the_most(rewards):
    async def main():
        async with rewards(most=4) as reward:
            await reward.score(trajectory("sleep 0.2"))
            assert reward.processes < 4
            await asyncio.gather(*(reward.score(trajectory("sleep 0.2")) for _ in range(8)))
            assert reward.processes == 4

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_others_their_turn(rewards):
    async def main():
        async with rewards(most=1) as reward:
            tasks = [asyncio.create_task(reward.score(trajectory("sleep 0.05"))) for _ in range(6)]
            await asyncio.sleep(0.06)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
            assert [result for result in results if isinstance(result, Verdict)] == [
                Verdict(score=0.5)
            ] * sum(not task.cancelled() for task in tasks)
            assert await reward.score(trajectory("fine")) == Verdict(score=0.5)

    asyncio.run(main())


def test_a_reward_that_cannot_start_is_no_verdict_for_everyone(rewards):
    async def main():
        async with rewards("my_rewards:missing", most=2) as reward:
            verdicts = await asyncio.gather(*(reward.score(trajectory("x")) for _ in range(5)))
            for verdict in verdicts:
                assert verdict.score is None
                assert "has no 'missing'" in verdict.reason

    asyncio.run(main())


def test_close_ends_children_in_mid_call_within_five_seconds(rewards):
    async def main():
        before = len(os.listdir("/proc/self/fd"))
        async with rewards(limit_s=60.0, most=2) as reward:
            hung = [asyncio.create_task(reward.score(trajectory("hang"))) for _ in range(4)]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await reward.close()
            assert time.monotonic() - began < 5.0
            for verdict in await asyncio.gather(*hung):
                assert verdict.score is None
        assert live_processes("test-run") == ()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_the_default_reward_sustains_hundreds_of_scores_a_second(rewards):
    async def main():
        async with rewards(EPISODE) as reward:
            one = trajectory(*["left"] * 7)
            assert await reward.score(one) == Verdict(score=1.75)
            began = time.monotonic()
            gate = asyncio.Semaphore(64)

            async def score() -> None:
                async with gate:
                    assert (await reward.score(one)).score == 1.75

            await asyncio.gather(*(score() for _ in range(600)))
            assert 600 / (time.monotonic() - began) > 200

    asyncio.run(main())
