"""Whether two events, or two logs, say the same: pure functions.

Invariant: measured seconds and loop times may differ by a stated tolerance, and a stretch of
seconds inside a text likewise; everything else must be equal, kind, order and content. NaN equals
NaN, because a number that is not finite is written as null.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollart.core.events import Event, Stamped

_SECONDS_IN_TEXT = re.compile(r"(\d+(?:\.\d+)?) s\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two logs part: position in the compared events, both events, why.

    `recorded` or `replayed` is None where one log has ended.
    """

    position: int
    recorded: Stamped | None
    replayed: Stamped | None
    why: str

    def __str__(self) -> str:
        return "\n".join(
            (
                f"first difference at event {self.position}: {self.why}",
                f"  recorded: {_line(self.recorded)}",
                f"  replayed: {_line(self.replayed)}",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`events` were equal; `apart_s` is the largest distance of two equal events' loop times."""

    events: int
    apart_s: float
    difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def compare(
    recorded: Sequence[Stamped], replayed: Sequence[Stamped], *, tolerance_s: float
) -> Comparison:
    """Compare two logs event by event, up to the first difference."""
    apart = 0.0
    for position, pair in enumerate(zip(recorded, replayed, strict=False)):
        why = unlike(*pair, tolerance_s=tolerance_s)
        if why is not None:
            found = Difference(position=position, recorded=pair[0], replayed=pair[1], why=why)
            return Comparison(events=position, apart_s=apart, difference=found)
        apart = max(apart, abs(pair[0].time - pair[1].time))
    shared = min(len(recorded), len(replayed))
    difference = None
    if len(recorded) != len(replayed):
        difference = Difference(
            position=shared,
            recorded=recorded[shared] if shared < len(recorded) else None,
            replayed=replayed[shared] if shared < len(replayed) else None,
            why=f"{len(recorded)} events were recorded and {len(replayed)} replayed",
        )
    return Comparison(events=shared, apart_s=apart, difference=difference)


def unlike(recorded: Stamped, replayed: Stamped, *, tolerance_s: float) -> str | None:
    """Why the two are not the same event at the same time; None if they are."""
    why = differs(recorded.event, replayed.event, tolerance_s=tolerance_s)
    apart = abs(recorded.time - replayed.time)
    if why is None and apart > tolerance_s:
        return f"loop times are {apart:g} s apart, over the tolerance of {tolerance_s:g} s"
    return why


def differs(recorded: Event, replayed: Event, *, tolerance_s: float) -> str | None:
    """The first field in which two events differ, with both values; None if in none."""
    if type(recorded) is not type(replayed):
        return f"{type(recorded).__name__} was recorded, {type(replayed).__name__} came"
    return _unlike("", recorded, replayed, tolerance_s)


def _unlike(name: str, recorded: object, replayed: object, tolerance_s: float) -> str | None:
    if dataclasses.is_dataclass(recorded) and type(recorded) is type(replayed):
        for part in dataclasses.fields(recorded):
            mine, theirs = getattr(recorded, part.name), getattr(replayed, part.name)
            why = _unlike(f"{name}.{part.name}" if name else part.name, mine, theirs, tolerance_s)
            if why is not None:
                return why
        return None
    if recorded == replayed or _close(name, recorded, replayed, tolerance_s):
        return None
    return f"{name} was {recorded!r} and is {replayed!r}"


def _close(name: str, recorded: object, replayed: object, tolerance_s: float) -> bool:
    if isinstance(recorded, float) and isinstance(replayed, float):
        if math.isnan(recorded) and math.isnan(replayed):
            return True
        return _is_seconds(name) and abs(recorded - replayed) <= tolerance_s
    if isinstance(recorded, str) and isinstance(replayed, str):
        return _close_texts(recorded, replayed, tolerance_s)
    return False


def _is_seconds(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last == "seconds" or last.endswith(("_s", "_at"))


def _close_texts(recorded: str, replayed: str, tolerance_s: float) -> bool:
    if _SECONDS_IN_TEXT.sub("s", recorded) != _SECONDS_IN_TEXT.sub("s", replayed):
        return False
    pairs = zip(_SECONDS_IN_TEXT.findall(recorded), _SECONDS_IN_TEXT.findall(replayed), strict=True)
    return all(abs(float(mine) - float(theirs)) <= tolerance_s for mine, theirs in pairs)


def _line(stamped: Stamped | None) -> str:
    return "nothing more" if stamped is None else f"{stamped.time:.6f} s  {stamped.event}"
