"""Who is in the batch of a modelled engine, and with how many tokens; what time it takes is apart.

Rules (those of common engines): what waits is admitted in order while its KV fits; decoding comes
first and prefills share the rest of an iteration's tokens, first come first served; a full cache
gives up idle prefixes first, then preempts the sequence admitted last, which recomputes.
Invariants: `active` is the sum of prompt and sampled tokens over all that run, and an iteration
begins only if it stays within `capacity`; while sequences only decode, nothing here is touched but
the count of iterations, so many tokens cost as much as one.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from rollart.runtimes.sim.engines.seq import Prefixes, Seq, Stage

Chunks = tuple[tuple[Seq, int], ...]
"""Sequences that are prefilled, and what each gets an iteration, in tokens."""


class Batch:
    """Times (s) are passed in only to book them on the sequences.

    Attributes:
        backlog: tokens yet to be prefilled, of those that wait too.
        decoding, context: sequences that decode, and the tokens they attend to together.
        active: tokens of KV in use, idle prefixes apart.
        iterations: counted since the beginning.
    """

    def __init__(self, *, capacity: int, step_tokens: int, most_running: int) -> None:
        if not 0 < most_running < step_tokens:
            raise ValueError(
                f"{most_running} sequences against {step_tokens} tokens an iteration: each may "
                "need one, and something must be left for prefill; allow more tokens"
            )
        self.capacity = capacity
        self.version = -1
        self.backlog = 0
        self.decoding = 0
        self.context = 0
        self.active = 0
        self.iterations = 0
        self.prefixes = Prefixes()
        self.stopped_at: float | None = None
        self._step_tokens = step_tokens
        self._most_running = most_running
        self._waiting: OrderedDict[str, Seq] = OrderedDict()
        self._running: OrderedDict[str, Seq] = OrderedDict()  # in order of admission
        self._prefilling: OrderedDict[str, Seq] = OrderedDict()
        self._finishes: list[tuple[int, int, Seq]] = []
        self._pushes = count()
        self._stopped_s = 0.0

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def runs(self) -> bool:
        return bool(self._running)

    def waits_in_vain(self) -> bool:
        """Whether nobody waits who could be admitted as things are."""
        return not self._waiting or not self._fits(next(iter(self._waiting.values())))

    def sampled(self, seq: Seq) -> int:
        """Tokens sampled of a sequence, up to the last iteration counted."""
        if seq.stage is not Stage.DECODE:
            return seq.sampled
        return seq.sampled + self.iterations - seq.entered

    # -- coming and going ----------------------------------------------------------------------

    def queue(self, seq: Seq, now: float) -> bool:
        """Whether it is the first that waits and could be admitted as things are."""
        first = not self._waiting
        seq.mark, seq.stopped_mark = now, self._stopped_until(now)
        self._waiting[seq.name] = seq
        if not seq.ready:
            self.backlog += seq.held
        return first and self._fits(seq)

    def dismiss(self, name: str) -> Seq | None:
        """Drop it if it waits; what runs is returned, for `drop` at the end of an iteration."""
        seq = self._waiting.pop(name, None)
        if seq is None:
            return self._running.get(name)
        self._unqueue(seq)
        return None

    def drop(self, seqs: Iterable[Seq]) -> None:
        """Drop what runs, with its KV. What does so no longer is left alone."""
        for seq in seqs:
            if self._running.get(seq.name) is seq:
                self._leave(seq)
                seq.stage = Stage.GONE

    def take_all(self, now: float) -> list[Seq]:
        """Hand over all there is, running first; idle prefixes stay."""
        taken = [*self._running.values(), *self._waiting.values()]
        for seq in taken:
            self._account(seq, now)
            if seq.stage is Stage.WAITING:
                self._unqueue(seq)
            else:
                self._leave(seq)
        self._waiting.clear()
        return taken

    def _unqueue(self, seq: Seq) -> None:
        if not seq.ready:
            self.backlog -= seq.held
        seq.stage = Stage.GONE

    def _leave(self, seq: Seq) -> None:
        del self._running[seq.name]
        if seq.stage is Stage.DECODE:
            self._settle(seq)
            self.decoding -= 1
            self.context -= seq.held
        else:
            del self._prefilling[seq.name]
            self.backlog -= seq.left
        self.active -= seq.held

    def _settle(self, seq: Seq) -> None:
        """Write down what it has sampled so far."""
        seq.grow(self.iterations - seq.entered)
        seq.entered = self.iterations

    # -- what iterations do ----------------------------------------------------------------------

    def run(self, iterations: int) -> None:
        """Every decoding sequence samples so many tokens."""
        self.iterations += iterations
        grown = self.decoding * iterations
        self.context += grown
        self.active += grown
        if self.prefixes.tokens > self.capacity - self.active:
            self.trim()

    def finish(self, now: float, whole: list[Seq]) -> None:
        """Append those that have decoded all they want."""
        finishes = self._finishes
        while finishes and finishes[0][0] <= self.iterations:
            ends, _, seq = heappop(finishes)
            if seq.stage is Stage.DECODE and seq.ends == ends:
                self._end(seq, now, whole)

    def prefill(self, seq: Seq, tokens: int, now: float, whole: list[Seq]) -> None:
        """Compute tokens of a prompt. With the last one the next token is sampled."""
        if seq.stage is not Stage.PREFILL:
            return  # it was dropped meanwhile
        seq.left -= tokens
        seq.prefilled += tokens
        self.backlog -= tokens
        if seq.left:
            return
        del self._prefilling[seq.name]
        self._account(seq, now)
        seq.grow(1)
        seq.rebuilds = False
        self.active += 1
        self._decode(seq)
        if seq.sampled >= seq.wanted:
            self._end(seq, now, whole)

    def _decode(self, seq: Seq) -> None:
        seq.stage = Stage.DECODE
        seq.entered = self.iterations
        seq.ends = self.iterations + seq.wanted - seq.sampled
        self.decoding += 1
        self.context += seq.held
        if seq.ends > seq.entered:
            heappush(self._finishes, (seq.ends, next(self._pushes), seq))

    def _end(self, seq: Seq, now: float, whole: list[Seq]) -> None:
        self._account(seq, now)
        self._leave(seq)
        seq.stage = Stage.DONE
        self.prefixes.put(seq.session, seq.held, seq.kv_version)
        whole.append(seq)

    def renew(self, version: int, now: float) -> int:
        """Forget the KV of older versions; returns the tokens to compute anew.

        Idle prefixes go, and what runs is prefilled again, in order of admission.
        """
        self.version = version
        self.prefixes.clear()
        self._prefilling.clear()
        self._finishes.clear()
        rebuilt = 0
        for seq in self._running.values():
            self._account(seq, now)
            if seq.stage is Stage.DECODE:
                self._settle(seq)
                seq.stage = Stage.PREFILL
            self.backlog -= seq.left
            had = seq.held - seq.left
            seq.rebuilds = seq.rebuilds or had > 0
            rebuilt += had
            seq.left = seq.held
            seq.kv_version = version
            self.backlog += seq.left
            self._prefilling[seq.name] = seq
        self.decoding = self.context = 0
        return rebuilt

    # -- what the next iterations are --------------------------------------------------------------

    def choose(self, now: float) -> None:
        """Preempt until an iteration fits, then admit what waits and fits."""
        if self.prefixes.tokens > self.capacity - self.active:
            self.trim()
        if self.active + len(self._running) > self.capacity:
            self._make_room(now)
        if self._waiting:
            self._admit(now)
            self.trim()

    def trim(self) -> None:
        """Give up idle prefixes that there is no room for."""
        self.prefixes.trim(self.capacity - self.active)

    def undisturbed(self) -> int:
        """Iterations until a decoding sequence is whole or the cache is full; at least 1."""
        if not self.decoding:
            return self.capacity  # no limit: a prompt has no more tokens than that
        finishes = self._finishes
        while True:
            ends, _, seq = finishes[0]
            if seq.stage is Stage.DECODE and seq.ends == ends:
                break
            heappop(finishes)
        left = ends - self.iterations
        room = self.capacity - self.active - len(self._prefilling)
        if left * self.decoding > room:
            left = room // self.decoding
        return left if left > 1 else 1

    def chunks(self) -> tuple[Chunks, int, float] | None:
        """What is prefilled an iteration, for how many iterations at most, at which mean context.

        None while nothing is prefilled.
        The mean is that of the first iteration, over the prefilled tokens.
        """
        if not self._prefilling:
            return None
        budget = self._step_tokens - self.decoding
        head = next(iter(self._prefilling.values()))
        if head.left > budget:
            done = head.held - head.left
            return ((head, budget),), (head.left - 1) // budget, done + 0.5 * budget
        chunks: list[tuple[Seq, int]] = []
        attended, left = 0.0, budget
        for seq in self._prefilling.values():
            part = min(seq.left, left)
            chunks.append((seq, part))
            attended += part * (seq.held - seq.left + 0.5 * part)
            left -= part
            if not left:
                break
        return tuple(chunks), 1, attended / (budget - left)

    def _fits(self, seq: Seq) -> bool:
        """Whether its tokens, and one more for each that runs, fit once idle prefixes are gone."""
        running = len(self._running)
        if not running:
            return True
        room = self.capacity - self.active
        return running < self._most_running and seq.held + running + 1 <= room

    def _admit(self, now: float) -> None:
        while self._waiting:
            seq = next(iter(self._waiting.values()))
            if not self._fits(seq):
                return
            del self._waiting[seq.name]
            self._account(seq, now)
            self._running[seq.name] = seq
            self.active += seq.held
            tokens, version = self.prefixes.take(seq.session)
            if seq.ready:
                self._decode(seq)
                continue
            cached = min(int(tokens * seq.share), seq.held - 1)
            seq.kv_version = version if cached else self.version
            seq.cached += cached
            seq.left = seq.held - cached
            seq.stage = Stage.PREFILL
            self.backlog -= cached
            self._prefilling[seq.name] = seq

    def _make_room(self, now: float) -> None:
        running = self._running
        while len(running) > 1 and self.active + len(running) > self.capacity:
            seq = running[next(reversed(running))]
            self._account(seq, now)
            self._leave(seq)
            seq.stage = Stage.WAITING
            seq.ready, seq.rebuilds = False, True
            self.backlog += seq.held
            self._waiting[seq.name] = seq
            self._waiting.move_to_end(seq.name, last=False)

    # -- seconds -----------------------------------------------------------------------------------

    def stop(self, now: float) -> None:
        """Time that passes from now on counts as queueing."""
        if self.stopped_at is None:
            self.stopped_at = now

    def start(self, now: float) -> None:
        self._stopped_s = self._stopped_until(now)
        self.stopped_at = None

    def _stopped_until(self, now: float) -> float:
        """Seconds that it has been stopped, up to now."""
        return self._stopped_s + (now - self.stopped_at if self.stopped_at is not None else 0.0)

    def _account(self, seq: Seq, now: float) -> None:
        """Book the time since the mark on the present stage, or as queueing if stopped."""
        stopped = self._stopped_s if self.stopped_at is None else self._stopped_until(now)
        still = stopped - seq.stopped_mark
        passed = now - seq.mark - still
        seq.queued_s += still
        if seq.stage is Stage.WAITING:
            seq.queued_s += passed
        elif seq.stage is Stage.PREFILL:
            seq.prefill_s += passed
        else:
            seq.decode_s += passed
        seq.mark, seq.stopped_mark = now, stopped
