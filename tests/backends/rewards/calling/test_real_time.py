"""The same caller on a real event loop, over a function that really runs."""

import asyncio
from pathlib import Path
from typing import Any

from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import FailureKind
from rollart.core.scoring.handle import Handler
from rollart.testing.platform import FUNCTION, VERSION, score_as_told


class InThreads:
    """A platform whose instances are threads; every 20th request is met by a 503."""

    def __init__(self, inner: Platform, store: str = "") -> None:
        self._inner = inner
        self._handler = Handler(score_as_told, path=FUNCTION, version=VERSION, store=store)
        self._requests = 0

    @property
    def limits(self) -> Any:
        return self._inner.limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        self._requests += 1
        if self._requests % 20 == 0:
            raise PlatformFault(Fault.UNAVAILABLE, "503")
        return await asyncio.to_thread(self._handler.handle, body)

    async def close(self) -> None:
        await self._inner.close()


def test_many_calls_at_once_are_each_scored_as_the_function_does(rig: Any) -> None:
    async def main() -> None:
        made = rig(around=InThreads, concurrency=8, hedge=True)
        calls = (made.score(f"t{i}", value=float(i), sleep=0.001) for i in range(200))
        outcomes = await asyncio.gather(*calls)
        assert [outcome.verdict.score for outcome in outcomes] == [float(i) for i in range(200)]
        assert any(outcome.tries > 1 for outcome in outcomes)
        failed = await made.score("raises", **{"raise": "the judge is out"})
        assert failed.verdict.failure is FailureKind.REWARD_ERROR
        assert "the judge is out" in failed.verdict.reason
        await made.caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_document_goes_through_a_folder_and_leaves_it_empty(rig: Any, tmp_path: Path) -> None:
    async def main() -> None:
        url = tmp_path.as_uri()
        store = References(url)
        made = rig(around=lambda inner: InThreads(inner, url), store=store, body_bytes=6 << 20)
        outcome = await made.score(value=0.5, filling="x" * (7 << 20))
        assert outcome.verdict.score == 0.5
        assert outcome.by_reference
        await made.caller.close()
        await store.close()

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
