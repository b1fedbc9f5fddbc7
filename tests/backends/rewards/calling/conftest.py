"""A caller over a scripted platform."""

from collections.abc import Callable
from typing import Any

import pytest

from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.calling.records import CallSettings, Outcome, PlatformState
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault, PlatformLimits
from rollart.testing.platform import ANSWERS, VERSION, Act, Play, ScriptedPlatform, told_document


def make_fault(kind: str, reason: str, retry_after_s: float | None) -> PlatformFault:
    return PlatformFault(Fault(kind), reason, retry_after_s=retry_after_s)


class Rig:
    """A caller, its platform, and the states it told. Made inside a running loop."""

    def __init__(
        self,
        play: Play = lambda n, now, request: ANSWERS,
        *,
        health: Callable[[float], Act] = lambda now: ANSWERS,
        kind: type[Caller] = Caller,
        url: str = "http://here/score",
        deployed: str = VERSION,
        function_version: str | None = VERSION,
        body_bytes: int = 1 << 20,
        concurrency: int = 64,
        rate_per_s: float | None = None,
        store: References | None = None,
        fallback: Caller | None = None,
        around: Callable[[Platform], Platform] = lambda platform: platform,
        **settings: Any,
    ) -> None:
        limits = PlatformLimits(name="scripted", body_bytes=body_bytes)
        self.states: list[PlatformState] = []
        self.limiter = Limiter(concurrency, rate_per_s=rate_per_s)
        self.platform = ScriptedPlatform(limits, make_fault, play, health=health, version=deployed)
        self.caller = kind(
            around(self.platform),
            url=url,
            function_version=function_version,
            settings=CallSettings(**settings),
            limiter=self.limiter,
            store=store,
            fallback=fallback,
            on_state=self.states.append,
        )

    async def score(self, identity: str = "t", seconds: float = 30.0, **told: Any) -> Outcome:
        document = told_document(identity, **told)
        return await self.caller.score(document, identity=identity, seconds=seconds)

    @property
    def requests(self) -> int:
        """Score requests that arrived."""
        return len(self.platform.seen.requests)


@pytest.fixture
def rig() -> type[Rig]:
    return Rig
