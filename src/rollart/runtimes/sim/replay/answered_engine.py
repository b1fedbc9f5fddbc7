"""The engine of a real run's replay: whatever ends a request comes in when the record says so.

Invariant: a turn's tokens are told with its last one, in the recorded runs of versions; a command
succeeds unless what it led to says otherwise.
"""

import math
from collections.abc import Sequence
from functools import partial

from rollart.core.errors import EngineLost, FailureKind, RollartError
from rollart.core.events import EngineAcknowledged, EngineDown
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, DeltaSink
from rollart.core.types import GenerateRequest, StopReason
from rollart.runtimes.sim.replay.answering import Answering
from rollart.runtimes.sim.replay.requests import Running, mismatch, running_of
from rollart.runtimes.sim.replay.words import FOUND_BY_CONTROL, NO_TOKEN, refusal


class AnsweredEngine:
    """Serves one binding from its coming up to its loss.

    Args:
        engine_s: seconds of silence after which control takes a busy engine for hung.
    """

    def __init__(self, conductor: Answering, binding: Binding, *, engine_s: float) -> None:
        self._conductor = conductor
        self._record = conductor.record
        self._binding = binding
        self._engine_s = engine_s
        self._running: dict[str, Running] = {}
        down = self._record.next_of(
            EngineDown, conductor.place, lambda event: event.engine == self.id
        )
        self._down_at = down[0].time if down is not None else math.inf
        self._down = down[1].reason if down is not None else ""

    @property
    def id(self) -> str:
        return self._binding.worker

    @property
    def hardware(self) -> str:
        return self._binding.hardware

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        run_id = self._record.run_id
        running = self._running[request.id] = running_of(run_id, request, sink)
        name = request.id.removeprefix(f"{run_id}/")
        self._conductor.door.expect(name, partial(self._end, running))
        if request.id in self._record.late:
            self._conductor.late[request.id] = partial(running.send, 0)
        self._begin(running)

    def _begin(self, running: Running) -> None:
        """Tokens of what is cut off later come at once: they count, and decide nothing."""
        story = self._record.stories[running.trajectory]
        turn, drop = story.turns.get(running.turn), story.drops.get(running.turn)
        if turn is not None:
            if running.serial <= turn.interruptions and not turn.engine:
                running.stream(turn.versions)
        elif drop is not None and drop.sampled_tokens and not running.request.offset:
            running.send(drop.sampled_tokens)

    def _end(self, running: Running) -> None:
        """The delta that ended it, as far as the record tells."""
        story = self._record.stories[running.trajectory]
        turn, ended = story.turns.get(running.turn), story.ended
        leave = partial(self._running.pop, running.request.id, None)
        if turn is not None:
            running.end_turn(turn, leave)
            return
        leave()
        if ended is not None and ended.failure == FailureKind.ENGINE:
            running.send(0, refused=ended.detail.removeprefix(f"{self.id}: "))
        elif (
            ended is not None
            and ended.failure == FailureKind.TOKENS
            and (found := mismatch(story)) is not None
        ):
            running.send(found[0], logprobs=found[1])
        elif running.turn in story.drops:
            running.send(0, finish=StopReason.STOP)
        else:
            running.send(story.lost_tokens(), finish=StopReason.STOP)

    # -- commands --------------------------------------------------------------------------

    async def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self._running.pop(name, None)
        self._command()

    def release(self, session: str) -> None:
        return

    async def pause(self) -> None:
        self._command()

    async def resume(self) -> None:
        self._command()

    async def rebuild_kv(self) -> int:
        self._command()
        return 0

    def _command(self) -> None:
        """It fails if its failure is what the engine was lost to."""
        for event in self._conductor.ahead():
            if not isinstance(event, EngineDown) or event.engine != self.id:
                continue
            if not event.reason.startswith(FOUND_BY_CONTROL):
                raise EngineLost(self.id, event.reason)

    async def update(self, version: PolicyVersion) -> None:
        for event in self._conductor.ahead():
            if not isinstance(event, EngineAcknowledged) or event.engine != self.id:
                continue
            if event.version == version.number:
                return
        self._command()
        raise RollartError(refusal(self._record, self._conductor.place, self.id, version))

    # -- the end ---------------------------------------------------------------------------

    def show_life(self) -> None:
        """No token, but a sign of life, of a request that will be answered: nobody drops it."""
        stories = self._record.stories
        for running in self._running.values():
            if running.turn in stories[running.trajectory].turns:
                running.send(0)
                return

    @property
    def silent(self) -> bool:
        """Whether the record says that no more tokens come."""
        hung = self._down.startswith(NO_TOKEN)
        return hung and self._conductor.now > self._down_at - self._engine_s

    async def wait_dead(self) -> str:
        return self._down

    async def close(self) -> None:
        self._running.clear()
