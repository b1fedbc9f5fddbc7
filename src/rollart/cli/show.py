"""`rollart show`: the recorded trajectories of a run, listed or one in full."""

import sys
import tomllib
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.cli.common import BAD_INPUT, OK, fail
from rollart.core.errors import RollartError

if TYPE_CHECKING:
    from rollart.observe.transcript_view import Decode
    from rollart.observe.transcripts import Transcript


PIPE_WIDTH = 160


class ShowError(RollartError):
    """There is nothing to show: the message says what to do."""


def show(run: Path, *, trajectory: str | None, domain: str | None, limit: int) -> int:
    """Returns the exit code."""
    from rich.console import Console

    from rollart.observe.transcript_view import listing, transcript

    # A pipe has no width of its own, and its lines are not to be cut.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    try:
        if trajectory is None:
            kept, of = _last(run, domain, limit)
            ids = {one.trajectory for one in kept}
            console.print(listing(kept, _dispositions(run, ids)))
            console.print(
                f"{len(kept)} of {of} recorded; rollart show {run} --trajectory ID", soft_wrap=True
            )
            return OK
        one = _find(run, trajectory)
    except RollartError as error:
        return fail(BAD_INPUT, str(error))
    became = _dispositions(run, {one.trajectory}).get(one.trajectory)
    decode, why_not = _decoder(run)
    colour = console.color_system is not None and not console.no_color
    console.print(transcript(one, disposition=became, decode=decode, colour=colour), soft_wrap=True)
    if why_not:
        console.print(f"(turns in words, not by tokens: {why_not})", markup=False, soft_wrap=True)
    return OK


def _read(run: Path) -> "Iterator[Transcript]":
    from rollart.observe.transcripts import TRANSCRIPTS_FILE, read_transcripts

    if not run.is_dir():
        raise ShowError(f"{run}: is no directory; give the directory of a run")
    path = run / TRANSCRIPTS_FILE
    if not path.is_file():
        raise ShowError(
            f"{run}: holds no {TRANSCRIPTS_FILE}; no trajectory of it has ended, or it is no run"
        )
    try:
        yield from read_transcripts(path)
    except OSError as error:
        raise ShowError(f"{path}: cannot be read: {error}") from error


def _last(run: Path, domain: str | None, limit: int) -> "tuple[list[Transcript], int]":
    """The last recorded trajectories, of one domain or all, and how many there are."""
    kept: deque[Transcript] = deque(maxlen=limit)
    tags: dict[str, None] = {}
    of = 0
    for one in _read(run):
        tags[one.domain] = None
        if domain in (None, one.domain):
            kept.append(one)
            of += 1
    if domain is not None and not of:
        raise ShowError(
            f"--domain {domain}: nothing is recorded of it; there are: {', '.join(tags)}"
        )
    return list(kept), of


def _find(run: Path, wanted: str) -> "Transcript":
    """The trajectory with this id, or the only one whose id has it as a part."""
    candidates: list[Transcript] = []
    for one in _read(run):
        if one.trajectory == wanted:
            return one
        if wanted in one.trajectory and len(candidates) < 3:
            candidates.append(one)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ShowError(
            f"--trajectory {wanted}: is not among the recorded; rollart show {run} lists them"
        )
    named = ", ".join(one.trajectory for one in candidates)
    raise ShowError(f"--trajectory {wanted}: several have it in their id ({named}); say more of it")


def _dispositions(run: Path, ids: Collection[str]) -> dict[str, str]:
    """What became of trajectories, as far as the event log says."""
    from rollart.core.events import Disposed
    from rollart.observe.eventlog import EVENTS_FILE, LogError, read_events

    found: dict[str, str] = {}
    try:
        for stamped in read_events(run / EVENTS_FILE, only=(Disposed,)):
            event = stamped.event
            if isinstance(event, Disposed) and event.trajectory in ids:
                found[event.trajectory] = event.disposition.value
    except (OSError, LogError):
        # A transcript is worth reading without what the log adds to it.
        return found
    return found


def _decoder(run: Path) -> "tuple[Decode | None, str]":
    """The run's tokenizer, or why there is none."""
    file = next((f for folder in _models(run) if (f := folder / "tokenizer.json").is_file()), None)
    if file is None:
        return None, "the run's model has no tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        return None, "install tokenizers with: pip install 'rollart[local]'"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises bare Exceptions for what it cannot read.
        return None, f"{file} cannot be read: {error}"
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False), ""


def _models(run: Path) -> Iterator[Path]:
    """Where a run's tokenizer may lie: its weights, the model made for it, or the one it named."""
    yield run / "weights"
    yield run / "model"
    try:
        job = tomllib.loads((run / "job.toml").read_text(encoding="utf-8"))
        path = job["model"]["path"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return
    if isinstance(path, str):
        yield Path(path)
