"""How a modelled engine's batch moves through time: in closed form, not token by token.

Between two changes of who takes part, iterations form a `Stretch` with a known end, so an event
costs O(log n) in the number of sequences and nothing in the number of tokens. What arrives, is
aborted or stops the engine acts at the end of the iteration that is running.
Invariant: no time is read here. Callers pass it (seconds), never backwards, and call `advance(now)`
before anything else that they ask at `now`; so the same calls give the same answers.
"""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from rollart.core.events import Work
from rollart.runtimes.sim.engines.batch import Batch, Chunks
from rollart.runtimes.sim.engines.seq import Seq
from rollart.runtimes.sim.engines.stretch import Stretch

BusySink = Callable[[Work, float, float], None]
"""Takes kind of work, begin and end (s), in order of time."""


class StepTimes(Protocol):
    """How long one iteration takes; affine in the two contexts."""

    def step_s(
        self,
        *,
        decoding: float,
        prefill_tokens: float,
        context_tokens: float,
        prefill_context: float,
    ) -> float:
        """Seconds. `context_tokens` is summed over the decoding; `prefill_context` is a mean."""
        ...


class StepClock:
    """One batch on one set of GPUs.

    Args:
        times: seconds of an iteration.
        capacity: tokens of KV that it can hold.
        step_tokens: tokens an iteration computes at most; decoding comes first.
        most_running: sequences that may be prefilled and decode at once.
        busy: told of every stretch of work once it is over.

    Attributes:
        next_event_at: when `advance` has something to do (s): the end of the stretch; infinity
            while nothing runs.
    """

    def __init__(
        self,
        times: StepTimes,
        *,
        capacity: int,
        step_tokens: int = 8192,
        most_running: int = 256,
        busy: BusySink | None = None,
    ) -> None:
        self._batch = Batch(capacity=capacity, step_tokens=step_tokens, most_running=most_running)
        self._times = times
        self._busy = busy
        self._pace = 1.0
        self._stretch: Stretch | None = None
        self.next_event_at = math.inf
        self._doomed: list[Seq] = []
        self._stopping = False

    # -- what may be asked at any time -----------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Tokens of KV; a sequence must fit with all that it may sample."""
        return self._batch.capacity

    @property
    def stopped(self) -> bool:
        """Whether no iteration runs, and none will before `start`."""
        return self._batch.stopped_at is not None

    @property
    def load(self) -> int:
        """Sequences that run or wait."""
        return len(self._batch)

    @property
    def backlog(self) -> int:
        """Tokens yet to be prefilled, as of the last event."""
        return self._batch.backlog

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV in use, idle prefixes apart, as of the last event."""
        return self._batch.active

    @property
    def idle_tokens(self) -> int:
        """Tokens of KV that sessions left between their turns, as of the last event."""
        return self._batch.prefixes.tokens

    def prefix(self, session: str) -> int:
        """Tokens that are still held of a session between its turns."""
        return self._batch.prefixes.of(session)

    def sampled(self, seq: Seq, now: float) -> int:
        """Tokens sampled of a sequence by now, in whole iterations."""
        before = self._batch.sampled(seq)
        if self._stretch is None or not seq.decodes:
            return before
        return before + self._stretch.done(now)

    # -- commands --------------------------------------------------------------------------------

    def add(self, seq: Seq, now: float) -> None:
        """Queue a sequence."""
        if self._batch.queue(seq, now):
            self._disturb(now)

    def abort(self, names: Iterable[str], now: float) -> float:
        """Drop sequences and their KV; returns when that is done (s)."""
        waited = self._batch.waits_in_vain()
        for name in names:
            seq = self._batch.dismiss(name)
            if seq is not None:
                self._doomed.append(seq)
        if self._doomed or (waited and not self._batch.waits_in_vain()):
            self._disturb(now)
        return self.next_event_at if self._doomed else now

    def release(self, session: str) -> None:
        """The session will not return: its idle prefix goes."""
        self._batch.prefixes.take(session)

    def stop(self, now: float) -> float:
        """Run no further iteration; returns when the present one is over (s)."""
        self._stopping = True
        if self._cut(now):
            return self.next_event_at
        self._halt(now)
        return now

    def start(self, now: float) -> None:
        """Run on after `stop`."""
        self._stopping = False
        if self.stopped:
            self._batch.start(now)
            self._plan(now)

    def set_pace(self, pace: float, now: float) -> None:
        """From the next iteration on, each takes `pace` times its seconds."""
        self._pace = pace
        self._disturb(now)

    def renew(self, version: int, now: float, *, keep: bool) -> int:
        """Take a version while stopped; returns the tokens of KV that must be computed anew.

        With `keep` KV of older versions is used on.
        """
        if keep:
            self._batch.version = version
            return 0
        return self._batch.renew(version, now)

    def take_all(self, now: float) -> list[Seq]:
        """Hand all sequences over while stopped, running first; idle prefixes stay."""
        return self._batch.take_all(now)

    def close(self, now: float) -> None:
        """End, be it in the middle of an iteration; nothing happens any more."""
        stretch = self._stretch
        if stretch is not None and self._busy is not None and now > stretch.start:
            self._busy(stretch.work, stretch.start, now)
        self._halt(now)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, to: float) -> list[Seq]:
        """Let time pass up to `to`; returns the sequences that became whole, in order."""
        whole: list[Seq] = []
        while self.next_event_at <= to and (stretch := self._stretch) is not None:
            self._complete(stretch, whole)
        return whole

    def _complete(self, stretch: Stretch, whole: list[Seq]) -> None:
        batch, now = self._batch, stretch.ends_at
        batch.run(stretch.count)
        if self._busy is not None:
            self._busy(stretch.work, stretch.start, now)
        if self._doomed:
            self._drop_doomed()
        batch.finish(now, whole)
        for seq, tokens in stretch.chunks:
            batch.prefill(seq, tokens * stretch.count, now, whole)
        if self._stopping:
            self._halt(now)
        else:
            self._plan(now)

    def _plan(self, now: float) -> None:
        """See who takes part in the next iteration, and for how many that stays so."""
        batch = self._batch
        batch.choose(now)
        if not batch.runs:
            self._stretch, self.next_event_at = None, math.inf
            return
        iterations = batch.undisturbed()
        if prefilled := batch.chunks():
            chunks, most, attended = prefilled
            iterations = min(iterations, most)
            tokens = sum([part for _, part in chunks])
            first_s, growth_s = self._seconds(iterations, tokens, attended)
            stretch = Stretch(now, first_s, growth_s, iterations, self._kind(chunks), chunks)
        else:
            first_s, growth_s = self._seconds(iterations, 0, 0.0)
            stretch = Stretch(now, first_s, growth_s, iterations, Work.DECODE)
        self._stretch, self.next_event_at = stretch, stretch.ends_at

    def _seconds(self, iterations: int, tokens: int, attended: float) -> tuple[float, float]:
        """Seconds of the first iteration, and by how much each is longer than the one before."""
        step_s, batch = self._times.step_s, self._batch
        first = self._pace * step_s(
            decoding=batch.decoding,
            prefill_tokens=tokens,
            context_tokens=batch.context,
            prefill_context=attended,
        )
        if iterations == 1:
            return first, 0.0
        more = iterations - 1
        last = self._pace * step_s(
            decoding=batch.decoding,
            prefill_tokens=tokens,
            context_tokens=batch.context + batch.decoding * more,
            prefill_context=attended + tokens * more,
        )
        return first, (last - first) / more

    def _kind(self, chunks: Chunks) -> Work:
        if chunks[0][0].rebuilds and all(seq.rebuilds for seq, _ in chunks):
            return Work.REBUILD
        return Work.MIXED if self._batch.decoding else Work.PREFILL

    def _disturb(self, now: float) -> None:
        """Something changed: plan anew at the end of the iteration that is running, if any is."""
        if self._cut(now):
            return
        if self._doomed:
            self._drop_doomed()
        if not self.stopped:  # nothing runs, or its first iteration is only about to begin
            self._plan(now)

    def _cut(self, now: float) -> bool:
        """End the stretch with the iteration that is running; false if none is."""
        stretch = self._stretch
        if stretch is None or now <= stretch.start:
            return False
        stretch.cut(now)
        self.next_event_at = stretch.ends_at
        return True

    def _drop_doomed(self) -> None:
        self._batch.drop(self._doomed)
        self._doomed.clear()

    def _halt(self, now: float) -> None:
        self._stretch, self.next_event_at = None, math.inf
        self._batch.trim()
        self._batch.stop(now)
