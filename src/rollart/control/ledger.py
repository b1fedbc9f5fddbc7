"""The ledger: every started trajectory leaves exactly once.

Invariant: started = the sum over dispositions + what is open, and `balance` compares what is open
with what the live objects say. A second or unknown leaving changes nothing and is reported.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rollart.core.events import Disposed, LateResult, LedgerClosed
from rollart.core.identity import TrajectoryId
from rollart.core.ports import EventSink
from rollart.core.types import Disposition


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSnapshot:
    """Counts that survive a restart, and the open trajectories that do: the buffered ones."""

    started: int
    dispositions: tuple[tuple[str, int], ...]
    kept: tuple[TrajectoryId, ...]


class Ledger:
    """Counts training trajectories; evaluation stands outside."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._open: dict[TrajectoryId, None] = {}
        self._left: Counter[Disposition] = Counter()
        self.started = 0

    @property
    def open(self) -> int:
        return len(self._open)

    def count(self, disposition: Disposition) -> int:
        return self._left[disposition]

    def start(self, trajectory: TrajectoryId) -> None:
        if trajectory in self._open:
            raise ValueError(f"trajectory {trajectory} was started already")
        self._open[trajectory] = None
        self.started += 1

    def leave(
        self,
        trajectory: TrajectoryId,
        disposition: Disposition,
        *,
        reason: str = "",
        start_version: int | None = None,
        elapsed_s: float = 0.0,
        censored: bool = False,
    ) -> bool:
        """Record the leaving; False (and a `LateResult`) if it had left or never started."""
        if trajectory not in self._open:
            self._events.emit(
                LateResult(what=f"disposition {disposition}", identity=str(trajectory))
            )
            return False
        del self._open[trajectory]
        self._left[disposition] += 1
        self._events.emit(
            Disposed(
                trajectory=str(trajectory),
                domain=trajectory.domain,
                group=trajectory.group,
                disposition=disposition,
                reason=reason,
                start_version=start_version,
                elapsed_s=elapsed_s,
                censored=censored,
            )
        )
        return True

    def counts(self) -> tuple[tuple[str, int], ...]:
        """(disposition, count) for every disposition, in a fixed order."""
        return tuple((disposition.value, self._left[disposition]) for disposition in Disposition)

    def balance(self, *, step: int, buffered: int, in_flight: int) -> LedgerClosed:
        """The equation of the ledger, with the last two counted from the live objects."""
        gone = sum(self._left.values())
        return LedgerClosed(
            step=step,
            started=self.started,
            dispositions=self.counts(),
            buffered=buffered,
            in_flight=in_flight,
            balanced=self.started == gone + buffered + in_flight,
        )

    def snapshot(self, kept: Iterable[TrajectoryId] = ()) -> LedgerSnapshot:
        """What to restore from: of the open trajectories only `kept` come back.

        The others count as cancelled.
        """
        stays = tuple(trajectory for trajectory in kept if trajectory in self._open)
        left = Counter(self._left)
        left[Disposition.CANCELLED] += len(self._open) - len(stays)
        return LedgerSnapshot(
            started=self.started,
            dispositions=tuple((d.value, left[d]) for d in Disposition),
            kept=stays,
        )

    def restore(self, snapshot: LedgerSnapshot) -> None:
        self._open = dict.fromkeys(snapshot.kept)
        self.started = snapshot.started
        self._left = Counter({Disposition(name): n for name, n in snapshot.dispositions})
