"""Requests and answers between a run and a function on a platform: JSON, versioned.

Invariant: an answer holds a verdict or an error and never both; what a platform says about it (a
status, a header) cannot turn an error into a verdict. NaN and infinities are no JSON here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from rollart.core.scoring.verdict import Verdict, verdict_from_json, verdict_to_json

WIRE_VERSION = 1
CONTENT_TYPE = "application/json"

MOST_TEXT = 2_000  # characters of an answer's error, reason and names; more is cut off
MOST_COMPONENTS = 64  # of a verdict
MOST_NAME = 100  # characters of a component's name


class Garbled(ValueError):
    """Bytes that are no request or answer of this wire; the message says what is wrong."""


class Foreign(Garbled):
    """Bytes that have nothing of this wire: no JSON, no such object, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A trajectory document too large to send, in a store that both sides reach."""

    url: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call of a function. With neither trajectory nor reference it asks for its health.

    Attributes:
        key: identity of the trajectory and version of the reward; calls of one key are one.
        seconds: that the caller waits from now on.
        trajectory: the document, as JSON.
    """

    key: str = ""
    seconds: float = 0.0
    trajectory: Mapping[str, Any] | None = None
    reference: Reference | None = None

    @property
    def is_health(self) -> bool:
        """Whether it only asks which function lives here."""
        return self.trajectory is None and self.reference is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a function says.

    Attributes:
        verdict: None for the answer to a health call, and beside an error.
        error: type and message of what the function raised, or of what it returned wrongly.
        function: its import path; version: the hash of its sources (see `sources`).
        instance: names the process that answered; cold: it was that one's first call.
        seconds: that the function itself took.
    """

    key: str
    function: str
    version: str
    instance: str
    cold: bool = False
    seconds: float = 0.0
    verdict: Verdict | None = None
    error: str = ""


def encode_request(request: Request) -> bytes:
    """Raises `TypeError` or `ValueError` where the task's payload is no JSON."""
    plain: dict[str, Any] = {"rollart": WIRE_VERSION, "key": request.key}
    if request.is_health:
        plain["health"] = True
    else:
        plain["seconds"] = request.seconds
    if request.trajectory is not None:
        plain["trajectory"] = request.trajectory
    if request.reference is not None:
        where = request.reference
        plain["reference"] = {"url": where.url, "size": where.size, "sha256": where.sha256}
    return _dumped(plain)


def decode_request(body: bytes | str) -> Request:
    """Raises `Garbled`."""
    table = _loaded(body, "request")
    found: Reference | None = None
    where = table.get("reference")
    if where is not None:
        try:
            found = Reference(
                url=str(where["url"]), size=int(where["size"]), sha256=str(where["sha256"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Garbled(f"a request with a damaged reference: {error!r}") from error
    try:
        seconds = float(table.get("seconds", 0.0))
    except (TypeError, ValueError, OverflowError) as error:
        raise Garbled(f"a request with damaged seconds: {error}") from error
    request = Request(
        key=str(table.get("key", "")),
        seconds=seconds,
        trajectory=table.get("trajectory"),
        reference=found,
    )
    if request.is_health and not table.get("health"):
        raise Garbled("a request without trajectory, reference or health")
    return request


def encode_answer(answer: Answer) -> bytes:
    """An answer of finite numbers; see `as_verdict`. Texts are `bounded`."""
    plain: dict[str, Any] = {
        "rollart": WIRE_VERSION,
        "key": answer.key,
        "function": answer.function,
        "version": answer.version,
        "instance": answer.instance,
        "cold": answer.cold,
        "seconds": answer.seconds,
    }
    if answer.error:
        plain["error"] = bounded(answer.error)
    elif answer.verdict is not None:
        plain["verdict"] = verdict_to_json(_with_bounds(answer.verdict))
    return _dumped(plain)


def decode_answer(body: bytes | str) -> Answer:
    """Raises `Garbled`; an answer with a verdict that is none has an error instead.

    Texts are `bounded`, but for the key, and components are few: a stranger wrote them, and they go
    into events and reports.
    """
    table = _loaded(body, "answer")
    verdict: Verdict | None = None
    error = bounded(str(table.get("error") or ""))
    if not error and "verdict" in table:
        try:
            verdict = _few_components(_with_bounds(verdict_from_json(table["verdict"])))
        except (TypeError, ValueError) as wrong:
            error = bounded(str(wrong))
    try:
        return Answer(
            key=str(table.get("key", "")),
            function=bounded(str(table.get("function", ""))),
            version=bounded(str(table.get("version", ""))),
            instance=bounded(str(table.get("instance", ""))),
            cold=bool(table.get("cold", False)),
            seconds=float(table.get("seconds", 0.0)),
            verdict=verdict,
            error=error,
        )
    except (TypeError, ValueError, OverflowError) as wrong:
        raise Garbled(bounded(f"an answer with {wrong}")) from wrong


def bounded(text: str) -> str:
    """A text of at most `MOST_TEXT` characters, and none of them half a one."""
    if len(text) > MOST_TEXT:
        text = f"{text[: MOST_TEXT - 1]}…"
    return text.encode("utf-8", errors="replace").decode()


def _with_bounds(verdict: Verdict) -> Verdict:
    names = tuple((bounded(name), number) for name, number in verdict.components)
    return replace(verdict, reason=bounded(verdict.reason), components=names)


def _few_components(verdict: Verdict) -> Verdict:
    """The same. Raises `ValueError` for what no report could show."""
    if len(verdict.components) > MOST_COMPONENTS:
        raise ValueError(
            f"a verdict with {len(verdict.components)} components; at most {MOST_COMPONENTS}"
        )
    for name, _ in verdict.components:
        if len(name) > MOST_NAME:
            raise ValueError(
                f"a verdict's component with a name of {len(name)} characters or more "
                f"({name[:40]!r}…); at most {MOST_NAME}"
            )
    return verdict


def _dumped(plain: Mapping[str, Any]) -> bytes:
    text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a character: platforms take no such bytes, but its escape
        return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()


def _loaded(body: bytes | str, what: str) -> Mapping[str, Any]:
    try:
        text = body if isinstance(body, str) else body.decode()
        table = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        shown = body[:80]
        kind = Garbled if isinstance(error, Garbled) else Foreign  # a NaN is some function's own
        raise kind(f"{what} is no JSON ({error}): {shown!r}") from error
    if not isinstance(table, Mapping) or cast("Mapping[str, Any]", table).get("rollart") != 1:
        raise Foreign(
            f"{what} is not of this wire, version {WIRE_VERSION}: {body[:80]!r}; is another "
            "function deployed there?"
        )
    return cast("Mapping[str, Any]", table)


def _no_constant(name: str) -> NoReturn:
    raise Garbled(f"{name} is no number")
