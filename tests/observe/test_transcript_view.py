import dataclasses
import io
from collections.abc import Sequence

from rich.console import Console

from rollart.core.types import ToolCall
from rollart.observe.transcript_view import transcript, within
from rollart.observe.transcripts import SaidTurn, Tokens, Transcript

WORDS = ["<user>", "map", "<assistant>", "go", "left", "now", "<user>", "hole"]


def decode(ids: Sequence[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def a_turn(start: int, end: int, **more: object) -> SaidTurn:
    turn = SaidTurn(
        segment=0,
        start=start,
        end=end,
        observation="map",
        action="go left now",
        tool_calls=(),
        stop="stop",
        engine="engine-0",
        reward=0.25,
        env_s=0.1,
    )
    return dataclasses.replace(turn, **more)  # pyright: ignore[reportArgumentType]


def one(**more: object) -> Transcript:
    made = Transcript(
        trajectory="lake/7/g4.1.0",
        purpose="train",
        domain="lake",
        task="7",
        group=4,
        member=1,
        attempt=0,
        status="finished",
        failure="",
        detail="",
        score=0.5,
        components=(("style", 0.1),),
        reason="",
        metrics=(("success", 1.0),),
        start_version=3,
        elapsed_s=1.5,
        turns=(a_turn(3, 6),),
        segments=(Tokens(runs=((-1, 3), (3, 2), (5, 1), (-1, 2)), ids=tuple(range(8))),),
    )
    return dataclasses.replace(made, **more)  # pyright: ignore[reportArgumentType]


def drawn(
    shown: Transcript, *, tokens: bool = True, colour: bool = False, became: str | None = "trained"
) -> str:
    console = Console(
        file=io.StringIO(),
        width=100,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    console.print(
        transcript(shown, disposition=became, decode=decode if tokens else None, colour=colour)
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_transcript_says_who_how_and_what_became_of_it() -> None:
    said = " ".join(drawn(one()).split())
    for part in (
        "lake/7/g4.1.0",
        "task 7, group 4, member 1",
        "finished after 1.5 s and 1 turns; started under version 3; became: trained",
        "reward 0.5, style 0.1, success 1",
        "versions: v3 2 tokens v5 1 tokens",
        "turn 1, stop, engine-0, reward 0.25",
    ):
        assert part in said


def test_each_version_has_its_part_of_the_text_marked() -> None:
    said = drawn(one())
    assert "<user> map <assistant>" in said
    assert "[v3]go left[v5] now" in said
    assert "<user> hole" in said


def test_each_version_has_its_colour_in_legend_and_text() -> None:
    said = drawn(one(), colour=True)
    cyan, magenta = "\x1b[36m", "\x1b[35m"
    assert f"{cyan}go left" in said
    assert f"{magenta} now" in said
    assert "\x1b[1;36mv3" in said
    assert "\x1b[1;35mv5" in said


def test_without_a_tokenizer_turns_are_shown_in_words_with_their_versions() -> None:
    said = drawn(one(), tokens=False)
    assert "\nmap" in said
    assert "go left now  [v3: 2 tokens, v5: 1 tokens]" in said


def test_tokens_without_content_are_shown_in_words_too() -> None:
    lengths = Tokens(runs=((-1, 3), (3, 3)), ids=None)
    assert "go left now  [v3: 3 tokens]" in drawn(one(segments=(lengths,)))


def test_tool_calls_failures_and_missing_verdicts_are_told() -> None:
    call = ToolCall(id="1", name="calculator", arguments='{"a": 1}')
    said = drawn(
        one(
            turns=(a_turn(3, 6, tool_calls=(call,)),),
            status="failed",
            failure="env_timeout",
            detail="no answer in 30 s",
            score=None,
            reason="the judge is away",
        ),
        became=None,
    )
    for part in (
        'calls calculator({"a": 1})',
        "failed (env_timeout)",
        "no answer in 30 s",
        "no verdict (the judge is away)",
        "became: not known",
    ):
        assert part in said


def test_a_new_segment_is_told_and_shows_its_whole_prompt() -> None:
    first = Tokens(runs=((-1, 1), (3, 1)), ids=(0, 3))
    second = Tokens(runs=((-1, 2), (3, 1)), ids=(6, 7, 4))
    turns = (a_turn(1, 2), a_turn(2, 3, segment=1))
    said = drawn(one(segments=(first, second), turns=turns))
    assert "(a new segment)\n<user> hole" in said


def test_text_of_a_model_is_no_markup_and_does_not_steer_the_terminal() -> None:
    said = drawn(
        one(turns=(a_turn(3, 6, action="[bold]x[/bold]\x1b[2J", observation="\x9b31m[red]"),)),
        tokens=False,
    )
    assert "[bold]x[/bold]\\x1b[2J" in said
    assert "\\x9b31m[red]" in said
    assert "\x1b" not in said


def test_nothing_sampled_is_shown_too() -> None:
    assert "no token was sampled" in drawn(one(turns=(), segments=()))


def test_runs_are_cut_to_a_span_and_joined() -> None:
    runs = [(-1, 3), (1, 2), (1, 2), (2, 5)]
    assert within(runs, 4, 8) == [(1, 3), (2, 1)]
    assert within(runs, 0, 3) == [(-1, 3)]
    assert within(runs, 5, 5) == []
