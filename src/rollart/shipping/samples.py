"""Trajectory documents to try a function with: built-in ones, or those a run recorded.

Invariant: the built-in ones are the same at every call, and each has an identity of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.core.errors import ConfigError
from rollart.core.scoring.document import (
    TaskDocument,
    ToolCallDocument,
    TrajectoryDocument,
    TurnDocument,
)

if TYPE_CHECKING:
    from rollart.observe.transcripts import Transcript

LARGE_BYTES = 1 << 20
_METRICS = {"success": 1.0, "tool_calls": 1.0, "tool_parse_error": 0.0}
_PAYLOAD = {"question": "What is 6 times 7?", "answer": "42"}


def sample_documents(number: int) -> list[TrajectoryDocument]:
    """So many of the built-in documents, kind by kind and then again with other numbers."""
    return [*islice(_samples(), number)]


def _samples() -> Iterator[TrajectoryDocument]:
    for number in count():
        name, make = _KINDS[number % len(_KINDS)]
        turns = make(number)
        yield TrajectoryDocument(
            id=f"samples/{name}/{number}",
            run="samples",
            policy="default",
            task=TaskDocument(domain="samples", key=f"{name}-{number}", payload=_PAYLOAD),
            turns=turns,
            status="truncated" if turns and turns[-1].stop != "stop" else "finished",
            group=number,
            start_version=0,
            metrics={**_METRICS, "success": float(number % 2)},
            prompt_tokens=sum(turn.prompt_tokens for turn in turns),
            sampled_tokens=sum(turn.sampled_tokens for turn in turns),
            elapsed_s=0.5 * len(turns),
            reset_s=0.1,
        )


def _turn(observation: str, action: str, **more: Any) -> TurnDocument:
    return TurnDocument(
        observation=observation,
        action=action,
        prompt_tokens=len(observation.split()),
        sampled_tokens=max(1, len(action.split())),
        env_s=0.01,
        **more,
    )


def _one_turn(number: int) -> tuple[TurnDocument, ...]:
    return (_turn(_PAYLOAD["question"], f"<answer>{41 + number % 3}</answer>"),)


def _no_turns(number: int) -> tuple[TurnDocument, ...]:
    return ()


def _tool_calls(number: int) -> tuple[TurnDocument, ...]:
    call = ToolCallDocument(id=f"call-{number}", name="multiply", arguments='{"a": 6, "b": 7}')
    broken = ToolCallDocument(id=f"call-{number}-2", name="multiply", arguments='{"a": 6, ')
    return (
        _turn(_PAYLOAD["question"], "", tool_calls=(call, broken), reward=0.5),
        _turn("42", "<answer>42</answer>", reward=0.5),
    )


def _unicode(number: int) -> tuple[TurnDocument, ...]:
    words = "Größe 数 \u05e9\u05dc\u05d5\u05dd \U0001f9ee e\u0301 \u2028 \u0000 \\u0041 \"'"
    return (_turn(words, f"{words} {number}"),)


def _long(number: int) -> tuple[TurnDocument, ...]:
    return tuple(_turn(f"step {step}", f"go {step + number}", reward=0.0) for step in range(64))


def _large(number: int) -> tuple[TurnDocument, ...]:
    text = f"word{number} " * (LARGE_BYTES // len(f"word{number} "))
    return (_turn(text, "<answer>42</answer>"),)


def _cut_off(number: int) -> tuple[TurnDocument, ...]:
    return (_turn(_PAYLOAD["question"], "well, " * (number + 1), stop="length"),)


_KINDS: tuple[tuple[str, Callable[[int], tuple[TurnDocument, ...]]], ...] = (
    ("one-turn", _one_turn),
    ("no-turns", _no_turns),
    ("tool-calls", _tool_calls),
    ("unicode", _unicode),
    ("long", _long),
    ("large", _large),
    ("cut-off", _cut_off),
)


def recorded_documents(run: Path) -> list[TrajectoryDocument]:
    """What a run recorded of finished trajectories, as documents. Tasks have no payload there.

    Raises `ConfigError` for a directory that holds none.
    """
    from rollart.observe.transcripts import TRANSCRIPTS_FILE, TranscriptError, read_transcripts

    path = run / TRANSCRIPTS_FILE
    try:
        documents = [
            _document(one, run.name)
            for one in read_transcripts(path)
            if one.status in ("finished", "truncated")
        ]
    except (OSError, TranscriptError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a run's directory") from error
    if not documents:
        raise ConfigError(f"{path}: holds no finished trajectory; leave --run out")
    return documents


def _document(said: "Transcript", run: str) -> TrajectoryDocument:
    tokens = sum(count for segment in said.segments for _, count in segment.runs)
    sampled = sum(count for _, count in said.versions)
    return TrajectoryDocument(
        id=said.trajectory,
        run=run,
        policy="default",
        task=TaskDocument(domain=said.domain, key=said.task),
        turns=tuple(
            TurnDocument(
                observation=turn.observation,
                action=turn.action,
                tool_calls=tuple(
                    ToolCallDocument(id=call.id, name=call.name, arguments=call.arguments)
                    for call in turn.tool_calls
                ),
                stop=turn.stop,
                reward=turn.reward,
                sampled_tokens=turn.end - turn.start,
                env_s=turn.env_s,
            )
            for turn in said.turns
        ),
        status=said.status,
        group=said.group,
        member=said.member,
        attempt=said.attempt,
        purpose=said.purpose,
        start_version=said.start_version,
        metrics=_metrics(dict(said.metrics)),
        prompt_tokens=tokens - sampled,
        sampled_tokens=sampled,
        elapsed_s=said.elapsed_s,
    )


def _metrics(found: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}
