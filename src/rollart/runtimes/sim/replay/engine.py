"""The engine of a replay: every turn ends as recorded, when it did; commands are acknowledged so.

Invariant: a turn's tokens are told with its last one, in the recorded runs of versions; between,
only signs of life, unless the record says that the engine fell silent. Ids are unknown: blocks
have a length and no content.
"""

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from functools import partial

from rollart.control.fleet import CATCH_UP_TRIES, backoff
from rollart.core.errors import FailureKind, RollartError
from rollart.core.events import (
    Committed,
    EngineAcknowledged,
    EngineDown,
    Event,
    LateResult,
    Phase,
    PhaseEnded,
    RequestDropped,
    TurnEnded,
)
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, DeltaSink
from rollart.core.tokens import LengthOnly
from rollart.core.types import GenerateRequest, StopReason, TokenDelta
from rollart.runtimes.sim.replay.causes import (
    ends_by_refusal,
    ends_phase,
    is_commit,
    is_drop_of,
    is_leaving,
    is_same,
    is_turn,
)
from rollart.runtimes.sim.replay.comparing import EPSILON_S, Ask, Cause
from rollart.runtimes.sim.replay.conductor import Conductor
from rollart.runtimes.sim.replay.record import Story
from rollart.runtimes.sim.replay.requests import Running, mismatch, running_of
from rollart.runtimes.sim.replay.words import (
    FOUND_BY_CONTROL,
    NO_TOKEN,
    NOT_ACKNOWLEDGED,
    NOT_TAKEN,
    demotion,
    refusal,
)

MICROSECOND_S = 1e-6
_NOT_ACKNOWLEDGED = re.compile(rf"{NOT_ACKNOWLEDGED}(\S+) s")


class ReplayEngine:
    """Serves one binding from its coming up to its loss.

    Args:
        engine_s: seconds of silence after which control takes a busy engine for hung.
    """

    def __init__(self, conductor: Conductor, binding: Binding, *, engine_s: float) -> None:
        self._conductor = conductor
        self._record = conductor.record
        self._binding = binding
        self._engine_s = engine_s
        self._running: dict[str, Running] = {}
        self._late: dict[str, DeltaSink] = {}
        self._paused = False
        self._held: list[Callable[[], None]] = []
        self._failures = 0
        self._closed = False
        down = self._record.next_of(EngineDown, conductor.place, self._is_mine)
        self._down_at = down[0].time if down is not None else math.inf
        self._down = down[1].reason if down is not None else ""
        self._life: Ask | None = None
        if self._down.startswith(NO_TOKEN):
            self._life = Ask(
                what=f"the last sign of life of {self.id}",
                tell=self.show_life,
                due=self._down_at - engine_s,
            )
            conductor.post(self._life)

    @property
    def id(self) -> str:
        return self._binding.worker

    @property
    def hardware(self) -> str:
        return self._binding.hardware

    def _is_mine(self, event: EngineDown | EngineAcknowledged) -> bool:
        return event.engine == self.id

    # -- requests --------------------------------------------------------------------------

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        running = self._running[request.id] = running_of(self._record.run_id, request, sink)
        if request.id in self._record.late:
            self._late[request.id] = sink
            self._conductor.post(self._late_ask(request.id))
        running.finish = self._ending(running)
        self._conductor.post(running.finish)

    def _ending(self, running: Running) -> Ask:
        """How the request ends at this engine, if it does."""
        story = self._record.stories[running.trajectory]
        turn = story.turns.get(running.turn)
        drop = story.drops.get(running.turn)
        ask = Ask(what=f"tokens of {running.request.id}", about=running.trajectory)
        if turn is not None:
            if running.serial > turn.interruptions:
                ask.due = max(story.answered_at(running.turn), self._conductor.now)
                ask.tell = partial(
                    self._when_running, running, partial(self._finish, running, turn)
                )
                ask.causes = partial(is_turn, running.trajectory, running.turn)
            elif not turn.engine:
                ask.due = self._conductor.now
                ask.tell = partial(running.stream, turn.versions)
        elif drop is not None:
            self._cut_off(ask, running, story, drop)
        elif story.ended is not None and story.ended.failure == FailureKind.ENGINE:
            ask.tell = partial(self._refuse, running, story.ended.detail)
            ask.causes = partial(ends_by_refusal, running.trajectory)
        elif story.ended is not None or story.disposed is not None:
            # It was sampled, and then cancelled before its step began.
            ask.due = self._conductor.now
            ask.tell = partial(self._finish_untold, running, story.lost_tokens())
        return ask

    def _cut_off(self, ask: Ask, running: Running, story: Story, drop: RequestDropped) -> None:
        malformed = None
        if story.ended is not None and story.ended.failure == FailureKind.TOKENS:
            malformed = mismatch(story)
        if malformed is not None:
            ask.tell = partial(running.send, malformed[0], logprobs=malformed[1])
            ask.causes = partial(is_drop_of, running.request.id)
        elif drop.sampled_tokens and running.request.offset == 0:
            ask.due = self._conductor.now
            ask.tell = partial(running.send, drop.sampled_tokens)

    def _when_running(self, running: Running, tell: Callable[[], None]) -> None:
        """While the engine stands no token comes: one that came at the resume waits for it."""
        if self._paused and self._resumes_now():
            self._held.append(tell)
        else:
            tell()

    def _resumes_now(self) -> bool:
        resume = self._record.next_of(
            PhaseEnded, self._conductor.place - 1, lambda ended: ended.phase is Phase.RESUME
        )
        return resume is not None and resume[0].time <= self._conductor.now + EPSILON_S

    def _finish(self, running: Running, turn: TurnEnded) -> None:
        if running.request.id in self._running:
            running.end_turn(turn, partial(self._leave, running))

    def _finish_untold(self, running: Running, tokens: int) -> None:
        self._leave(running)
        running.send(tokens, finish=StopReason.STOP)

    def _refuse(self, running: Running, detail: str) -> None:
        self._leave(running)
        running.send(0, refused=detail.removeprefix(f"{self.id}: "))

    def _leave(self, running: Running) -> None:
        self._running.pop(running.request.id, None)

    def _late_ask(self, request_id: str) -> Ask:
        def causes(event: Event) -> Cause:
            mine = isinstance(event, LateResult) and event.identity == request_id
            return Cause.ANSWER if mine and request_id not in self._running else Cause.NO

        def tell() -> None:
            sink = self._late[request_id]
            self._conductor.post(self._late_ask(request_id))
            nothing = LengthOnly(0)
            sink(TokenDelta(request_id=request_id, ids=nothing, logprobs=nothing, version=-1))

        return Ask(what=f"late tokens of {request_id}", causes=causes, tell=tell)

    def show_life(self) -> None:
        """No token, but a sign that tokens come: the proxy notes that the engine works."""
        running = next(iter(self._running.values()), None)
        if running is not None:
            running.send(0)

    @property
    def silent(self) -> bool:
        """Whether the record says that no more tokens come."""
        hung = self._down.startswith(NO_TOKEN)
        return self._closed or (hung and self._conductor.now > self._down_at - self._engine_s)

    # -- commands --------------------------------------------------------------------------

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Lets go when the trajectory's leaving is next; at once where nothing tells of one."""
        cut = [self._running.pop(name) for name in request_ids if name in self._running]
        for running in cut:
            if running.finish is not None:
                self._conductor.withdraw(running.finish)
        for running in cut:
            name, story = running.trajectory, self._record.stories[running.trajectory]
            drop = story.drops.get(running.turn)
            leaves = story.ended is not None or story.disposed is not None
            if leaves and drop is not None and drop.request == running.request.id:
                await self._conductor.ask(
                    Ask(what=f"{self.id} to let go", about=name, causes=is_leaving)
                )

    def release(self, session: str) -> None:
        return

    async def pause(self) -> None:
        self._paused = True
        await self._in_phase(Phase.SUSPEND, "pause")

    async def resume(self) -> None:
        self._paused = False
        for running in list(self._running.values()):
            ask = running.finish
            if ask is not None and not ask.told and ask.due <= self._conductor.now + EPSILON_S:
                self._conductor.withdraw(ask)
                self._held.append(ask.tell)
        held, self._held = self._held, []
        for tell in held:
            tell()
        await self._in_phase(Phase.RESUME, "resume")

    async def rebuild_kv(self) -> int:
        await self._in_phase(Phase.RECOMPUTE, "rebuild")
        return 0

    async def _in_phase(self, phase: Phase, what: str) -> None:
        """An answer that ends a phase comes with its end, any other at once.

        Before the first phase, it is what the run waited for to begin.
        """
        conductor = self._conductor
        in_phase = phase in conductor.open_phases
        ended = self._record.next_of(
            PhaseEnded, conductor.place - 1, lambda event: event.phase is phase
        )
        if in_phase and ended is not None and ended[0].time <= conductor.now + EPSILON_S:
            await asyncio.sleep(0)
        elif in_phase or not conductor.phases_begun:
            causes = partial(ends_phase, conductor, phase)
            await conductor.ask(Ask(what=f"{self.id} to {what}", causes=causes))

    async def update(self, version: PolicyVersion) -> None:
        ask = Ask(what=f"{self.id} to load {version}")
        ack = self._next_ack(version)
        if ack is not None:
            ask.causes = partial(is_same, ack)
            await self._conductor.ask(ask)
            self._failures = 0
            return
        words = refusal(self._record, self._conductor.place, self.id, version)
        self._failures += 1
        ask.due = self._fails_at(version)
        if not self._down.startswith(NOT_ACKNOWLEDGED):
            ask.causes = is_commit
        await self._conductor.ask(ask)
        if isinstance(self._conductor.event_ahead(), Committed):
            self._failures = 0
        raise RollartError(words)

    def _next_ack(self, version: PolicyVersion) -> EngineAcknowledged | None:
        """The acknowledgement that this load leads to; None where it fails.

        A load that succeeds began when it was asked for. One that is told of a later one failed,
        if there was room for it: a pause before the next try, or an update that went on without.
        """
        record, place, now = self._record, self._conductor.place, self._conductor.now
        ack = record.next_of(
            EngineAcknowledged,
            place - 1,
            lambda event: event.version == version.number and event.engine == self.id,
        )
        if ack is None or ack[0].time > self._down_at:
            return None
        demoted = demotion(self._record, self._conductor.place, self.id)
        if demoted is not None and demoted[0].seq < ack[0].seq:
            return None
        begins = ack[0].time - ack[1].seconds
        if begins <= now + MICROSECOND_S:
            return ack[1]
        room = begins - backoff(self._failures + 1) >= now - MICROSECOND_S
        return None if room else ack[1]

    def _fails_at(self, version: PolicyVersion) -> float:
        """When a load that the record does not acknowledge fails.

        The next one begins a known while later; its beginning is recorded with its success, or
        it is one of many in vain that end in the engine's loss. In an update all engines try again
        together; an engine that catches up does so by itself.
        """
        pause = backoff(self._failures)
        in_round = Phase.UPDATE in self._conductor.open_phases
        waited = _NOT_ACKNOWLEDGED.match(self._down)
        if waited is not None:
            fails = self._down_at - float(waited.group(1)) - pause
            return fails if fails > self._conductor.now else math.inf
        found = self._record.next_of(
            EngineAcknowledged,
            self._conductor.place - 1,
            lambda event: event.version >= version.number and (in_round or event.engine == self.id),
        )
        if self._down.startswith(NOT_TAKEN) and (found is None or found[1].engine != self.id):
            return (
                self._down_at - pause if self._failures >= CATCH_UP_TRIES else self._conductor.now
            )
        if found is None:
            return self._conductor.now
        begins = found[0].time - found[1].seconds - pause
        return begins if begins > self._conductor.now - EPSILON_S else math.inf

    # -- the end ---------------------------------------------------------------------------

    async def wait_dead(self) -> str:
        """What control found by itself it is left to find; told only when nothing else is."""
        found = self._down.startswith(FOUND_BY_CONTROL)

        def is_end(event: Event) -> bool:
            return isinstance(event, EngineDown) and event.engine == self.id

        ask = Ask(
            what=f"{self.id} to die",
            causes=lambda event: Cause.ERROR if is_end(event) and not found else Cause.NO,
            last=3,
            may_last=is_end,
        )
        return await self._conductor.ask(ask, lambda: self._down)

    async def close(self) -> None:
        self._closed = True
        for running in self._running.values():
            if running.finish is not None:
                self._conductor.withdraw(running.finish)
        self._running.clear()
