"""The driver: brings each fault of a plan about at its moment, and keeps what came of it.

Invariant: a fault comes at most once. It befalls what is there, or else the next operation that it
can befall; it counts as felt once an operation met it. Nothing of control is called from here, so
a fault that comes in the middle of an event changes only what control meets afterwards.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollart.core.events import EngineDown, Event, LateResult, Phase, PhaseBegan, PhaseEnded
from rollart.runtimes.sim.chaos.faults import STEP_OF, Fault, FaultKind, Step


@dataclass(slots=True, eq=False)
class Placed:
    """A fault in a run. `at` is when it came (loop time, s); `felt` counts who met it."""

    fault: Fault
    at: float | None = None
    felt: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        self.left = self.fault.times


@dataclass(slots=True, eq=False)
class FaultDriver:
    """An event sink that keeps everything, and acts on the six steps.

    Attributes:
        strike: befalls what is there; False when the fault is to wait for the next operation.
        on_down: told which engine control has given up.
        accusations: promises that were seen to be broken at a port.
        late_results: how many results control has refused as late.
    """

    faults: Sequence[Fault]
    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    accusations: list[str] = field(default_factory=list[str])
    late_results: int = 0
    strike: Callable[[Placed], bool] = lambda placed: False
    on_down: Callable[[str], None] = lambda engine: None
    placed: list[Placed] = field(init=False)
    _entered: Counter[Step] = field(default_factory=Counter[Step])
    _due: dict[Phase, list[tuple[Placed, asyncio.TimerHandle]]] = field(
        default_factory=dict[Phase, list[tuple[Placed, asyncio.TimerHandle]]]
    )
    _waiting: defaultdict[FaultKind, deque[Placed]] = field(
        default_factory=lambda: defaultdict[FaultKind, deque[Placed]](deque)
    )

    def __post_init__(self) -> None:
        self.placed = [Placed(fault) for fault in self.faults]

    def emit(self, event: Event) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))
        if isinstance(event, PhaseBegan):
            self._enter(event.phase)
        elif isinstance(event, PhaseEnded):
            self._leave(event.phase)
        elif isinstance(event, LateResult):
            self.late_results += 1
        elif isinstance(event, EngineDown):
            self.on_down(event.engine)

    def _enter(self, phase: Phase) -> None:
        step = STEP_OF[phase]
        number = self._entered[step]
        self._entered[step] += 1
        loop = asyncio.get_running_loop()
        for placed in self.placed:
            fault = placed.fault
            if (fault.step, fault.nth) != (step, number):
                continue
            if fault.delay_s:
                timer = loop.call_later(fault.delay_s, self._come, placed)
                self._due.setdefault(phase, []).append((placed, timer))
            else:
                self._come(placed)

    def _leave(self, phase: Phase) -> None:
        for placed, timer in self._due.pop(phase, ()):
            if placed.at is None:
                timer.cancel()
                self._come(placed)

    def _come(self, placed: Placed) -> None:
        placed.at = asyncio.get_running_loop().time()
        if not self.strike(placed):
            self._waiting[placed.fault.kind].append(placed)

    def take(self, kind: FaultKind) -> Placed | None:
        """The fault that an operation of this kind meets now, if one waits for it."""
        waiting = self._waiting[kind]
        if not waiting:
            return None
        placed = waiting[0]
        placed.left -= 1
        placed.felt += 1
        if placed.left <= 0:
            waiting.popleft()
        return placed
