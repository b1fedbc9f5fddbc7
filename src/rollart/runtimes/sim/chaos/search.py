"""The hunt: many seeds, what each fault met at each step, and the few faults behind a failure.

Invariant: what is found follows from the seeds alone; a failure is played again while it is shrunk,
and what is left of its faults breaks the same promise, while without any one of them it does not.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rollart.control.assembly import STANDARD, ControlParts
from rollart.runtimes.sim.chaos.driver import Placed
from rollart.runtimes.sim.chaos.faults import CELLS, Fault, FaultKind, Step, draw_faults
from rollart.runtimes.sim.chaos.run import ChaosRun, play
from rollart.runtimes.sim.chaos.scene import MakeScene


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A seed whose run broke promises; `needed` are those of its faults that it takes."""

    seed: int
    run: ChaosRun
    needed: tuple[Fault, ...]


@dataclass(slots=True, kw_only=True)
class Coverage:
    """How often a fault of each kind was felt that came at each step.

    It is met there, or where the next operation that it can befall takes place.
    """

    felt: Counter[tuple[FaultKind, Step]]
    unfelt: int = 0
    missed: int = 0

    def count(self, placed: Iterable[Placed]) -> None:
        """Note what came of one run's faults: felt, come but unfelt, or never come."""
        for one in placed:
            if one.felt:
                self.felt[one.fault.kind, one.fault.step] += 1
            elif one.at is not None:
                self.unfelt += 1
            else:
                self.missed += 1

    @property
    def empty(self) -> tuple[tuple[FaultKind, Step], ...]:
        return tuple(cell for cell in CELLS if not self.felt[cell])

    def __str__(self) -> str:
        wide = max(len(kind) for kind in FaultKind)
        title = "faults that were felt, by the step in which they came"
        lines = [title, " " * wide + "".join(f"{step.value:>12}" for step in Step)]
        for kind in FaultKind:
            counts = "".join(f"{self.felt[kind, step]:>12}" for step in Step)
            lines.append(f"{kind.value:<{wide}}{counts}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """What a hunt found. `early` counts the runs that a fault ended before their last step."""

    seeds: int
    early: int
    coverage: Coverage
    failures: tuple[Failure, ...]


def play_seed(seed: int, make: MakeScene, *, parts: ControlParts = STANDARD) -> ChaosRun:
    """The run of one seed: its scene under its faults."""
    scene = make(seed)
    return play(scene, draw_faults(seed, scene.job), parts=parts)


def hunt(
    seeds: Iterable[int],
    make: MakeScene,
    *,
    parts: ControlParts = STANDARD,
    most: int = 10,
    told: Callable[[int, ChaosRun], None] = lambda seed, run: None,
) -> Hunt:
    """Play the seeds, and shrink what fails.

    Args:
        parts: control's classes; a broken one is to be found.
        most: failures after which the hunt ends.
        told: called after each seed.
    """
    played = early = 0
    coverage, failures = Coverage(felt=Counter()), list[Failure]()
    for seed in seeds:
        run = play_seed(seed, make, parts=parts)
        played += 1
        early += run.ended_early
        coverage.count(run.placed)
        if run.broken:
            failures.append(Failure(seed=seed, run=run, needed=needed(seed, run, make, parts)))
        told(seed, run)
        if len(failures) >= most:
            break
    return Hunt(seeds=played, early=early, coverage=coverage, failures=tuple(failures))


def needed(
    seed: int, run: ChaosRun, make: MakeScene, parts: ControlParts = STANDARD
) -> tuple[Fault, ...]:
    """Those of the seed's faults without any of which the promise that broke first holds."""
    first = run.broken[0].partition(":")[0]

    def fails(faults: Sequence[Fault]) -> bool:
        return first in play(make(seed), faults, parts=parts).broken_words

    return shrink([placed.fault for placed in run.placed], fails)


def shrink(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> tuple[Fault, ...]:
    """A subset that still fails, and of which none can be left out.

    Delta debugging; Zeller and Hildebrandt, IEEE TSE 28 (2002), 183-200.

    Args:
        faults: all of them together fail.
    """
    if fails(()):
        return ()
    kept, pieces = tuple(faults), 2
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        rests = [kept[:at] + kept[at + size :] for at in range(0, len(kept), size)]
        rest = next((rest for rest in rests if fails(rest)), None)
        if rest is not None:
            kept, pieces = rest, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces = min(len(kept), 2 * pieces)
    return kept
