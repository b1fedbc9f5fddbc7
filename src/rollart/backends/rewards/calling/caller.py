"""One function on one platform, called: the loop over the decisions that lie beside it.

Owns its platform and its fallback's caller. Invariant: a call ends by its deadline with the
verdict of its own answer, or with none and the reason; whatever ends it, its places, its stored
document and its tries are gone with it.

A call waits for: a call of the same key; the platform to be up; a place at the limiter; an answer;
the pause before another try. All of it is under the call's one deadline.
"""

import asyncio
import math
from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rollart.backends.rewards.calling.answers import score_answer
from rollart.backends.rewards.calling.call import Call
from rollart.backends.rewards.calling.health import check_health
from rollart.backends.rewards.calling.hedging import Hedges
from rollart.backends.rewards.calling.limiter import Limiter, Place
from rollart.backends.rewards.calling.line import Line
from rollart.backends.rewards.calling.records import CallSettings, Outcome, StateSink
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.calling.remembered import Remembered
from rollart.backends.rewards.calling.retries import LEAST_S, GiveUp, try_s
from rollart.backends.rewards.calling.watch import Watch
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.scoring.wire import Answer, Request, encode_request

_ANSWERED = (None, FailureKind.REWARD_NO_VERDICT)  # what the function itself gave


class Caller:
    """Calls one function.

    Args:
        url: names it, in outcomes and messages.
        function_version: that has to answer; None takes any.
        limiter: of the platform (`platform.limits.name`), shared by all functions on it.
        store: for documents above the platform's limit; shared, and closed by who made it.
        fallback: asked while the platform is down, and by calls that it asks to wait too long.
        on_state: is told when the platform goes down and when it is up again.
    """

    def __init__(
        self,
        platform: Platform,
        *,
        url: str,
        function_version: str | None,
        settings: CallSettings,
        limiter: Limiter,
        store: References | None,
        fallback: "Caller | None",
        on_state: StateSink,
    ) -> None:
        self.url = url
        self._version = function_version
        self._settings = settings
        self._store = store
        self._fallback = fallback
        self._line = Line(platform, limiter)
        self._watch = Watch(
            self._line,
            url=url,
            fallback="" if fallback is None else fallback.url,
            settings=settings,
            on_state=on_state,
        )
        self._hedges = Hedges()
        self._remembered = Remembered()
        self._scopes: dict[Call, asyncio.Timeout] = {}
        self._idle = asyncio.Event()
        self._closed = False

    async def health(self, seconds: float) -> Answer:
        """What the function says of itself. Raises `ConfigError` with the remedy."""
        return await check_health(
            self._ask_health, url=self.url, version=self._version, seconds=seconds
        )

    async def score(self, document: Mapping[str, Any], *, identity: str, seconds: float) -> Outcome:
        """The verdict on a trajectory, within `seconds`; never raises for what a platform does.

        Args:
            document: a `TrajectoryDocument`, as JSON.
            identity: of the trajectory. Calls of one identity have one verdict: they share the
                call under way and are given what it gave, with no tries of their own.
        """
        loop = asyncio.get_running_loop()
        key = f"{identity}#{self._version or ''}"
        deadline = loop.time() + seconds
        while not self._closed:
            kept = self._remembered.finished(key)
            if kept is not None:
                return _given_again(kept)
            leading = self._remembered.under_way(key)
            call = Call(key, document, url=self.url, seconds=deadline - loop.time())
            if leading is None:
                with self._remembered.lead(key) as own:
                    own.outcome = outcome = await self._run(call, identity)
                    if outcome.verdict.failure in _ANSWERED:
                        self._remembered.keep(key, outcome)
                return outcome
            await asyncio.wait((leading.ended,), timeout=max(call.left_s, 0.0))
            given = leading.outcome
            if given is not None and given.verdict.failure is not FailureKind.REWARD_TIMEOUT:
                return _given_again(given)
            if call.left_s <= 0:
                return call.ran_out("another call of the same trajectory is under way")
        return self._closes(Call(key, document, url=self.url, seconds=seconds))

    async def close(self) -> None:
        """End what is under way, each with no verdict; then let the platforms go."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes.values():
            if not scope.expired():
                scope.reschedule(now)
        while self._scopes:
            self._idle.clear()
            await self._idle.wait()
        await self._watch.close()
        await self._line.platform.close()
        if self._fallback is not None:
            await self._fallback.close()

    async def _run(self, call: Call, identity: str) -> Outcome:
        """The call from here to its end, at the fallback if the platform cannot take it."""
        outcome: Outcome | None
        try:
            async with asyncio.timeout_at(call.deadline) as scope:
                self._scopes[call] = scope
                outcome = await self._until_final(call)
        except GiveUp as end:
            outcome = call.gave_up(end)
        except TimeoutError:
            outcome = self._closes(call) if self._closed else call.ran_out(self._waits_for(call))
        finally:
            del self._scopes[call]
            self._idle.set()
            if call.reference is not None and self._store is not None:
                self._store.drop(call.reference)
        return await self._elsewhere(call, identity) if outcome is None else outcome

    async def _elsewhere(self, call: Call, identity: str) -> Outcome:
        assert self._fallback is not None, "a call is for the fallback only where there is one"
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await self._fallback.score(
            call.document, identity=identity, seconds=call.deadline - began
        )
        return call.elsewhere(outcome, loop.time() - began)

    def _closes(self, call: Call) -> Outcome:
        return call.gave_up(GiveUp("the run has closed it", late=False))

    async def _until_final(self, call: Call) -> Outcome | None:
        """How it ended; None when it is for the fallback. Raises `GiveUp`."""
        while True:
            if self._is_for_fallback(call):
                return None
            if self._watch.is_down:
                await asyncio.wait((self._watch.turn,))  # who came first is served first
                call.retries.was_down()
                continue
            try:
                answer = await self._try(call)
            except PlatformFault as fault:
                told = call.noted(fault)
                if fault.fault is Fault.TIMEOUT and self._fallback is not None:
                    return None  # another try might take all that is left, and the fallback's share
                try:
                    pause_s = call.retries.pause_s(
                        fault, call.left_s, told=told, signs=self._watch.signs
                    )
                except GiveUp as end:
                    if end.late and self._is_for_fallback(call):
                        return None
                    raise
                await asyncio.sleep(pause_s)
                continue
            if answer is not None:
                return call.answered(answer)

    def _is_for_fallback(self, call: Call) -> bool:
        """Whether there is one and the platform is down, or wants to rest for all that is left."""
        if self._fallback is None:
            return False
        return self._watch.is_down or self._line.pause_s >= max(call.left_s - LEAST_S, LEAST_S)

    async def _try(self, call: Call) -> Answer | None:
        """The answer; None when the platform could not take it before anything was sent."""
        await call.prepare(self._line.platform.limits, self._store)
        if self._is_for_fallback(call):
            return None
        if (pause_s := self._line.pause_s) >= call.left_s:
            last = "" if call.fault is None else f"; the last fault: {call.fault}"
            raise GiveUp(
                f"the platform asks all its callers to wait {pause_s:.3g} s, and "
                f"{max(call.left_s, 0.0):.3g} s are left{last}",
                late=True,
            )
        with self._line.limiter.ask() as place:
            await self._placed(place, call)
            if self._watch.is_down or self._is_for_fallback(call):
                return None
            began = asyncio.get_running_loop().time()
            try:
                return await self._send_hedged(call)
            finally:
                call.spent_s += asyncio.get_running_loop().time() - began

    async def _placed(self, place: Place, call: Call) -> None:
        """Wait for the place; with a fallback, no longer than the platform will take the call."""
        if self._fallback is None:
            await place.granted
        while not (place.granted.done() or self._is_for_fallback(call)):
            any_of = (place.granted, self._watch.turn, self._line.limiter.next_pause)
            await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)

    async def _send_hedged(self, call: Call) -> Answer:
        delay_s = self._hedges.delay_s if self._settings.hedge else None
        if not call.tries:
            self._hedges.began()
        if delay_s is None or delay_s >= call.left_s or not self._hedges.left:
            return await self._send(call)
        with ExitStack() as places:  # left when both tries have let go, also when cancelled
            async with asyncio.TaskGroup() as group:
                first = group.create_task(_caught(self._send(call)))
                await asyncio.wait((first,), timeout=delay_s)
                place = (
                    None if first.done() or not self._hedges.left else self._line.limiter.ask_now()
                )
                if place is None:  # a hedge is no reason for another call to wait
                    result = await first
                else:
                    places.enter_context(place)
                    self._hedges.took()
                    call.hedged = True
                    second = group.create_task(_caught(self._send(call)))
                    result = await self._first_answer(first, second)
        if isinstance(result, PlatformFault):
            raise result
        return result

    async def _first_answer(self, first: "_Sent", second: "_Sent") -> Answer | PlatformFault:
        """What the earlier good answer is; the other try is cancelled and gone."""
        both = (first, second)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not any(_is_good(task) for task in both):
            await asyncio.wait(both)
        winner = next((task for task in both if _is_good(task)), first)
        for task in both:
            task.cancel()
        await asyncio.wait(both)
        return winner.result()

    async def _send(self, call: Call) -> Answer:
        """One try. Raises `PlatformFault`; what it says of the platform is noted."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        limit_s = self._settings.function_s
        seconds = try_s(call.left_s, limit_s, fallback=self._fallback is not None)
        try:
            data = await self._line.exchange(call.body(), call.key, seconds)
            answer = score_answer(data, key=call.key, version=self._version)
        except PlatformFault as fault:
            # A try that the call's own deadline cut short says nothing about the platform.
            whole_s = min(0.4 * call.seconds, limit_s or math.inf)
            self._watch.note(call.key, fault, full=seconds >= whole_s)
            raise
        except ConfigError as error:
            self._watch.lives()
            raise PlatformFault(Fault.REFUSED, str(error)) from error
        self._hedges.answered(loop.time() - began)
        self._watch.lives()
        return answer

    async def _ask_health(self, request: Request, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await self._line.ask(encode_request(request), request.key, seconds)
        except TimeoutError as error:
            raise PlatformFault(Fault.TIMEOUT, f"no answer within {seconds:.3g} s") from error

    def _waits_for(self, call: Call) -> str:
        """What a call that ran out of time waited for."""
        if self._watch.is_down:
            return f"the platform is down ({self._watch.reason})"
        if (pause_s := self._line.pause_s) > 0:
            return f"the platform asks all its callers to wait {pause_s:.3g} s more"
        if not call.tries and call.fault is None:
            return "it waited for its place; more at once is ?concurrency= and ?rate= in the URL"
        return ""


_Sent = asyncio.Task[Answer | PlatformFault]


async def _caught(sending: Awaitable[Answer]) -> Answer | PlatformFault:
    """In a group a fault must not cancel the other try."""
    try:
        return await sending
    except PlatformFault as fault:
        return fault


def _is_good(task: _Sent) -> bool:
    return task.done() and not task.cancelled() and isinstance(task.result(), Answer)


def _given_again(outcome: Outcome) -> Outcome:
    return replace(outcome, tries=0, waited_s=0.0, sent_bytes=0, hedged=False)
