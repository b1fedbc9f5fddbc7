"""The control side of the gateway: serverless functions as the `Reward` port.

Owns the gateway child, started at the first need and again if it dies, and the functions that were
opened. Invariant: every call ends by its deadline, with a verdict or none with the reason, and is
told as one `RewardCalled`; a gateway that dies costs no call that has time left. Who waits on whom:
a call for the gateway's start, then for its answer; `close` for the child, seconds at most.
"""

import asyncio
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from rollart.backends.rewards.calling.records import Outcome, PlatformState
from rollart.core.documents import document_of
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.events import (
    CANCELLED,
    VERDICT,
    FunctionInstance,
    PlatformDown,
    PlatformUp,
    RewardCalled,
)
from rollart.core.ports import EventSink
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.verdict import as_verdict
from rollart.core.types import Trajectory, Verdict
from rollart.process.child import Child
from rollart.process.errors import (
    CallTimeout,
    ChannelFull,
    ChildDied,
    ProcessError,
    RemoteError,
)
from rollart.process.spawn import spawn
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.gateway_records import (
    INSTANCE,
    FunctionWish,
    GatewayConfig,
    lost,
    no_verdict,
    unpack_outcome,
)
from rollart.runtimes.local.remote import as_core_error, in_a_line

ENTRY = "rollart.runtimes.local.gateway_child:entry"

HEALTH_S = 30.0
"""Seconds that a platform may take to say, at a run's start, which function lives there."""

_GRACE_S = 2.0  # that the gateway may be later than a call's deadline before it counts as stuck
_CLOSE_S = 8.0
_DEATHS_BORNE = 2  # of the gateway, by one call


class Gateway:
    """Every serverless function of a run.

    Args:
        children: the whole environment of local functions' processes.
        events: takes `RewardCalled` and what the gateway notices.
    """

    def __init__(
        self,
        *,
        children: dict[str, str],
        python_path: Sequence[str],
        logs: Path,
        events: EventSink,
    ) -> None:
        self._config = GatewayConfig(
            children=children,
            python_path=tuple(python_path),
            logs=str(logs),
        )
        self._log_file = logs / "gateway.log"
        self._events = events
        self._child: Child | None = None
        self._start: asyncio.Task[Child] | None = None  # belongs to all who wait for it
        self._wishes: dict[str, FunctionWish] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    async def open(self, wish: FunctionWish) -> None:
        """Make ready to call a function; its platforms are asked for its health.

        Raises `ConfigError` naming what is wrong and the remedy, also for a URL that stands
        elsewhere with other fallbacks, limits or another function.
        """
        known = self._wishes.get(wish.url)
        if known == wish:
            return
        if known is not None:
            raise ConfigError(
                f"{wish.shown}: is named twice, with other fallbacks, limits or another function; "
                "name it everywhere alike"
            )
        try:
            await self._open(await self._running(), wish, health=True)
        except ProcessError as error:
            raise ConfigError(f"the gateway to {wish.shown} failed: {in_a_line(error)}") from error
        self._wishes[wish.url] = wish

    async def score(
        self, url: str, document: TrajectoryDocument, *, seconds: float, part: bool = False
    ) -> Outcome:
        """The outcome of one call of an opened function.

        Args:
            part: the document may be only a part of its trajectory, or changed: calls are the same
                only if their documents are.
        """
        loop = asyncio.get_running_loop()
        began, packed, shown = loop.time(), document.to_json(), self._wishes[url].shown
        identity = f"{document.run}/{document.id}"
        if part:
            identity += f"/{hashlib.sha256(json.dumps(packed).encode()).hexdigest()[:16]}"
        try:
            outcome = await self._score(url, packed, identity, began + seconds)
        except asyncio.CancelledError:
            nothing = lost(shown, FailureKind.REWARD_ERROR, "nobody waits for it any more")
            self._tell(shown, document, began, nothing, ended=CANCELLED)
            raise
        try:
            as_verdict(outcome.verdict, turns=len(document.turns))
        except (TypeError, ValueError) as error:  # a platform's own function may answer anything
            outcome = replace(outcome, verdict=no_verdict(FailureKind.REWARD_ERROR, str(error)))
        self._tell(shown, document, began, outcome)
        return outcome

    async def close(self) -> None:
        """End the gateway and every process of its own, within seconds."""
        self._closed = True
        if self._start is not None and not self._start.done():
            self._start.cancel()
            await asyncio.wait((self._start,))
        if self._child is not None:
            await self._child.close(_CLOSE_S)

    async def _score(self, url: str, packed: Packed, identity: str, deadline: float) -> Outcome:
        loop, shown = asyncio.get_running_loop(), self._wishes[url].shown
        reason = "the gateway was not ready in time"
        for _ in range(1 + _DEATHS_BORNE):
            try:
                async with asyncio.timeout_at(deadline):
                    child = await self._running()
                return await self._ask(child, url, packed, identity, deadline)
            except TimeoutError:
                return lost(shown, FailureKind.REWARD_TIMEOUT, reason)
            except CallTimeout:
                return lost(shown, FailureKind.REWARD_TIMEOUT, "the gateway did not answer in time")
            except ChildDied as died:
                reason = f"the gateway died: {in_a_line(died)}"
            except (ProcessError, ConfigError) as error:
                told = in_a_line(error) if isinstance(error, ProcessError) else str(error)
                return lost(shown, FailureKind.REWARD_ERROR, f"the gateway failed: {told}")
            if loop.time() >= deadline:
                return lost(shown, FailureKind.REWARD_TIMEOUT, reason)
        return lost(shown, FailureKind.REWARD_ERROR, reason)

    async def _ask(
        self, child: Child, url: str, packed: Packed, identity: str, deadline: float
    ) -> Outcome:
        """The child's outcome; while its channel is full of large documents, they wait here."""
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        while True:
            seconds = max(deadline - loop.time(), 0.0)
            try:
                return unpack_outcome(
                    await child.call(
                        "score", number, url, packed, identity, seconds, timeout=seconds + _GRACE_S
                    )
                )
            except ChannelFull:
                async with asyncio.timeout_at(deadline):
                    await child.drain()
            except asyncio.CancelledError:
                with suppress(ProcessError):  # it is dead, or will see it once it reads again
                    child.cast("cancel", number)
                raise

    async def _running(self) -> Child:
        """The gateway; if it has died, started again, with all its functions, once for all."""
        if self._child is not None and self._child.alive:
            return self._child
        if self._closed:
            raise ConfigError("the run is ending")
        if self._start is None or self._start.done():
            self._start = asyncio.get_running_loop().create_task(self._started())
        return await asyncio.shield(self._start)

    async def _started(self) -> Child:
        child = await spawn(
            ENTRY,
            self._config,
            name="gateway",
            env=dict(os.environ),
            inherit_env=False,
            python_path=self._config.python_path,
            on_event=self._noticed,
            log_file=self._log_file,
        )
        try:
            for wish in self._wishes.values():  # in mid-run: their calls find out who is there
                await self._open(child, wish, health=False)
        except BaseException:
            child.kill()
            raise
        self._child = child
        return child

    async def _open(self, child: Child, wish: FunctionWish, *, health: bool) -> None:
        limit_s = HEALTH_S * len(wish.places) + _GRACE_S
        try:
            await child.call("open", wish, HEALTH_S if health else None, timeout=limit_s)
        except RemoteError as error:
            raise as_core_error(error, wish.shown, ConfigError) from None

    def _noticed(self, told: Packed) -> None:
        if told[0] == INSTANCE:
            _, url, name, begin, end = told
            self._events.emit(FunctionInstance(url=url, instance=name, begin=begin, end=end))
            return
        state = msgspec.convert(told[1], PlatformState)
        if state.down:
            self._events.emit(
                PlatformDown(url=state.url, reason=state.reason, fallback=state.fallback)
            )
        else:
            self._events.emit(PlatformUp(url=state.url, down_s=state.down_s))

    def _tell(
        self,
        url: str,
        document: TrajectoryDocument,
        began: float,
        outcome: Outcome,
        ended: str | None = None,
    ) -> None:
        verdict = outcome.verdict
        failure = verdict.failure or FailureKind.REWARD_NO_VERDICT
        self._events.emit(
            RewardCalled(
                trajectory=document.id,
                url=url,
                served_by=outcome.served_by,
                begin=began,
                end=asyncio.get_running_loop().time(),
                tries=outcome.tries,
                waited_s=outcome.waited_s,
                function_s=outcome.function_s,
                instance=outcome.instance,
                cold=outcome.cold,
                sent_bytes=outcome.sent_bytes,
                by_reference=outcome.by_reference,
                hedged=outcome.hedged,
                outcome=ended or (VERDICT if verdict.score is not None else failure.value),
                reason=verdict.reason,
            )
        )


class ServerlessReward:
    """The `Reward` port over an opened function."""

    def __init__(self, gateway: Gateway, url: str, *, limit_s: float) -> None:
        self._gateway = gateway
        self._url = url
        self._limit_s = limit_s

    async def score(self, trajectory: Trajectory) -> Verdict:
        """The function's verdict, or none with the reason."""
        try:
            document = document_of(trajectory)
        except TypeError as error:
            reason = f"the reward cannot be sent the trajectory: {error}"
            return Verdict(score=None, reason=reason, failure=FailureKind.REWARD_ERROR)
        outcome = await self._gateway.score(self._url, document, seconds=self._limit_s)
        return outcome.verdict

    async def close(self) -> None:
        """The function belongs to the run, which closes it."""
