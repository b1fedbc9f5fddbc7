"""From a place as a job names it to its caller: what its URL says of calls holds for whoever asks.

Owns the callers it opens, the limiters of their platforms and the stores that they share.
Invariant: one limiter a platform's quota, one store a URL; the operator's list of hosts holds for
every URL.
"""

import asyncio
from collections.abc import Mapping

from rollart.backends.rewards.addresses import allowed_hosts
from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.calling.records import CallSettings, StateSink
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Platform
from rollart.core.errors import ConfigError
from rollart.core.scoring.places import LOCAL, RewardPlace

CONCURRENCY = 64
"""Calls under way at once, a platform, where its URL does not say otherwise."""

LOCAL_PROCESSES = 8
"""Processes of a local function at most, where nothing says otherwise."""


def is_local(place: RewardPlace) -> bool:
    """Whether the function runs in processes of whoever asks, who opens its platform."""
    return place.platform.startswith(LOCAL)


def most_calls(place: RewardPlace) -> int:
    """Calls under way at once; here, that is processes, so that nothing queues out of sight."""
    return place.concurrency or (LOCAL_PROCESSES if is_local(place) else CONCURRENCY)


class Callers:
    """Callers of functions.

    Args:
        environment: says which hosts may be sent to (`addresses.HOSTS`).
        on_state: see `Caller`.
    """

    def __init__(self, *, environment: Mapping[str, str], on_state: StateSink) -> None:
        self._hosts = allowed_hosts(environment)
        self._on_state = on_state
        self._limiters: dict[str, Limiter] = {}
        self._said: dict[str, tuple[int, float | None]] = {}
        self._stores: dict[str, References] = {}
        self._heads: list[Caller] = []  # each closes its fallback, and that one its own

    def open(
        self,
        place: RewardPlace,
        *,
        version: str = "",
        timeout_s: float | None = None,
        fallback: Caller | None = None,
        local: Platform | None = None,
    ) -> Caller:
        """The caller of a function; nothing is sent yet. Call it in the event loop.

        Args:
            version: that the function must have; empty: whatever is deployed will do.
            timeout_s: seconds that a call may take, as the function declares.
            fallback: one that was opened here, asked while the platform is down.
            local: the platform of a ``local://`` place, which is the caller's from here on.

        Raises:
            ConfigError: see `open_platform` and `References`.
        """
        store = self._store(place.store)
        platform = local or open_platform(
            place.platform, allow_hosts=self._hosts, connections=most_calls(place)
        )
        limiter = self._limiter(place, platform.limits.name)
        caller = Caller(
            platform,
            url=place.shown,
            function_version=version or None,
            settings=CallSettings(function_s=timeout_s, hedge=place.hedge),
            limiter=limiter,
            store=store,
            fallback=fallback,
            on_state=self._on_state,
        )
        if fallback is not None:
            self._heads.remove(fallback)
        self._heads.append(caller)
        return caller

    async def check_store(self, place: RewardPlace, seconds: float) -> None:
        """Whether large documents can be stored; to ask with `Caller.health`, at the start only.

        Raises `ConfigError` with the remedy.
        """
        store = self._store(place.store)
        if store is not None:
            await store.check(seconds)

    async def close(self) -> None:
        """End all calls under way, then let platforms and stored documents go."""
        async with asyncio.TaskGroup() as group:
            for caller in self._heads:
                group.create_task(caller.close())
        for store in self._stores.values():
            await store.close()

    def _limiter(self, place: RewardPlace, name: str) -> Limiter:
        """The platform's one limiter, of which every URL that says anything says the same."""
        said = (most_calls(place), place.rate_per_s)
        known = self._said.setdefault(name, said)
        if known != said and (place.concurrency, place.rate_per_s) != (None, None):
            rate = "no ?rate=" if known[1] is None else f"?rate={known[1]:g}"
            raise ConfigError(
                f"{place.shown}: {name} has one limit for all of its functions, and another URL "
                f"says ?concurrency={known[0]} and {rate}; say the same in both, or in one of them"
            )
        if name not in self._limiters:
            self._limiters[name] = Limiter(known[0], rate_per_s=known[1])
        return self._limiters[name]

    def _store(self, url: str | None) -> References | None:
        if url is None:
            return None
        if url not in self._stores:
            self._stores[url] = References(url)
        return self._stores[url]
