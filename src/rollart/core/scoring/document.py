"""The trajectory document: what a reward function is given, here and on any platform.

Invariant: it is JSON with a version and no internal object: `to_json` and `from_json` are inverse,
and a field is only ever added. Its names are those of the records it is made of (`core.types`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

DOCUMENT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDocument:
    """A tool call as the model wrote it; `arguments` is unparsed JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDocument:
    """One exchange: what the agent saw and said, and what that cost.

    Attributes:
        stop: "stop", "length" (cut off at its limit) or "context_overflow".
        reward: what the environment gave for this turn, if anything.
        prompt_tokens: found in cache or prefilled; sampled_tokens: what the agent said.
        env_s: seconds that the environment took to answer.
    """

    observation: str
    action: str
    tool_calls: tuple[ToolCallDocument, ...] = ()
    stop: str = "stop"
    reward: float | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    env_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDocument:
    """The problem: `payload` is the environment's own data, as JSON."""

    domain: str
    key: str
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryDocument:
    """A finished trajectory, as a reward function sees it.

    Attributes:
        id: its identity in the run; trajectories of one task in one group differ in it.
        purpose: "train" or "eval".
        status: "finished", or "truncated" at a limit of turns, tokens or context.
        metrics: the environment's named numbers; `success` in 0..1 is the usual one.
        prompt_tokens, sampled_tokens: of all turns, each counted once.
    """

    id: str
    run: str
    policy: str
    task: TaskDocument
    turns: tuple[TurnDocument, ...]
    status: str = "finished"
    group: int = 0
    member: int = 0
    attempt: int = 0
    purpose: str = "train"
    start_version: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    elapsed_s: float = 0.0
    reset_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens together."""
        return self.prompt_tokens + self.sampled_tokens

    def metric(self, name: str) -> float | None:
        """A metric, or None where the environment gave none of this name."""
        return self.metrics.get(name)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = {name: getattr(self, name) for name in _TRAJECTORY}
        plain["metrics"] = dict(self.metrics)
        plain["task"] = {name: getattr(self.task, name) for name in _TASK}
        plain["turns"] = [_turn_to_json(turn) for turn in self.turns]
        return {"version": DOCUMENT_VERSION, **plain}

    @classmethod
    def from_json(cls, given: object) -> "TrajectoryDocument":
        """What `to_json` made; fields of later additions are passed over.

        Raises `ValueError` for another version, or for what is no such document.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"{type(given).__name__} is no trajectory document; it is an object")
        table = cast("Mapping[str, Any]", given)
        if table.get("version") != DOCUMENT_VERSION:
            raise ValueError(
                f"a trajectory document of version {table.get('version')!r}; this function reads "
                f"version {DOCUMENT_VERSION}: package and deploy it again"
            )
        try:
            known = {name: table[name] for name in _TRAJECTORY if name in table}
            known["task"] = TaskDocument(**_known(table["task"], _TASK))
            known["turns"] = tuple(map(_turn_from_json, table["turns"]))
            return cls(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a damaged trajectory document: {error!r}") from error


def _turn_to_json(turn: TurnDocument) -> dict[str, Any]:
    plain = {name: getattr(turn, name) for name in _TURN}
    plain["tool_calls"] = [
        {name: getattr(call, name) for name in _CALL} for call in turn.tool_calls
    ]
    return plain


def _turn_from_json(given: Mapping[str, Any]) -> TurnDocument:
    known = _known(given, _TURN)
    calls = known.get("tool_calls", ())
    known["tool_calls"] = tuple(ToolCallDocument(**_known(call, _CALL)) for call in calls)
    return TurnDocument(**known)


def _known(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


_TRAJECTORY = tuple(TrajectoryDocument.__dataclass_fields__)
_TASK = tuple(TaskDocument.__dataclass_fields__)
_TURN = tuple(TurnDocument.__dataclass_fields__)
_CALL = tuple(ToolCallDocument.__dataclass_fields__)
