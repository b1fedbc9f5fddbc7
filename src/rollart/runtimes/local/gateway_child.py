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

from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.calling.records import CallSettings, Outcome, PlatformState
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Platform
from rollart.core.scoring.places import LOCAL
from rollart.process.serve import ChildPort
from rollart.process.serve_async import run_async_handlers
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.function_host import FunctionHostConfig
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

CONCURRENCY = 64
"""Calls under way at once, a platform, where its URL does not say otherwise."""

LOCAL_PROCESSES = 8
"""Processes of a local function at most, where nothing says otherwise."""

HOSTS = "ROLLART_REWARD_HOSTS"
"""Environment variable with the hosts that rewards may be sent to, `*.example.com` for all below.

It is the operator's; where it is not set, those that the job's URLs name are allowed, and no other.
"""


def allowed_hosts(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The operator's list, or None where there is none."""
    given = environment.get(HOSTS)
    return None if given is None else tuple(host.strip() for host in given.split(",") if host)


def most_calls(place: Place) -> int:
    """Calls under way at once; here, that is processes, so that nothing queues out of sight."""
    usual = LOCAL_PROCESSES if place.at.platform.startswith(LOCAL) else CONCURRENCY
    return place.at.concurrency or usual


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
        self._stores: dict[str, References] = {}
        self._limiters: dict[str, Limiter] = {}
        self._callers: dict[str, Caller] = {}
        self._calls: dict[int, asyncio.Task[Outcome]] = {}

    async def open(self, packed: Packed, seconds: float | None) -> None:
        """Make ready to call a function, and ask each of its platforms whether it is there.

        Raises `ConfigError` naming the remedy; with no `seconds` nobody is asked.
        """
        wish = msgspec.convert(packed, FunctionWish)
        if wish.url in self._callers:
            return
        caller: Caller | None = None
        for place in reversed(wish.places):
            caller = self._caller(place, fallback=caller)
            if seconds is not None and not place.at.platform.startswith(LOCAL):
                await caller.health(seconds)
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
            async with asyncio.TaskGroup() as group:
                for caller in self._callers.values():
                    group.create_task(caller.close())
            for store in self._stores.values():
                await store.close()
        finally:
            end_strays()

    def _caller(self, place: Place, *, fallback: Caller | None) -> Caller:
        platform = self._platform(place)
        name = platform.limits.name
        if name not in self._limiters:
            self._limiters[name] = Limiter(most_calls(place), rate_per_s=place.at.rate_per_s)
        return Caller(
            platform,
            url=place.at.shown,
            function_version=place.version or None,
            settings=CallSettings(function_s=place.timeout_s, hedge=place.at.hedge),
            limiter=self._limiters[name],
            store=self._store(place.at.store),
            fallback=fallback,
            on_state=self._tell_state,
        )

    def _store(self, url: str | None) -> References | None:
        if url is None:
            return None
        if url not in self._stores:
            self._stores[url] = References(url)
        return self._stores[url]

    def _platform(self, place: Place) -> Platform:
        url = place.at.platform
        if not url.startswith(LOCAL):
            return open_platform(
                url, allow_hosts=allowed_hosts(os.environ), connections=most_calls(place)
            )
        function = place.at.function

        def ended(name: str, begin: float, end: float) -> None:
            self._port.event((INSTANCE, place.at.shown, name, begin, end))

        return LocalPlatform(
            FunctionHostConfig(function=function, version=place.version),
            env=dict(self._config.children),
            python_path=self._config.python_path,
            log_file=Path(self._config.logs) / f"serverless-{function.replace(':', '-')}.log",
            most=most_calls(place),
            idle_s=place.at.idle_s,
            on_instance=ended,
            timeout_s=place.timeout_s,
        )

    def _tell_state(self, state: PlatformState) -> None:
        self._port.event((STATE, state))
