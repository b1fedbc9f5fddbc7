"""The deltas of one request to an engine, each checked as it comes."""

import asyncio

import numpy as np

from rollart.core.tokens import Float32Array, Int32Array, ids_array, logprobs_array
from rollart.core.types import GenerateRequest, TokenDelta
from rollart.testing.conformance.contract import Contract


class Stream:
    """What one request yields. Its sink checks each delta as it comes."""

    def __init__(self, contract: Contract, request: GenerateRequest) -> None:
        self.request = request
        self.deltas: list[TokenDelta] = []
        self._contract = contract
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._problem: tuple[str, str] | None = None

    def sink(self, delta: TokenDelta) -> None:
        """Takes a delta; what is wrong with it is raised to whoever waits."""
        if self._problem is None:
            self._problem = self._wrong(delta)
        self.deltas.append(delta)
        self._news.set()

    def _wrong(self, delta: TokenDelta) -> tuple[str, str] | None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            return "deltas come on the event loop that asked", "one came from another thread"
        if delta.request_id != self.request.id:
            return "a delta names its request", f"{delta.request_id!r} for {self.request.id!r}"
        if self.finished:
            return "nothing follows the last delta", f"{delta}"
        if len(delta.ids) != len(delta.logprobs):
            lengths = f"{len(delta.ids)} ids, {len(delta.logprobs)} log-probs"
            return "each sampled id has one log-prob", lengths
        if delta.finish is not None and delta.cost is None:
            return "the last delta carries the request's cost", f"{delta}"
        return None

    @property
    def finished(self) -> bool:
        return any(d.finish is not None or d.refused is not None for d in self.deltas)

    @property
    def ids(self) -> Int32Array:
        return np.concatenate([ids_array(d.ids) for d in self.deltas] or [np.zeros(0, np.int32)])

    @property
    def logprobs(self) -> Float32Array:
        parts = [logprobs_array(d.logprobs) for d in self.deltas]
        return np.concatenate(parts or [np.zeros(0, np.float32)])

    @property
    def versions(self) -> list[int]:
        return [d.version for d in self.deltas for _ in range(len(d.ids))]

    def check(self) -> None:
        if self._problem is not None:
            self._contract.require(False, *self._problem)

    async def until(self, tokens: int) -> bool:
        """Waits for `tokens` tokens or the end; whether the request still runs."""
        await self._contract.soon(self._until(tokens), "a request that was added yields tokens")
        return not self.finished

    async def _until(self, tokens: int) -> None:
        while len(self.ids) < tokens and not self.finished:
            self._news.clear()
            await self._news.wait()
            self.check()
        self.check()

    async def end(self) -> None:
        await self.until(self.request.max_tokens + 1)
