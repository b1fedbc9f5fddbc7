"""The gateway: the one process of a run that talks to serverless functions.

Owns every platform, its limiter and its callers, so that no SDK's thread, socket or large document
touches the control loop. Invariant: calls overlap, and each ends by its own deadline; a call that
nobody waits for any more is cancelled, not finished. What it notices unasked (a platform down, a
process that ended) it tells as events.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollart.backends.rewards.callers import Callers, is_local, most_calls
from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.records import Outcome, PlatformState
from rollart.backends.rewards.platform import Platform
from rollart.process.serve import ChildPort
from rollart.process.serve_async import run_async_handlers
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.function_strays import adopt_strays, end_strays
from rollart.runtimes.local.gateway_records import (
    INSTANCE,
    STATE,
    FunctionWish,
    GatewayConfig,
    Place,
    pack_outcome,
)
from rollart.runtimes.local.local_platform import LocalPlatform


def entry(port: ChildPort, config: Any) -> None:
    """Serve "open", "score" and "cancel" until stopped."""
    settings = msgspec.convert(config, GatewayConfig)
    adopt_strays()
    gateway = _Gateway(port, settings)
    port.ready()
    run_async_handlers(
        port,
        {"open": gateway.open, "score": gateway.score, "cancel": gateway.cancel},
        close=gateway.close,
    )


class _Gateway:
    """The handlers, and what they share."""

    def __init__(self, port: ChildPort, config: GatewayConfig) -> None:
        self._port = port
        self._config = config
        self._opened = Callers(environment=os.environ, on_state=self._tell_state)
        self._callers: dict[str, Caller] = {}
        self._calls: dict[int, asyncio.Task[Outcome]] = {}

    async def open(self, packed: Packed, seconds: float | None) -> None:
        """Make ready to call a function, and ask its platforms and stores whether they are there.

        Raises `ConfigError` naming the remedy; with no `seconds` nobody is asked.
        """
        wish = msgspec.convert(packed, FunctionWish)
        if wish.url in self._callers:
            return
        caller: Caller | None = None
        for place in reversed(wish.places):
            caller = self._opened.open(
                place.at,
                version=place.version,
                timeout_s=place.timeout_s,
                fallback=caller,
                local=self._local(place) if is_local(place.at) else None,
            )
            if seconds is not None:
                await self._check(place, caller, seconds)
        assert caller is not None, "a wish has a place"
        self._callers[wish.url] = caller

    async def score(
        self, number: int, url: str, document: Mapping[str, Any], identity: str, seconds: float
    ) -> Packed:
        """The outcome of one call of an opened function, packed."""
        call = asyncio.create_task(
            self._callers[url].score(document, identity=identity, seconds=seconds)
        )
        self._calls[number] = call
        try:
            return pack_outcome(await call)
        finally:
            call.cancel()
            del self._calls[number]

    def cancel(self, number: int) -> None:
        """Nobody waits for this call any more."""
        if number in self._calls:
            self._calls[number].cancel()

    async def close(self) -> None:
        """Let platforms and their processes go."""
        try:
            await self._opened.close()
        finally:
            end_strays()

    async def _check(self, place: Place, caller: Caller, seconds: float) -> None:
        """Whether its store is there, and the function, unless it runs here; within seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        await self._opened.check_store(place.at, seconds)
        if not is_local(place.at):
            await caller.health(deadline - loop.time())

    def _local(self, place: Place) -> Platform:
        function = place.at.function

        def ended(name: str, begin: float, end: float) -> None:
            self._port.event((INSTANCE, place.at.shown, name, begin, end))

        return LocalPlatform(
            function,
            version=place.version,
            env=dict(self._config.children),
            python_path=self._config.python_path,
            log_file=Path(self._config.logs) / f"serverless-{function.replace(':', '-')}.log",
            most=most_calls(place.at),
            idle_s=place.at.idle_s,
            on_instance=ended,
            timeout_s=place.timeout_s,
        )

    def _tell_state(self, state: PlatformState) -> None:
        self._port.event((STATE, state))
