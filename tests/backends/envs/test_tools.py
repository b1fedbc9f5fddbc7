"""Tool use: calls are checked, executed and answered; what is wrong goes back to the model."""

import json
from typing import Literal

import pytest

from rollart.backends.envs.tool_functions import MOST_CHARACTERS, Toolbox
from rollart.backends.envs.tools import ToolEnvironment, ToolEpisode
from rollart.backends.renderers.tool_calls import read_answer
from rollart.core.authoring import environment_misfit, wants_message
from rollart.core.types import Message, StepResult, Task, ToolCall

TASK = Task(domain="notes", key="t")


class Notes(ToolEnvironment):
    """Writes notes down; remembers what was executed."""

    def begin(self, task: Task, seed: int) -> ToolEpisode:
        self.executed: list[object] = []

        def write(text: str, times: int = 1, tone: Literal["low", "high"] = "low") -> list[str]:
            """Write a note
            down."""
            self.executed.append((text, times, tone))
            if text == "nothing":
                raise ValueError("a note needs words")
            if text == "bug":
                raise AttributeError("fault of the tool")
            return [text] * times

        def mean(numbers: list[float], weights: dict[str, float] | None = None) -> float:
            self.executed.append(numbers)
            return sum(numbers) / len(numbers)

        return ToolEpisode(
            question="Note it.", tools=(write, mean), judge=lambda answer: float(answer == "done")
        )


def agent(text: str) -> Message:
    """The agent's message, its calls read by the renderer's parser."""
    return Message(role="assistant", content=text, tool_calls=read_answer(text).calls)


def call(name: str, **arguments: object) -> Message:
    body = json.dumps({"name": name, "arguments": arguments})
    return agent(f"<tool_call>{body}</tool_call>")


def begun(**options: object) -> Notes:
    notes = Notes(**options)  # pyright: ignore[reportArgumentType]  # options as from a job file
    notes.reset(TASK, 0)
    return notes


def said(result: StepResult) -> list[str]:
    return [message.content for message in result.observation.messages]


def metrics(result: StepResult) -> dict[str, float]:
    return dict(result.metrics)


def test_a_call_is_executed_and_its_result_carries_its_id() -> None:
    notes = begun()
    result = notes.step(call("write", text="milk", times=2))
    (message,) = result.observation.messages
    assert (message.role, message.tool_call_id) == ("tool", "call00000")
    assert json.loads(message.content) == ["milk", "milk"]
    assert (result.done, result.reward) == (False, 0.0)
    assert metrics(result) == {
        "success": 0.0,
        "tool_calls": 1.0,
        "tool_parse_error": 0.0,
        "tool_error": 0.0,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>{"name": "write", "arguments": {"a": 1,</tool_call>', "not valid JSON"),
        ('{"name": "write", "parameters": {"a": 1,', "not valid JSON"),
        ("<tool_call>write(milk)</tool_call>", "not valid JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "names no tool"),
        ('<tool_call>{"name": "erase", "arguments": {}}</tool_call>', "no tool 'erase'"),
        ('<tool_call>{"name": "write", "arguments": [1]}</tool_call>', "no JSON object"),
        ('<tool_call>{"name": "write", "arguments": {}}</tool_call>', "needs the argument 'text'"),
        ('{"name": "write", "arguments": {"text": "a", "x": 1}}', "takes no argument 'x'"),
        ('{"name": "write", "arguments": {"text": 1}}', "text = 1 does not fit"),
        ('{"name": "write", "arguments": {"text": "a", "times": true}}', "times = true"),
        ('{"name": "write", "arguments": {"text": "a", "times": NaN}}', "NaN is no JSON number"),
        ('{"name": "write", "arguments": {"text": "a", "tone": "mid"}}', 'tone = "mid"'),
        ('{"name": "mean", "arguments": {"numbers": [1, "2"]}}', "numbers[1]"),
        ('{"name": "mean", "arguments": {"numbers": [], "weights": {"a": "b"}}}', "weights"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "nested too deeply"),
    ],
)
def test_a_call_that_cannot_be_executed_is_not_and_the_model_is_told_why(
    text: str, problem: str
) -> None:
    notes = begun()
    result = notes.step(agent(text))
    (message,) = result.observation.messages
    assert notes.executed == []
    assert (message.role, message.tool_call_id) == ("tool", "call00000")
    assert message.content.startswith("error: ")
    assert problem in message.content
    assert metrics(result)["tool_parse_error"] == 1.0
    assert not result.done
    better = notes.step(call("write", text="milk"))
    assert said(better) == ['["milk"]']
    assert notes.executed == [("milk", 1, "low")]


def test_what_a_tool_says_no_to_is_an_answer_and_a_fault_of_the_tool_is_raised() -> None:
    notes = begun()
    result = notes.step(call("write", text="nothing"))
    assert said(result) == ["error: a note needs words"]
    assert metrics(result)["tool_error"] == 1.0
    assert said(notes.step(call("mean", numbers=[]))) == ["error: division by zero"]
    with pytest.raises(AttributeError, match="fault of the tool"):
        notes.step(call("write", text="bug"))


def test_calls_of_one_message_are_answered_in_order_and_bounded() -> None:
    notes = begun(most_calls=2)
    body = '<tool_call>{"name": "mean", "arguments": {"numbers": [%d]}}</tool_call>'
    result = notes.step(agent("".join(body % number for number in (4, 5, 6))))
    assert said(result)[:2] == ["4.0", "5.0"]
    assert said(result)[2] == "error: at most 2 calls at once; this one was not made"
    ids = [message.tool_call_id for message in result.observation.messages]
    assert ids == ["call00000", "call00001", "call00002"]
    assert notes.executed == [[4.0], [5.0]]


@pytest.mark.parametrize(
    ("text", "score"), [("done", 1.0), ("<think>hm</think>\n\n done\n", 1.0), ("not yet", 0.0)]
)
def test_an_answer_without_a_call_ends_the_episode(text: str, score: float) -> None:
    result = begun().step(agent(text))
    assert (result.done, result.reward, metrics(result)["success"]) == (True, score, score)


def test_counts_begin_anew_with_each_episode() -> None:
    notes = begun()
    notes.step(agent("<tool_call></tool_call>"))
    notes.reset(TASK, 1)
    assert metrics(notes.step(call("mean", numbers=[1])))["tool_parse_error"] == 0.0


def test_a_long_result_is_cut() -> None:
    (text,) = said(begun().step(call("write", text="x" * 9000)))
    assert len(text) < MOST_CHARACTERS + 50
    assert text.endswith("(9004 characters in all)")


def test_tools_are_declared_by_their_signatures() -> None:
    notes = Notes(instructions="Be neat.")
    system, question = notes.reset(TASK, 0).messages
    assert (system.role, question.role) == ("system", "user")
    write, mean = system.tools
    assert (write.name, write.description) == ("write", "Write a note down.")
    assert json.loads(write.parameters) == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "times": {"type": "integer"},
            "tone": {"enum": ["low", "high"]},
        },
        "required": ["text"],
    }
    assert json.loads(mean.parameters)["properties"]["weights"]["anyOf"][1] == {"type": "null"}
    (alone,) = Notes(declare=False).reset(TASK, 0).messages
    assert alone.tools == ()


def no_hint(x) -> None: ...  # what is tested


def test_functions_that_cannot_be_declared_are_refused() -> None:
    def takes_bytes(x: bytes) -> None: ...

    def takes_all(*rest: int) -> None: ...

    for function, why in (
        (no_hint, "'x' needs a type hint"),
        (takes_bytes, "takes_bytes: the type <class 'bytes'> cannot be declared"),
        (takes_all, "'rest' needs"),
    ):
        with pytest.raises(TypeError, match=why):
            Toolbox([function])
    with pytest.raises(ValueError, match="two tools are called 'len_of'"):
        Toolbox([len_of, len_of])


def len_of(x: str) -> int:
    return len(x)


def test_an_id_is_kept_whatever_it_is() -> None:
    odd = ToolCall(id="any thing", name="mean", arguments='{"numbers": [2]}')
    result = begun().step(Message(role="assistant", content="", tool_calls=(odd,)))
    assert result.observation.messages[0].tool_call_id == "any thing"


def test_it_is_an_environment_that_wants_whole_messages() -> None:
    assert environment_misfit(Notes) is None
    assert wants_message(Notes)
    with pytest.raises(RuntimeError, match="step before reset"):
        Notes().step(agent("done"))
    with pytest.raises(ValueError, match="most_calls = 0"):
        Notes(most_calls=0)
