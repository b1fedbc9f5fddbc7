"""`rollart chaos`: many small runs under drawn faults, and what breaks a promise."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollart.cli.common import FAILED, OK

if TYPE_CHECKING:
    from rollart.chaos import ChaosRun, Coverage, Failure, Hunt

TELL_EVERY = 50
"""Seeds between two words of progress on a terminal."""
TELL_ELSEWHERE = 500
"""The same in a pipe or a log."""

ENOUGH = 1000
"""So many seeds come by each kind of fault at each step about ten times."""

MOST_NAMED = 6
"""Faults that were never felt, of which so many are named."""

SHOWN = 8
"""Broken promises of one run that are printed."""


def hunt(seeds: Iterable[int], *, plant: str | None) -> int:
    """Hunt over seeds. 0 when every promise held; with a planted bug, when it was found.

    Raises:
        ConfigError: no such bug is known.
    """
    from rollart.chaos import hunt_seeds

    found = hunt_seeds(counted(seeds), plant=plant, most=1 if plant else 10)
    for failure in found.failures:
        print(f"{_told(failure, plant)}\n")
    print(found.coverage)
    print(
        f"{found.coverage.unfelt} more faults came when nothing met them, "
        f"{found.coverage.missed} were to come after the run's end"
    )
    print(
        f"{found.seeds} runs, {found.early} ended early by a fault, "
        f"{len(found.failures)} broke a promise"
    )
    print(_felt(found.coverage))
    return verdict(found, plant=plant)


def again(seed: int, *, plant: str | None) -> int:
    """Play one seed, and say what befell it. 0 as for a hunt over this seed alone.

    Raises:
        ConfigError: no such bug is known.
    """
    from rollart.chaos import play_again

    run, failure = play_again(seed, plant=plant)
    for placed in run.placed:
        when = "never came" if placed.at is None else f"came at {placed.at:.2f} s"
        print(f"{placed.fault}: {when}, met {placed.felt} times")
    print(f"the run ended: {run.end}")
    print(f"{len(run.events)} events, digest {run.digest}")
    print(_told(failure, plant) if failure is not None else "every promise held")
    return status([] if failure is None else [failure.run], plant=plant)


def verdict(found: "Hunt", *, plant: str | None) -> int:
    """As `status`; but without a plant, `ENOUGH` seeds are to leave no kind of fault out."""
    if not plant and found.seeds >= ENOUGH and found.coverage.empty:
        return FAILED
    return status([failure.run for failure in found.failures], plant=plant)


def status(failed: Sequence["ChaosRun"], *, plant: str | None) -> int:
    """0 if runs broke a promise just when a bug was planted, and every check could judge."""
    expected = bool(failed) == bool(plant)
    return OK if expected and not any(run.misjudged for run in failed) else FAILED


def _told(failure: "Failure", plant: str | None) -> str:
    """What broke, and the command that shows it again."""
    planted = f" --plant {plant}" if plant else ""
    hidden = len(failure.run.broken) - SHOWN
    return "\n".join(
        [
            f"seed {failure.seed} breaks promises (the run ended: {failure.run.end})",
            *(f"  {sentence}" for sentence in failure.run.broken[:SHOWN]),
            *([f"  and {hidden} more"] if hidden > 0 else []),
            "faults that it takes:" if failure.needed else "it takes no fault",
            *(f"  {fault}" for fault in failure.needed),
            f"again: rollart chaos --seed {failure.seed}{planted}",
        ]
    )


def _felt(coverage: "Coverage") -> str:
    """Which kinds of fault were never felt at which step."""
    never = [f"{kind} at {step}" for kind, step in coverage.empty]
    if not never:
        return "every kind of fault was felt at every step"
    some = ", such as " if len(never) > MOST_NAMED else ": "
    return (
        f"{len(never)} kinds of fault at a step were never felt{some}"
        f"{', '.join(never[:MOST_NAMED])}; {ENOUGH} seeds or more should leave none out, and are a "
        "failure if they do"
    )


def counted(seeds: Iterable[int]) -> Iterator[int]:
    """The seeds, with a word of progress now and then."""
    every = TELL_EVERY if sys.stderr.isatty() else TELL_ELSEWHERE
    for number, seed in enumerate(seeds):
        if number and number % every == 0:
            print(f"{number} runs", file=sys.stderr, flush=True)
        yield seed
