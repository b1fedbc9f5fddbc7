"""Stamps events and hands each to every consumer: the sink that control emits to.

Invariant: `emit` never raises and keeps one order for all consumers, also when a consumer emits.
A consumer that raises is set aside for a minute of event time, with one warning; the others, and
the run, do not notice.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollart.core.events import Event, Stamped, Warned

SET_ASIDE_S = 60.0

Consumer = Callable[[Stamped], None]
"""Takes an event at once; what is slow belongs behind a `BackgroundTracker`."""


@dataclass(slots=True)
class _Attached:
    name: str
    take: Consumer
    until: float = float("-inf")
    missed: int = 0


class Recorder:
    """An `EventSink`. `clock` gives loop time in seconds; a restarted run continues `next_seq`."""

    def __init__(
        self, clock: Callable[[], float], *, incarnation: int = 0, next_seq: int = 0
    ) -> None:
        self._clock = clock
        self._incarnation = incarnation
        self._seq = next_seq
        self._consumers: list[_Attached] = []
        self._waiting: deque[Stamped] = deque()
        self._handing_out = False

    def attach(self, name: str, consumer: Consumer) -> None:
        """Hand every later event to `consumer`; warnings call it by `name`."""
        self._consumers.append(_Attached(name, consumer))

    def emit(self, event: Event) -> None:
        stamped = Stamped(
            time=self._clock(), seq=self._seq, incarnation=self._incarnation, event=event
        )
        self._seq += 1
        if self._handing_out:
            # Emitted by a consumer: it comes after the event that is being handed out.
            self._waiting.append(stamped)
            return
        self._handing_out = True
        try:
            self._hand_out(stamped)
            while self._waiting:
                self._hand_out(self._waiting.popleft())
        finally:
            self._handing_out = False

    def warn(self, message: str) -> None:
        """Emit a warning."""
        self.emit(Warned(message=message))

    def _hand_out(self, stamped: Stamped) -> None:
        for consumer in self._consumers:
            if stamped.time < consumer.until:
                consumer.missed += 1
                continue
            try:
                consumer.take(stamped)
            except Exception as error:
                # The boundary: what watches a run must not be able to end it.
                self._set_aside(consumer, stamped.time, error)

    def _set_aside(self, consumer: _Attached, time: float, error: Exception) -> None:
        missed, consumer.missed = consumer.missed, 1
        consumer.until = time + SET_ASIDE_S
        again = f" (it missed {missed} events before)" if missed else ""
        self.warn(
            f"{consumer.name} raised {type(error).__name__}: {error}; it gets no events for "
            f"{SET_ASIDE_S:.0f} s{again}"
        )
