"""LLMProxy: the only router of generation. It owns every request until its last token.

Invariant: nothing sampled is lost with an engine. A request whose engine goes away, or may no
longer be used, is sent on with its prompt and what was sampled, its budget shrunk by that; each
token keeps the version that sampled it. While suspended nothing is sent. After a cancelled
`generate` the engine has let go of the request.
Who waits: EnvManagers, for `generate` (unblocked by tokens, a routable engine, or cancellation).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rollart.control.fleet import EngineSlot, EngineState, Fleet
from rollart.control.routing import Router, token_budget
from rollart.core.errors import EngineRefused, FailureKind, TokenMismatch, TrajectoryFailure
from rollart.core.events import LateResult, RequestDropped
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Affinity, EventSink
from rollart.core.records import record
from rollart.core.tokens import (
    NO_TOKENS,
    NO_VERSIONS,
    NOT_COUNTED,
    Prompt,
    TokenBlock,
    join,
    total_length,
)
from rollart.core.types import (
    NO_COST,
    Completion,
    GenerateRequest,
    StopReason,
    TokenDelta,
)

StartSink = Callable[[int], None]


@record
class GenerateCall:
    """What an EnvManager asks for: one turn of one trajectory.

    `prompt_tokens` is the prompt's length and `session` the trajectory's; where they are not given
    they are worked out, which costs something at every turn.
    """

    trajectory: TrajectoryId
    turn: int
    prompt: Prompt
    max_tokens: int
    temperature: float
    seed: int
    prompt_tokens: int = NOT_COUNTED
    session: str = ""

    def __post_init__(self) -> None:
        if self.prompt_tokens == NOT_COUNTED:
            object.__setattr__(self, "prompt_tokens", total_length(self.prompt))
        if not self.session:
            object.__setattr__(self, "session", self.trajectory.session)


@record
class Answer:
    """The turn's completion, the seconds it waited here, and how often it changed engine."""

    completion: Completion
    queued_s: float
    interruptions: int
    asked_at: float = 0.0
    answered_at: float = 0.0


class _Pending:
    """A request on its way. `serial` counts its dispatches: deltas of an older one are late.

    `session` and `request_id` are names that would be costly to make anew each time. The number in
    `request_id` counts the dispatches of the whole turn, of which a user's code may ask several.
    """

    __slots__ = (
        "answered_at",
        "asked_at",
        "call",
        "cost",
        "future",
        "ids",
        "logprobs",
        "on_start",
        "prompt_tokens",
        "queued_at",
        "queued_s",
        "request_id",
        "serial",
        "session",
        "slot",
        "versions",
    )

    def __init__(
        self,
        call: GenerateCall,
        on_start: StartSink,
        future: "asyncio.Future[Completion]",
        asked_at: float,
    ) -> None:
        self.call = call
        self.session = call.session
        self.prompt_tokens = call.prompt_tokens
        self.on_start = on_start
        self.future = future
        self.asked_at = self.queued_at = asked_at
        self.answered_at = self.queued_s = 0.0
        self.slot: EngineSlot | None = None
        self.serial = 0
        self.request_id = ""
        self.ids: list[TokenBlock] = []
        self.logprobs: list[TokenBlock] = []
        self.versions = NO_VERSIONS
        self.cost = NO_COST


class LLMProxy:
    """Dispatches each trajectory's requests to engines.

    `progress_at` is the loop time (s) of the last token.

    Args:
        context: tokens a sequence may hold in all.
    """

    def __init__(
        self, fleet: Fleet, *, affinity: Affinity, context: int, events: EventSink
    ) -> None:
        self._fleet = fleet
        self._affinity = affinity
        self._context = context
        self._events = events
        self._router = Router(fleet.routable())
        self._queue: deque[_Pending] = deque()
        self._sent: dict[str, _Pending] = {}
        self._holder: dict[str, str] = {}
        self._numbered: dict[str, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self.progress_at = 0.0
        fleet.connect(on_lost=self._move, on_routable=self._pump)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def generate(self, call: GenerateCall, on_start: StartSink) -> Answer:
        """Sample one turn.

        `on_start` gets the version of the engine each time the request is sent to one.

        Raises:
            TokenMismatch: the engine's answer is malformed; the request is dropped there.
            TrajectoryFailure: the engine refuses the request.
        """
        pending = _Pending(call, on_start, self._loop.create_future(), self._loop.time())
        if self._budget(pending) <= 0:
            return Answer(
                completion=_complete(pending, StopReason.CONTEXT), queued_s=0.0, interruptions=0
            )
        self._queue.append(pending)
        self._pump()
        try:
            completion = await pending.future
        except EngineRefused as error:
            raise TrajectoryFailure(FailureKind.ENGINE, str(error)) from error
        except (asyncio.CancelledError, TokenMismatch):
            await self._drop(pending)
            raise
        return Answer(
            completion=completion,
            queued_s=pending.queued_s,
            interruptions=pending.serial - 1,
            asked_at=pending.asked_at,
            answered_at=pending.answered_at,
        )

    def release(self, trajectory: TrajectoryId) -> None:
        """The trajectory is over: its KV may go."""
        session = trajectory.session
        self._release_prefix(session)
        self._numbered.pop(session, None)

    async def suspend(self) -> None:
        """No request is sent from here on; returns when no engine steps."""
        await self._fleet.pause()

    async def resume(self) -> None:
        """Engines run on and waiting requests are sent."""
        await self._fleet.resume()

    # -- dispatch ----------------------------------------------------------------------------

    def _budget(self, pending: _Pending) -> int:
        return token_budget(
            max_tokens=pending.call.max_tokens,
            prompt_tokens=pending.prompt_tokens,
            sampled_tokens=len(pending.versions),
            context=self._context,
        )

    def _pump(self) -> None:
        """Send what waits, first come first served."""
        while self._queue and not self._fleet.suspended:
            pending = self._queue[0]
            slot = self._router_now().choose(
                wanted=self._affinity.wanted(pending.call.trajectory.domain),
                holder=self._holder.get(pending.session),
            )
            if slot is None:
                return
            self._queue.popleft()
            self._dispatch(pending, slot)

    def _router_now(self) -> Router[EngineSlot]:
        """Made anew when other engines are routable: about once a weight update."""
        engines = self._fleet.routable()
        if engines is not self._router.engines:
            self._router = Router(engines)
        return self._router

    def _dispatch(self, pending: _Pending, slot: EngineSlot) -> None:
        budget = self._budget(pending)
        if budget <= 0:
            self._finish(pending, StopReason.LENGTH)
            return
        call = pending.call
        sampled = len(pending.versions)
        pending.serial += 1
        pending.request_id = self._next_id(pending)
        pending.slot = slot
        time = self._loop.time()
        pending.queued_s += time - pending.queued_at
        if not slot.inflight:
            slot.progress_at = time
        slot.inflight[pending.request_id] = None
        self._sent[pending.request_id] = pending
        self._hold(pending.session, slot)
        pending.on_start(slot.version)
        slot.engine.add(
            GenerateRequest(
                id=pending.request_id,
                session=pending.session,
                prompt=(*call.prompt, *pending.ids) if pending.ids else call.prompt,
                max_tokens=budget,
                temperature=call.temperature,
                seed=call.seed,
                offset=sampled,
                prompt_tokens=pending.prompt_tokens + sampled,
            ),
            partial(self._on_delta, pending, pending.serial, slot),
        )

    def _next_id(self, pending: _Pending) -> str:
        """A name that no request of this turn had, nor one in flight.

        Numbers are a turn's own, not the proxy's: so they do not tell in which order requests of
        different trajectories were sent within one instant, which a replay leaves open.
        """
        turn = pending.call.turn
        last, number = self._numbered.get(pending.session, (turn, 0))
        number = number + 1 if last == turn else 1
        while (name := f"{pending.session}/t{turn}#{number}") in self._sent:
            number += 1
        self._numbered[pending.session] = (turn, number)
        return name

    def _hold(self, session: str, slot: EngineSlot) -> None:
        """The prefix lives in `slot` from now on; where it was before, it may go."""
        if self._holder.get(session) != slot.binding.worker:
            self._release_prefix(session)
            self._holder[session] = slot.binding.worker

    def _release_prefix(self, session: str) -> None:
        holder = self._holder.pop(session, None)
        slot = self._fleet.slot(holder) if holder is not None else None
        if slot is not None and slot.state is not EngineState.LOST:
            slot.engine.release(session)

    def _on_delta(
        self, pending: _Pending, serial: int, slot: EngineSlot, delta: TokenDelta
    ) -> None:
        if serial != pending.serial or pending.slot is not slot or pending.future.done():
            self._events.emit(LateResult(what="tokens", identity=delta.request_id))
            return
        slot.progress_at = self.progress_at = self._loop.time()
        if delta.refused is not None:
            self._detach(pending)
            pending.future.set_exception(EngineRefused(f"{slot.binding.worker}: {delta.refused}"))
            return
        count = len(delta.ids)
        if count != len(delta.logprobs):
            pending.future.set_exception(
                TokenMismatch(delta.request_id, count, len(delta.logprobs))
            )
            return
        if count:
            pending.ids.append(delta.ids)
            pending.logprobs.append(delta.logprobs)
            pending.versions = pending.versions.append(delta.version, count)
        if delta.cost is not None:
            pending.cost = delta.cost if pending.cost is NO_COST else pending.cost + delta.cost
        if delta.finish is not None:
            self._finish(pending, delta.finish)

    def _finish(self, pending: _Pending, stop: StopReason) -> None:
        completion = _complete(pending, stop)
        pending.answered_at = self._loop.time()
        self._detach(pending)
        if not pending.future.done():
            pending.future.set_result(completion)

    def _detach(self, pending: _Pending) -> None:
        if pending.slot is not None:
            pending.slot.inflight.pop(pending.request_id, None)
            self._sent.pop(pending.request_id, None)
            self._router.eased(pending.slot.binding.worker)

    # -- moving and dropping -------------------------------------------------------------------

    def _move(self, slot: EngineSlot) -> int:
        """Take back all requests of an engine; they go to the front, in their order."""
        moved = [self._sent.pop(request_id) for request_id in slot.inflight]
        slot.inflight.clear()
        for pending in reversed(moved):
            pending.slot = None
            pending.queued_at = self._loop.time()
            self._queue.appendleft(pending)
        self._pump()
        return len(moved)

    async def _drop(self, pending: _Pending) -> None:
        """Forget a request here and at its engine."""
        slot = pending.slot
        self._detach(pending)
        self._events.emit(
            RequestDropped(
                request=pending.request_id,
                engine=slot.binding.worker if slot is not None else "",
                prompt_tokens=pending.prompt_tokens,
                sampled_tokens=len(pending.versions),
                asked_at=pending.asked_at,
            )
        )
        if slot is None:
            with suppress(ValueError):
                self._queue.remove(pending)
        elif slot.state is not EngineState.LOST:
            await self._fleet.abort(slot, (pending.request_id,))


def _complete(pending: _Pending, stop: StopReason) -> Completion:
    return Completion(
        ids=_whole(pending.ids),
        logprobs=_whole(pending.logprobs),
        versions=pending.versions,
        stop=stop,
        engine=pending.slot.binding.worker if pending.slot is not None else "",
        cost=pending.cost,
    )


def _whole(blocks: list[TokenBlock]) -> TokenBlock:
    """Most answers come in one block."""
    if len(blocks) == 1:
        return blocks[0]
    return join(blocks) if blocks else NO_TOKENS
