"""A recorded trajectory for a terminal: turns in words, tokens coloured by policy version.

Invariant: drawn from a `Transcript` alone; what the model or environment said is never taken for
markup or for control of the terminal. Where there is no colour, or two versions share a turn, each
version's part is marked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollart.observe.transcripts import SaidTurn, Tokens, Transcript
from rollart.observe.words import UNKNOWN, duration, number

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))}
_CONTROLS.pop(ord("\n"))
_CONTROLS.pop(ord("\t"))

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special tokens included."""


def shown(text: str) -> str:
    """Text of a model or an environment, which must not steer the reader's terminal."""
    return text.translate(_CONTROLS)


def listing(transcripts: Iterable[Transcript], dispositions: Mapping[str, str]) -> "Table":
    """One line a recorded trajectory."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="dim", box=SIMPLE_HEAD)
    # Ids are there to be copied.
    table.add_column("trajectory", no_wrap=True)
    for heading in ("purpose", "status"):
        table.add_column(heading)
    for heading in ("turns", "tokens", "versions", "reward"):
        table.add_column(heading, justify="right")
    table.add_column("became")
    for one in transcripts:
        versions = [version for version, _ in one.versions]
        table.add_row(
            Text(one.trajectory),
            one.purpose,
            one.failure or one.status,
            str(len(one.turns)),
            str(sum(count for _, count in one.versions)),
            _span(versions),
            number(one.score, 3),
            dispositions.get(one.trajectory, UNKNOWN).replace("_", " "),
        )
    return table


def _span(versions: Sequence[int]) -> str:
    if not versions:
        return UNKNOWN
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first}..{last}"


def transcript(
    one: Transcript, *, disposition: str | None, decode: Decode | None, colour: bool
) -> "RenderableType":
    """The whole of a trajectory.

    Args:
        disposition: what became of it; None if no event says so.
        decode: the tokenizer's; without it a turn is shown by its recorded words.
        colour: whether the terminal shows colours.
    """
    from rich.console import Group

    colours = {v: COLOURS[at % len(COLOURS)] for at, (v, _) in enumerate(one.versions)}
    view = _View(one, decode, colours, colour)
    parts: list[RenderableType] = [_head(one, disposition), view.legend()]
    for at, turn in enumerate(one.turns):
        parts += view.turn(at, turn)
    parts += view.rest()
    return Group(*parts)


def _head(one: Transcript, disposition: str | None) -> "Text":
    from rich.text import Text

    head = Text()
    head.append(f"{one.trajectory}\n", style="bold")
    head.append(
        f"{one.purpose}, domain {one.domain}, task {one.task}, group {one.group}, "
        f"member {one.member}, attempt {one.attempt}\n"
    )
    ended = f"{one.status} ({one.failure})" if one.failure else one.status
    head.append(f"{ended} after {duration(one.elapsed_s)} and {len(one.turns)} turns")
    head.append(f"; started under version {number(one.start_version, 0)}")
    head.append(f"; became: {(disposition or 'not known').replace('_', ' ')}\n")
    if one.detail:
        head.append(f"{shown(one.detail)}\n", style="red")
    verdict = "no verdict" if one.score is None else f"reward {one.score:g}"
    if one.reason:
        verdict += f" ({shown(one.reason)})"
    named = [f"{name} {value:g}" for name, value in (*one.components, *one.metrics)]
    head.append(", ".join((verdict, *named)))
    return head


class _View:
    """The parts of one transcript."""

    def __init__(
        self,
        one: Transcript,
        decode: Decode | None,
        colours: Mapping[int, str],
        colour: bool,
    ) -> None:
        self._one = one
        self._decode = None if decode is None else lambda ids: shown(decode(ids))
        self._colours = colours
        self._colour = colour
        self._at = (0, 0)
        """(segment, token) up to which all has been shown."""

    def legend(self) -> "Text":
        from rich.text import Text

        legend = Text("versions: ")
        for version, count in self._one.versions:
            legend.append(f"v{version}", style=f"bold {self._colours[version]}")
            legend.append(f" {count} tokens  ")
        return legend if self._one.versions else Text("no token was sampled", style="dim")

    def turn(self, at: int, turn: SaidTurn) -> "list[RenderableType]":
        from rich.rule import Rule
        from rich.text import Text

        said = [f"turn {at + 1}", turn.stop, turn.engine or "no engine"]
        if turn.reward is not None:
            said.append(f"reward {turn.reward:g}")
        parts: list[RenderableType] = [
            Rule(Text(", ".join(said)), align="left", style="dim"),
            self._seen(turn),
            self._sampled(turn),
        ]
        for call in turn.tool_calls:
            parts.append(Text(shown(f"calls {call.name}({call.arguments})"), style="italic"))
        return parts

    def rest(self) -> "list[RenderableType]":
        """What stands behind the last turn, and which parts of it nobody answered."""
        from rich.text import Text

        segment, start = self._at
        if self._decode is None or segment >= len(self._one.segments):
            return []
        tokens = self._one.segments[segment]
        end = sum(count for _, count in tokens.runs)
        if end <= start or tokens.ids is None:
            return []
        return [Text(self._decode(tokens.ids[start:end]), style="dim")]

    def _seen(self, turn: SaidTurn) -> "Text":
        from rich.text import Text

        segment, start = self._at
        new = segment != turn.segment
        tokens = self._tokens(turn.segment)
        self._at = (turn.segment, turn.end)
        if self._decode is None or tokens is None or tokens.ids is None:
            return Text(shown(turn.observation), style="dim")
        seen = self._decode(tokens.ids[0 if new else start : turn.start])
        return Text(f"(a new segment)\n{seen}" if new else seen, style="dim")

    def _sampled(self, turn: SaidTurn) -> "Text":
        from rich.text import Text

        tokens = self._tokens(turn.segment)
        runs = [] if tokens is None else within(tokens.runs, turn.start, turn.end)
        marked = len(runs) > 1 or not self._colour
        if self._decode is None or tokens is None or tokens.ids is None:
            # Which words are whose is not known without a tokenizer: only how many tokens.
            style = self._colours.get(runs[0][0], "") if len(runs) == 1 else "bold"
            text = Text(shown(turn.action), style=style)
            if marked:
                text.append(
                    "  [" + ", ".join(f"v{v}: {n} tokens" for v, n in runs) + "]", style="dim"
                )
            return text
        text, at = Text(), turn.start
        ids = tokens.ids
        for version, count in runs:
            if marked:
                text.append(f"[v{version}]", style="dim")
            # Decoded with what goes before it, so that word separators are kept.
            before = self._decode(ids[turn.start : at])
            whole = self._decode(ids[turn.start : at + count])
            part = whole[len(before) :] if whole.startswith(before) else whole
            text.append(part, style=self._colours.get(version, ""))
            at += count
        return text

    def _tokens(self, segment: int) -> Tokens | None:
        segments = self._one.segments
        return segments[segment] if segment < len(segments) else None


def within(runs: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The part of (version, count) runs between two places, neighbours of a version joined."""
    found: list[tuple[int, int]] = []
    at = 0
    for version, count in runs:
        inside = min(at + count, end) - max(at, start)
        if inside > 0:
            if found and found[-1][0] == version:
                found[-1] = (version, found[-1][1] + inside)
            else:
                found.append((version, inside))
        at += count
    return found
