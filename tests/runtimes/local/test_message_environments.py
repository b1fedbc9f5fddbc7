"""What an environment's `step` is given: the agent's text, or its whole message on request."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rollart.core.identity import TrajectoryId
from rollart.core.types import Message, Task, ToolCall
from rollart.runtimes.local.environments import LocalEnvironments

CALLER = """

class Caller:
    '''Answers with what it was given; a message is told by its calls.'''
    replayable = True
    wants_message = True

    def reset(self, task, seed):
        self.seen = []
        return "call"

    def step(self, action):
        if action.content == "pid":
            return result(str(os.getpid()))
        self.seen += [f"{c.id} {c.name} {c.arguments}" for c in action.tool_calls]
        return result("|".join([action.content, *self.seen]))

class Reader(Caller):
    wants_message = False

    def step(self, action):
        return result(f"{type(action).__name__} {action}")
"""
CALL = ToolCall(id="call00000", name="look", arguments='{"a": 1,')

Environments = Callable[..., AbstractAsyncContextManager[LocalEnvironments]]


def add_classes(user_folder: Path) -> None:
    with (user_folder / "my_environments.py").open("a") as file:
        file.write(CALLER)


async def begun(pool: LocalEnvironments):
    environment = await pool.open(
        TrajectoryId(run="test-run", domain="lake", task="t0", group=1, member=0)
    )
    await environment.reset(Task(domain="lake", key="t0"), 1)
    return environment


def test_an_environment_that_wants_the_message_gets_its_calls_as_they_were_written(
    environments: Environments, user_folder: Path
) -> None:
    add_classes(user_folder)

    async def main() -> None:
        async with environments("Caller") as pool:
            environment = await begun(pool)
            said = Message(role="assistant", content="let me look", tool_calls=(CALL,))
            result = await environment.step(said)
            text = result.observation.messages[0].content
            assert text == 'let me look|call00000 look {"a": 1,'

    asyncio.run(main())


def test_an_environment_that_does_not_ask_for_it_gets_text(
    environments: Environments, user_folder: Path
) -> None:
    add_classes(user_folder)

    async def main() -> None:
        async with environments("Reader") as pool:
            environment = await begun(pool)
            result = await environment.step(
                Message(role="assistant", content="<tool_call>", tool_calls=(CALL,))
            )
            assert result.observation.messages[0].content == "str <tool_call>"

    asyncio.run(main())


def test_calls_are_replayed_when_the_process_is_lost(
    environments: Environments, user_folder: Path
) -> None:
    add_classes(user_folder)

    async def main() -> None:
        async with environments("Caller") as pool:
            environment = await begun(pool)
            await environment.step(Message(role="assistant", content="a", tool_calls=(CALL,)))
            asked = await environment.step(Message(role="assistant", content="pid"))
            os.kill(int(asked.observation.messages[0].content), 9)
            await asyncio.sleep(0.5)  # its death in mid-step would be this episode's fault
            after = await environment.step(Message(role="assistant", content="b"))
            assert after.observation.messages[0].content == 'b|call00000 look {"a": 1,'

    asyncio.run(main())
