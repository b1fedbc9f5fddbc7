"""Tool use: a question, tools to find out, and an answer without a call that ends the episode.

Owns the loop between calls and answers. Invariant: every call of a message is answered by exactly
one message of role ``tool`` that carries its id, executed or not; what cannot be executed is told
to the model, which may try again. Blocks in the tools, and so belongs in a child process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from rollart.backends.envs.tool_functions import Toolbox
from rollart.core.types import Message, Observation, StepResult, Task

THOUGHT_ENDS = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEpisode:
    """What one episode is about.

    Attributes:
        question: the first message to the agent.
        tools: functions with type hints and a docstring; often methods of one episode's database.
        judge: the score of a final answer, 1 for a right one.
    """

    question: str
    tools: tuple[Callable[..., object], ...]
    judge: Callable[[str], float]


class ToolEnvironment:
    """Base of tool-use environments: a subclass says in `begin` what an episode is about.

    The model's calls are checked against the functions' signatures, executed, and answered. A
    message without a call is the final answer: its text, thoughts left out, is judged.

    Metrics: ``success`` (1 when the score is 1 or more), ``tool_calls``, ``tool_parse_error``
    (calls that were not executed: unreadable, of an unknown tool, of unfit arguments),
    ``tool_error`` (calls whose tool said no).
    """

    wants_message: ClassVar[Literal[True]] = True
    replayable: ClassVar[bool] = True

    def __init__(self, *, instructions: str = "", declare: bool = True, most_calls: int = 8):
        """Take the domain's options.

        Args:
            instructions: text of a system message; without it there is none.
            declare: tell the chat template about the tools; else the instructions have to.
            most_calls: calls that one message may make; those beyond are refused.

        Raises:
            TypeError: this is `ToolEnvironment` itself, which has no tools.
        """
        if type(self).begin is ToolEnvironment.begin:
            raise TypeError("has no tools of its own; name a subclass that defines begin()")
        if most_calls < 1:
            raise ValueError(f"most_calls = {most_calls}: at least 1, for example 8")
        self._instructions = instructions
        self._declare = declare
        self._most_calls = most_calls
        self._episode: ToolEpisode | None = None
        self._toolbox = Toolbox(())
        self._calls = self._refused = self._failed = 0

    def begin(self, task: Task, seed: int) -> ToolEpisode:
        """The episode of ``task``; the same task and seed are the same episode."""
        raise NotImplementedError(f"{type(self).__name__} does not say how an episode begins")

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin an episode; raises what `begin` raises."""
        self._episode = self.begin(task, seed)
        self._toolbox = Toolbox(self._episode.tools)
        self._calls = self._refused = self._failed = 0
        tools = self._toolbox.specs if self._declare else ()
        question = self._episode.question
        if not self._instructions:
            return _shown(Message(role="user", content=question, tools=tools))
        return _shown(
            Message(role="system", content=self._instructions, tools=tools),
            Message(role="user", content=question),
        )

    def step(self, action: Message) -> StepResult:
        """Answer the calls of ``action``, or judge it; raises RuntimeError before a reset."""
        if self._episode is None:
            raise RuntimeError("step before reset: reset the environment with a task first")
        if action.tool_calls:
            return self._result(_shown(*self._answers(action)), score=None)
        score = self._episode.judge(action.content.split(THOUGHT_ENDS)[-1].strip())
        return self._result(_shown(Message(role="user", content="The end.")), score=score)

    def _answers(self, action: Message) -> list[Message]:
        answers: list[Message] = []
        for number, call in enumerate(action.tool_calls):
            self._calls += 1
            if number >= self._most_calls:
                self._refused += 1
                content = f"error: at most {self._most_calls} calls at once; this one was not made"
            else:
                answer = self._toolbox.answer(call)
                self._refused += answer.refused
                self._failed += answer.failed
                content = answer.content
            answers.append(Message(role="tool", content=content, tool_call_id=call.id))
        return answers

    def _result(self, observation: Observation, *, score: float | None) -> StepResult:
        return StepResult(
            observation=observation,
            reward=score or 0.0,
            done=score is not None,
            metrics=(
                ("success", float(score is not None and score >= 1.0)),
                ("tool_calls", float(self._calls)),
                ("tool_parse_error", float(self._refused)),
                ("tool_error", float(self._failed)),
            ),
        )


def _shown(*messages: Message) -> Observation:
    return Observation(messages=messages)
