"""An engine in a child process: the control side.

Owns which requests are in flight and where their tokens go. Invariants: after `abort` was called no
delta of those requests reaches its sink; when the child is gone, every waiting call raises
`EngineLost` and nothing is delivered any more. Tokens of a prompt that this engine was sent before
are not sent again: a session's prompt blocks are recognised by identity, and what is not the same
object is sent anew. Who waits on whom: callers wait for the child's acknowledgement, under a
deadline; `add` and `release` wait for nobody.
"""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rollart.core.errors import EngineLost, WeightSyncFailed
from rollart.core.identity import PolicyVersion
from rollart.core.ports import DeltaSink
from rollart.core.tokens import NO_TOKENS, Prompt, TokenBlock, ids_array
from rollart.core.types import GenerateRequest, StopReason, TokenDelta
from rollart.process.child import Child
from rollart.process.errors import CallTimeout, ChildDied, RemoteError
from rollart.runtimes.local.busy import Interval
from rollart.runtimes.local.codec import Packed, unpack_cost
from rollart.runtimes.local.engine_child import DELTAS, REFUSED
from rollart.runtimes.local.remote import as_core_error, in_a_line

SESSIONS_KEPT = 16384
"""Sessions whose last prompt the child keeps; beyond, that of the one used longest ago goes."""

_CLOSE_GRACE_S = 2.0

OnBusy = Callable[[Interval], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Seconds until an unanswered command counts as the engine's death."""

    command_s: float
    update_s: float


class LocalEngine:
    """The `Engine` port over one child that runs `engine_child.entry`."""

    def __init__(
        self, child: Child, *, worker: str, hardware: str, limits: EngineLimits, on_busy: OnBusy
    ) -> None:
        self._child = child
        self._id = worker
        self._hardware = hardware
        self._limits = limits
        self._on_busy = on_busy
        self._keys = itertools.count(1)
        self._requests: dict[int, tuple[str, DeltaSink]] = {}
        self._key_of: dict[str, int] = {}
        self._sessions: OrderedDict[str, Prompt] = OrderedDict()
        self._sent_bytes = 0
        child.on_event = self._on_event

    @property
    def id(self) -> str:
        return self._id

    @property
    def hardware(self) -> str:
        return self._hardware

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    @property
    def sent_bytes(self) -> int:
        """Bytes of prompt tokens sent so far."""
        return self._sent_bytes

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        """Queue a request. When the engine is gone this does nothing: `wait_dead` tells."""
        key = next(self._keys)
        self._requests[key] = (request.id, sink)
        self._key_of[request.id] = key
        blocks, kept = self._known(request.session, request.prompt)
        rest = _ids_bytes(request.prompt[blocks:])
        self._sent_bytes += len(rest)
        sampling = (request.max_tokens, request.temperature, request.seed, request.offset)
        self._cast("add", key, request.session, (kept, rest), sampling)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; returns when the child has let go. Raises `EngineLost`."""
        keys = [key for name in request_ids if (key := self._key_of.pop(name, None)) is not None]
        for key in keys:
            self._requests.pop(key, None)
        if keys:
            await self._call("abort", keys, seconds=self._limits.command_s)

    def release(self, session: str) -> None:
        """The session will not return."""
        self._sessions.pop(session, None)
        self._cast("release", session)

    async def pause(self) -> None:
        """Returns when no step runs. Raises `EngineLost`."""
        await self._call("pause", seconds=self._limits.command_s)

    async def resume(self) -> None:
        """Steps run again. Raises `EngineLost`."""
        await self._call("resume", seconds=self._limits.command_s)

    async def update(self, version: PolicyVersion) -> None:
        """Load a version from the store.

        Raises:
            EngineLost: the child is gone or did not answer.
            WeightsMissing, WeightsCorrupt, WeightSyncFailed: it holds its old version, whole.
        """
        await self._call("update", version.policy, version.number, seconds=self._limits.update_s)

    async def rebuild_kv(self) -> int:
        """Rebuild the KV of requests in flight; tokens computed. Raises `EngineLost`."""
        return await self._call("rebuild_kv", seconds=self._limits.command_s)

    async def wait_dead(self) -> str:
        """Why the child ended, once it has."""
        return in_a_line(await asyncio.shield(self._child.died))

    async def close(self) -> None:
        """End the child, in order if it can, and wait until it is gone."""
        self._forget_all()
        await self._child.close(_CLOSE_GRACE_S)

    def _known(self, session: str, prompt: Prompt) -> tuple[int, int]:
        """How many leading blocks, and tokens in them, the child has of this session."""
        before = self._sessions.pop(session, ())
        self._sessions[session] = prompt
        if len(self._sessions) > SESSIONS_KEPT:
            oldest, _ = self._sessions.popitem(last=False)
            self._cast("forget", oldest)
        blocks = tokens = 0
        for old, new in zip(before, prompt, strict=False):
            if old is not new:
                break
            blocks += 1
            tokens += len(new)
        return blocks, tokens

    def _cast(self, method: str, *args: Packed) -> None:
        if self._child.alive:
            self._child.cast(method, *args)

    async def _call(self, method: str, *args: Packed, seconds: float) -> Packed:
        try:
            return await self._child.call(method, *args, timeout=seconds)
        except RemoteError as error:
            raise as_core_error(error, self._id, WeightSyncFailed) from error
        except ChildDied as error:
            self._forget_all()
            raise EngineLost(self._id, in_a_line(error.report)) from error
        except CallTimeout as error:
            self._forget_all()
            self._child.kill()
            raise EngineLost(
                self._id, f"no answer to {method} within {seconds:g} s; it was killed"
            ) from error

    def _forget_all(self) -> None:
        self._child.on_event = None
        self._requests.clear()
        self._key_of.clear()
        self._sessions.clear()

    def _on_event(self, event: Packed) -> None:
        match event[0]:
            case kind if kind == DELTAS:
                self._deliver(event)
            case kind if kind == REFUSED:
                _, key, reason, version = event
                self._refuse(key, reason, version)
            case _:
                for work, begin, end in event[1]:
                    self._on_busy((work, begin, end))

    def _deliver(self, frame: Packed) -> None:
        _, version, keys, counts, ids, logprobs, finished = frame
        all_ids, all_logprobs = np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32)
        ends = {row: (StopReason(stop), cost) for row, stop, cost in finished}
        at = 0
        for row, (key, count) in enumerate(zip(keys, counts, strict=True)):
            begin, at = at, at + count
            entry = self._requests.get(key)
            if entry is None:
                continue  # aborted while this frame was on its way
            name, sink = entry
            stop, cost = ends.get(row, (None, None))
            if stop is not None:
                self._forget_request(key, name)
            sink(
                TokenDelta(
                    request_id=name,
                    ids=all_ids[begin:at],
                    logprobs=all_logprobs[begin:at],
                    version=version,
                    finish=stop,
                    cost=None if cost is None else unpack_cost(cost),
                )
            )

    def _refuse(self, key: int, reason: str, version: int) -> None:
        entry = self._requests.get(key)
        if entry is None:
            return
        name, sink = entry
        self._forget_request(key, name)
        sink(
            TokenDelta(
                request_id=name,
                ids=NO_TOKENS,
                logprobs=NO_TOKENS,
                version=version,
                refused=reason,
            )
        )

    def _forget_request(self, key: int, name: str) -> None:
        del self._requests[key]
        if self._key_of.get(name) == key:
            del self._key_of[name]


def _ids_bytes(blocks: Sequence[TokenBlock]) -> bytes:
    return b"".join(ids_array(block).tobytes() for block in blocks)
