"""Which engine serves a request, from what is known about the engines.

Order of reasons: the hardware class that the domain wants, or any other when none of it is
routable; then the engine that holds the trajectory's prefix; then the least loaded, the earliest
attached among equals. Invariant: a choice costs O(log n) in the number of engines, not O(n).
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

SPARE_ENTRIES = 64
"""Superseded entries that a heap may keep beside one for each engine."""


class EngineView(Protocol):
    """What routing may know of an engine. `load` counts its requests in flight."""

    @property
    def hardware(self) -> str: ...

    @property
    def load(self) -> int: ...


E = TypeVar("E", bound=EngineView)


class Router(Generic[E]):
    """Chooses among `engines`, the routable ones by id, in order of attachment.

    They stay the same; loads change, and whoever takes a request away from one says so.
    """

    def __init__(self, engines: Mapping[str, E]) -> None:
        self.engines = engines
        classes: dict[str, list[tuple[int, E]]] = {}
        self._places: dict[str, tuple[str, int]] = {}
        for place, (name, engine) in enumerate(engines.items()):
            mates = classes.setdefault(engine.hardware, [])
            self._places[name] = (engine.hardware, len(mates))
            mates.append((place, engine))
        self._classes = {name: _LeastLoaded(mates) for name, mates in classes.items()}

    def choose(self, *, wanted: str | None, holder: str | None) -> E | None:
        """The engine to use, or None when there is none.

        Args:
            wanted: hardware class the domain prefers, if any.
            holder: id of the engine that holds the trajectory's prefix, if any.
        """
        held = self.engines.get(holder) if holder is not None else None
        if held is not None and wanted in (None, held.hardware):
            return held
        preferred = self._classes.get(wanted) if wanted is not None else None
        if preferred is not None:
            return preferred.least()[2]
        if held is not None:
            return held
        leasts = [mates.least() for mates in self._classes.values()]
        return min(leasts, key=lambda entry: entry[:2])[2] if leasts else None

    def eased(self, name: str) -> None:
        """One of the engine's requests is gone. One that is not routable makes no difference."""
        found = self._places.get(name)
        if found is not None:
            hardware, number = found
            self._classes[hardware].eased(number)


class _LeastLoaded(Generic[E]):
    """A heap over engines of one class, numbered from 0, with their places among all.

    Invariant: each has an entry with `noted`, which is not above its load: it is brought up to date
    when it comes to the top, and anew when the load falls below it. Other entries are superseded.
    """

    def __init__(self, engines: Sequence[tuple[int, E]]) -> None:
        self._engines = engines
        self._noted: list[int] = []
        self._heap: list[tuple[int, int]] = []
        self._note_all()

    def least(self) -> tuple[int, int, E]:
        """Load, place and engine of the least loaded, the first among equals."""
        while True:
            load, number = self._heap[0]
            place, engine = self._engines[number]
            if load != self._noted[number]:
                heapq.heappop(self._heap)
            elif load == engine.load:
                return load, place, engine
            else:
                self._noted[number] = engine.load
                heapq.heapreplace(self._heap, (engine.load, number))

    def eased(self, number: int) -> None:
        """Its load may have fallen."""
        load = self._engines[number][1].load
        if load >= self._noted[number]:
            return
        self._noted[number] = load
        heapq.heappush(self._heap, (load, number))
        if len(self._heap) > 2 * len(self._engines) + SPARE_ENTRIES:
            self._note_all()

    def _note_all(self) -> None:
        self._noted = [engine.load for _, engine in self._engines]
        self._heap = [(load, number) for number, load in enumerate(self._noted)]
        heapq.heapify(self._heap)


def token_budget(*, max_tokens: int, prompt_tokens: int, sampled_tokens: int, context: int) -> int:
    """Tokens that may still be sampled in this turn; 0 or less means none.

    `prompt_tokens` excludes the `sampled_tokens` of this turn, which count once against the turn's
    own limit and once against the context.
    """
    return min(max_tokens - sampled_tokens, context - prompt_tokens - sampled_tokens)
