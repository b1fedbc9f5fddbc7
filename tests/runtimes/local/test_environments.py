"""Environments in killable children: who fails, who is rebuilt, and what control feels of it."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError, EnvironmentFailed, FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment
from rollart.core.types import Message, StepResult, Task
from rollart.process.owner import live_processes
from rollart.runtimes.local.environments import LocalEnvironments

TASK = Task(domain="lake", key="t0")


def identity(member: int = 0) -> TrajectoryId:
    return TrajectoryId(run="test-run", domain="lake", task="t0", group=1, member=member)


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def text_of(result: StepResult) -> str:
    return result.observation.messages[0].content


async def begun(pool: LocalEnvironments, seed: int = 1) -> Environment:
    environment = await pool.open(identity(seed))
    await environment.reset(TASK, seed)
    return environment


async def failure(operation) -> EnvironmentFailed:
    with pytest.raises(EnvironmentFailed) as caught:
        await operation
    return caught.value


def test_a_step_returns_what_the_users_class_returned(environments):
    async def main():
        async with environments(length=2) as pool:
            environment = await pool.open(identity())
            first = await environment.reset(TASK, 9)
            assert first.messages == (Message(role="user", content="seed 9"),)
            one = await environment.step(say("a"))
            assert (text_of(one), one.reward, one.done) == ("9:a", 1.0, False)
            assert one.metrics == (("success", 1.0),)
            assert (await environment.step(say("b"))).done

    asyncio.run(main())


def test_async_methods_run_in_one_event_loop_of_the_child(environments):
    async def main():
        async with environments("Async") as pool:
            environment = await begun(pool)
            assert text_of(await environment.step(say("x"))) == "same loop: True"

    asyncio.run(main())


@pytest.mark.parametrize("word", ["hang", "spin", "hold"])
def test_a_step_that_hangs_fails_alone_and_its_neighbours_go_on_by_replay(environments, word):
    async def main():
        async with environments(step_s=0.3) as pool:
            bad, *good = [await begun(pool, seed) for seed in range(4)]
            for environment in good:
                for action in ("a", "b"):
                    await environment.step(say(action))
            hung = asyncio.create_task(failure(bad.step(say(word))))
            await asyncio.sleep(0.05)
            waiting = [asyncio.create_task(one.step(say("c"))) for one in good[:2]]
            began = time.monotonic()
            assert (await hung).kind is FailureKind.ENV_TIMEOUT
            assert [text_of(await task) for task in waiting] == ["1:a,b,c", "2:a,b,c"]
            assert text_of(await good[2].step(say("d"))) == "3:a,b,d", "idle when it happened"
            assert time.monotonic() - began < 2.0
            assert pool.processes == 1

    asyncio.run(main())


def test_the_loop_stays_responsive_while_a_step_blocks(environments):
    async def main():
        async with environments(step_s=0.5) as pool:
            bad, other = await begun(pool, 0), await begun(pool, 1)
            hung = asyncio.create_task(failure(bad.step(say("hold"))))
            queued = asyncio.create_task(other.step(say("a")))
            worst = 0.0
            while not hung.done():
                before = time.monotonic()
                await asyncio.sleep(0.005)
                worst = max(worst, time.monotonic() - before - 0.005)
            await queued
            assert worst < 0.1

    asyncio.run(main())


def test_the_deadline_counts_from_the_begin_of_a_step_not_from_its_place_in_the_queue(environments):
    async def main():
        async with environments(step_s=0.5) as pool:
            several = [await begun(pool, seed) for seed in range(4)]
            results = await asyncio.gather(*(one.step(say("sleep 0.3")) for one in several))
            assert len(results) == 4, "the last one waited 0.9 s and was not blamed for it"

    asyncio.run(main())


def test_a_child_that_dies_fails_the_step_it_was_in_and_nobody_else(environments):
    async def main():
        async with environments() as pool:
            bad, good = await begun(pool, 0), await begun(pool, 1)
            await good.step(say("a"))
            died = await failure(bad.step(say("crash")))
            assert died.kind is FailureKind.ENV_DIED
            assert "exit code 7" in died.detail
            assert text_of(await good.step(say("b"))) == "1:a,b"

    asyncio.run(main())


def test_a_child_killed_from_outside_is_replaced_and_its_episodes_go_on(environments):
    async def main():
        async with environments() as pool:
            good = await begun(pool, 1)
            pid = int(text_of(await good.step(say("pid"))).split()[0])
            os.kill(pid, 9)
            await asyncio.sleep(0.3)
            assert text_of(await good.step(say("b"))) == "1:pid,b"

    asyncio.run(main())


def test_what_cannot_be_replayed_fails_with_its_child(environments):
    async def main():
        async with environments("Stubborn", per_process=1, replayable=False) as pool:
            lost, other = await begun(pool, 0), await begun(pool, 1)
            pid = int(text_of(await lost.step(say("pid"))).split()[0])
            os.kill(pid, 9)
            await asyncio.sleep(0.3)
            assert (await failure(lost.step(say("a")))).kind is FailureKind.ENV_DIED
            assert text_of(await other.step(say("a"))) == "1:a"

    asyncio.run(main())


def test_a_false_promise_of_replay_is_found_out(environments, tmp_path: Path):
    async def main():
        variables = {"ROLLART_MARKER": str(tmp_path / "marker")}
        async with environments("Fickle", variables=variables) as pool:
            bad, liar = await begun(pool, 0), await begun(pool, 1)
            await liar.step(say("a"))
            await failure(bad.step(say("crash")))
            found = await failure(liar.step(say("b")))
            assert found.kind is FailureKind.ENV_DIED
            assert "must not declare replayable" in found.detail

    asyncio.run(main())


def test_several_in_a_process_need_the_promise_of_replay(environments):
    async def main():
        with pytest.raises(ConfigError, match=r"envs_per_process = 4.*use envs_per_process = 1"):
            async with environments(replayable=False):
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("raise", "RuntimeError: the ice broke"),
        ("exit", "SystemExit: bye"),
        ("nothing", "step returned NoneType; return StepResult("),
        ("nan", "step returned reward = nan; return finite numbers"),
    ],
)
def test_what_a_step_raises_or_wrongly_returns_is_told(environments, word, told):
    async def main():
        async with environments() as pool:
            bad, good = await begun(pool, 0), await begun(pool, 1)
            failed = await failure(bad.step(say(word)))
            assert failed.kind is FailureKind.ENV_STEP
            assert told in failed.detail
            assert text_of(await good.step(say("a"))) == "1:a"
            assert pool.processes == 1

    asyncio.run(main())


def test_what_a_reset_raises_is_told_with_file_and_line(environments):
    async def main():
        async with environments() as pool:
            environment = await pool.open(identity())
            task = Task(domain="lake", key="t1", payload={"reset": "raise"})
            failed = await failure(environment.reset(task, 1))
            assert failed.kind is FailureKind.ENV_RESET
            assert "ValueError: no such lake (" in failed.detail
            assert "my_environments.py:" in failed.detail

    asyncio.run(main())


def test_a_reset_that_hangs_ends_at_its_deadline(environments):
    async def main():
        async with environments(reset_s=0.3) as pool:
            environment = await pool.open(identity())
            task = Task(domain="lake", key="t1", payload={"reset": "hang"})
            assert (await failure(environment.reset(task, 1))).kind is FailureKind.ENV_TIMEOUT

    asyncio.run(main())


def test_a_class_that_cannot_be_built_fails_as_env_open(environments):
    async def main():
        async with environments("Unbuildable", per_process=1) as pool:
            environment = await pool.open(identity())
            failed = await failure(environment.reset(TASK, 1))
            assert failed.kind is FailureKind.ENV_OPEN
            assert "OSError: no display" in failed.detail

    asyncio.run(main())


def test_a_class_that_does_not_exist_fails_as_env_open(environments):
    async def main():
        async with environments("Missing") as pool:
            failed = await failure(pool.open(identity()))
            assert failed.kind is FailureKind.ENV_OPEN
            assert "has no 'Missing'" in failed.detail

    asyncio.run(main())


def test_instances_are_reused_from_episode_to_episode(environments):
    async def main():
        async with environments(places=1, per_process=1) as pool:
            seen = set()
            for seed in range(3):
                environment = await begun(pool, seed)
                seen.add(text_of(await environment.step(say("pid"))))
                environment.kill()
            assert len(seen) == 1

    asyncio.run(main())


def test_open_waits_for_a_free_place_in_turn(environments):
    async def main():
        async with environments(places=2, per_process=1) as pool:
            held = [await pool.open(identity(number)) for number in range(2)]
            order: list[int] = []

            async def next_one(number: int) -> None:
                environment = await pool.open(identity(number))
                order.append(number)
                environment.kill()

            waiting = [asyncio.create_task(next_one(number)) for number in range(3)]
            await asyncio.sleep(0.1)
            assert order == []
            assert pool.processes == 2
            held[0].kill()
            held[0].kill()  # harmless, and it frees one place, not two
            await asyncio.gather(*waiting)
            assert order == [0, 1, 2]

    asyncio.run(main())


def test_a_place_abandoned_in_mid_step_is_given_on_only_after_that_step(environments):
    async def main():
        async with environments(places=1, per_process=1) as pool:
            first = await begun(pool, 1)
            running = asyncio.create_task(failure(first.step(say("sleep 0.4"))))
            await asyncio.sleep(0.05)
            first.kill()
            assert (await running).kind is FailureKind.ENV_DIED
            began = time.monotonic()
            second = await begun(pool, 2)
            assert 0.2 < time.monotonic() - began < 2.0
            assert text_of(await second.step(say("a"))) == "2:a"

    asyncio.run(main())


def test_killing_one_in_mid_step_costs_its_neighbours_nothing(environments):
    async def main():
        async with environments(step_s=0.4) as pool:
            bad, good = await begun(pool, 0), await begun(pool, 1)
            await good.step(say("a"))
            running = asyncio.create_task(failure(bad.step(say("hang"))))
            await asyncio.sleep(0.05)
            bad.kill()
            await running
            assert text_of(await good.step(say("b"))) == "1:a,b"
            again = [await begun(pool, seed) for seed in range(5, 8)]
            assert len(again) == 3, "the place of the hung step is free again"

    asyncio.run(main())


def test_a_cancelled_step_does_not_confuse_the_next_episode(environments):
    async def main():
        async with environments(places=1, per_process=1) as pool:
            first = await begun(pool, 1)
            running = asyncio.create_task(first.step(say("sleep 0.2")))
            await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            first.kill()
            second = await begun(pool, 2)
            assert text_of(await second.step(say("a"))) == "2:a"

    asyncio.run(main())


def test_secrets_stay_outside_and_prints_go_to_the_log(environments, tmp_path: Path):
    async def main():
        async with environments() as pool:
            environment = await begun(pool)
            assert text_of(await environment.step(say("secret"))) == "none"
            await environment.step(say("print"))
            await failure(environment.step(say("crash")))
        assert "user words" in (tmp_path / "lake.log").read_text()

    asyncio.run(main())


def test_close_ends_every_child_and_gives_every_descriptor_back(environments):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def main():
        before = descriptors()
        async with environments(places=8, per_process=2, step_s=60.0) as pool:
            several = [await begun(pool, seed) for seed in range(8)]
            hung = [asyncio.create_task(failure(one.step(say("hang")))) for one in several]
            await asyncio.sleep(0.1)
            assert len(live_processes("test-run")) >= 4
            began = time.monotonic()
            await pool.close()
            assert time.monotonic() - began < 5.0
            await asyncio.wait_for(asyncio.gather(*hung), 5.0)
            assert (await failure(pool.open(identity()))).kind is FailureKind.ENV_OPEN
        assert live_processes("test-run") == ()
        assert descriptors() == before

    asyncio.run(main())


def test_a_lost_fork_server_is_started_anew(environments, warm_forks):
    async def main():
        async with environments() as pool:
            good = await begun(pool, 1)
            await good.step(say("a"))
            for process in live_processes("test-run"):
                if process.name.startswith("lake-forks"):
                    os.kill(process.pid, 9)
            await asyncio.sleep(0.5)
            assert text_of(await good.step(say("b"))) == "1:a,b"

    asyncio.run(main())
