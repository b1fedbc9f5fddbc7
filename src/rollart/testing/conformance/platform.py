"""Conformance of a `Platform`: bytes there and back, faults by kind, deadlines, and a clean end.

The suite needs a function that does what its task says behind the platform: deploy
`rollart.testing.platform.score_as_told`, or one that reads the same payload. A fault is told by its
attribute `fault`, so the suite knows no backend.
"""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.core.scoring.wire import Answer, Request, decode_answer, encode_request
from rollart.testing.conformance.contract import Contract, Latency, cancelled
from rollart.testing.conformance.environments import BLOCKED_S
from rollart.testing.platform import told_document

if TYPE_CHECKING:
    from rollart.backends.rewards.platform import Platform

MakePlatform = Callable[[], Awaitable["Platform"]]
Provoke = Callable[[], AbstractAsyncContextManager[object]]
"""While it is open, calls end with the fault."""

SETTLES_S = 0.2  # after close, until threads that were told to end and sockets are gone
_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTrial:
    """What the suite may assume about the platform it is given.

    Attributes:
        function, version: as the deployed function says of itself; else not checked.
        faults: by kind, how to provoke one; others are not checked. "timeout" always is.
        crashes: whether a function that ends its process ends its call with `Fault.CRASHED`.
        together: of the concurrent calls, whether they really run at once.
        concurrent: calls at once; wait_s: that each of them sleeps.
        timeout_s: of a call whose function sleeps for `hang_s`.
        largest_bytes: a platform with a higher limit is tried with a request of this size.
        patience_s: for one answer, a start of the function included.
        threads: that may be left after `close`, beside those of the loop's own executor.
    """

    function: str | None = None
    version: str | None = None
    faults: Mapping[str, Provoke] = field(default_factory=dict[str, Provoke])
    crashes: bool = False
    together: bool = True
    concurrent: int = 8
    wait_s: float = 0.5
    timeout_s: float = 1.0
    hang_s: float = 20.0
    largest_bytes: int = 8 << 20
    patience_s: float = 30.0
    threads: int = 0


async def check_platform(make: MakePlatform, trial: PlatformTrial) -> None:
    """Every clause of the `Platform` port; raises `ConformanceError` at the first broken one."""
    contract = Contract("Platform", trial.patience_s)
    await _life(make, contract, trial)  # what is made once a process is there from now on
    before = _held()
    await _life(make, contract, trial)
    await _nothing_left(contract, trial, before)


async def _life(make: MakePlatform, contract: Contract, trial: PlatformTrial) -> None:
    platform = await contract.soon(make(), "a platform can be made")
    suite = _Suite(contract, trial, platform)
    try:
        await suite.names_its_function()
        async with Latency() as latency:
            await suite.answers_by_key()
            await suite.answers_many()
            await suite.times_out()
            await suite.answers_errors()
            await suite.lets_go()
        stood = latency.longest_s
        contract.require(stood < BLOCKED_S, "the event loop goes on", f"it stood for {stood:.2f} s")
        await suite.takes_the_largest()
        await suite.tells_faults()
        await suite.closes()
    finally:
        await contract.soon(platform.close(), "close returns")


@dataclass(frozen=True, slots=True)
class _Suite:
    contract: Contract
    trial: PlatformTrial
    platform: "Platform"

    async def ask(self, key: str, seconds: float | None = None, **told: Any) -> Answer:
        """The answer to one request."""
        seconds = self.trial.patience_s if seconds is None else seconds
        request = Request(key=key, seconds=seconds, trajectory=told_document(key, **told))
        return await self.send(request, seconds)

    async def send(self, request: Request, seconds: float) -> Answer:
        """The same, of any request."""
        body = encode_request(request)
        return decode_answer(await self.platform.call(body, key=request.key, seconds=seconds))

    async def scores(self, key: str, value: float, clause: str) -> None:
        """A call is answered rightly."""
        answer = await self.contract.soon(self.ask(key, value=value), clause)
        self.is_right(answer, key, value, clause)

    def is_right(self, answer: Answer, key: str, value: float, clause: str) -> None:
        """The answer is that call's."""
        given = None if answer.verdict is None else answer.verdict.score
        right = answer.key == key and given == value
        self.contract.require(right, clause, f"asked {key} for {value}, got {answer}")

    async def faults(self, what: Awaitable[object], kind: str, clause: str) -> None:
        """`what` ends with the fault of that kind."""
        error = await self.contract.raises(what, (Exception,), clause)
        found = getattr(error, "fault", None)
        self.contract.require(found == kind, clause, f"it raised {error!r} of kind {found!s}")

    async def names_its_function(self) -> None:
        clause = "a health request is answered by the function's name and version"
        answer = await self.contract.soon(
            self.send(Request(key="health"), self.trial.patience_s), clause
        )
        right = answer.key == "health" and bool(answer.function) and not answer.error
        right = right and answer.verdict is None
        right = right and self.trial.function in (None, answer.function)
        right = right and self.trial.version in (None, answer.version)
        self.contract.require(right, clause, f"{answer}")

    async def answers_by_key(self) -> None:
        clause = "an answer bears the key of its request, and its verdict"
        for key, value in (("one", 0.25), ("two#é|/%", -3.5)):
            await self.scores(key, value, clause)

    async def answers_many(self) -> None:
        trial, loop = self.trial, asyncio.get_running_loop()
        clause = f"{trial.concurrent} calls at once are each answered with their own"
        seconds = 0.0
        for _ in range(2):  # of the first, some may wait until the platform has scaled
            begin = loop.time()
            calls = [
                asyncio.ensure_future(self.ask(f"call-{i}", value=float(i), sleep=trial.wait_s))
                for i in range(trial.concurrent)
            ]
            try:
                for i, call in enumerate(calls):
                    answer = await self.contract.soon(call, clause)
                    self.is_right(answer, f"call-{i}", float(i), clause)
            finally:
                for call in calls:
                    await cancelled(call)
            seconds = loop.time() - begin
        at_most = trial.concurrent * trial.wait_s / 2
        slow = f"{trial.concurrent} calls of {trial.wait_s:g} s took {seconds:.2f} s"
        self.contract.require(not trial.together or seconds < at_most, "calls run at once", slow)

    async def times_out(self) -> None:
        trial, loop = self.trial, asyncio.get_running_loop()
        clause = "a call that outlasts its seconds ends with the fault timeout, soon after them"
        begin = loop.time()
        await self.faults(self.ask("hangs", trial.timeout_s, sleep=trial.hang_s), "timeout", clause)
        took, bound = loop.time() - begin, trial.timeout_s * 1.5 + 1.0
        self.contract.require(took <= bound, clause, f"it took {took:.2f} s")
        await self.scores("next", 0.5, "a call that timed out costs the next one nothing")

    async def answers_errors(self) -> None:
        clause = "an error of the function is an answer that says it, and no fault"
        told: Mapping[str, Any] = {"raise": "the judge is out"}
        answer = await self.contract.soon(self.ask("raises", **told), clause)
        right = answer.verdict is None and "the judge is out" in answer.error
        right = right and answer.key == "raises"
        self.contract.require(right, clause, f"{answer}")
        if self.trial.crashes:
            clause = "a function that ends its process ends its call with the fault crashed"
            await self.faults(self.ask("exits", exit=3), "crashed", clause)
            await self.scores("next", 0.5, "a crash costs the next call nothing")

    async def lets_go(self) -> None:
        call = asyncio.ensure_future(self.ask("cancelled", sleep=self.trial.hang_s))
        await self.contract.waits(call, 0.2, "a call lasts as long as its function")
        await self.contract.soon(cancelled(call), "a call can be cancelled")
        await self.scores("next", 0.5, "a cancelled call costs the next one nothing")

    async def takes_the_largest(self) -> None:
        size = min(self.platform.limits.body_bytes, self.trial.largest_bytes)
        clause = f"a request of {size} bytes, which is within the limit, is answered"

        def request(filling: str) -> Request:
            document = told_document("large", value=0.125, filling=filling)
            return Request(key="large", seconds=self.trial.patience_s, trajectory=document)

        filled = request("x" * (size - len(encode_request(request("")))))
        answer = await self.contract.soon(self.send(filled, self.trial.patience_s), clause)
        self.is_right(answer, "large", 0.125, clause)

    async def tells_faults(self) -> None:
        for kind, provoke in self.trial.faults.items():
            async with provoke():
                clause = f"the fault {kind} is told by its kind"
                await self.faults(self.ask(f"fault-{kind}"), kind, clause)
            await self.scores("next", 0.5, f"after the fault {kind} calls are answered again")

    async def closes(self) -> None:
        clause = "close ends calls under way with the fault unavailable"
        call = asyncio.ensure_future(self.ask("closed", sleep=self.trial.hang_s))
        await self.contract.waits(call, 0.2, "a call lasts as long as its function")
        try:
            for _ in range(2):
                await self.contract.soon(self.platform.close(), "close returns, also twice")
            await self.faults(call, "unavailable", clause)
        finally:
            await cancelled(call)
        await self.faults(self.ask("after"), "unavailable", "after close, calls are unavailable")


@dataclass(frozen=True, slots=True)
class _Held:
    tasks: frozenset[str]
    threads: int
    files: int


def _held() -> _Held:
    """What this process holds: tasks, threads but those of the loop's executor, open files."""
    gc.collect()
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    files = len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.exists() else 0
    tasks = frozenset(task.get_name() for task in asyncio.all_tasks())
    return _Held(tasks, len(threads), files)


async def _nothing_left(contract: Contract, trial: PlatformTrial, before: _Held) -> None:
    clause = "after close nothing is left"
    await asyncio.sleep(SETTLES_S)
    held = _held()
    left = held.tasks - before.tasks
    contract.require(not left, clause, f"tasks: {', '.join(sorted(left))}")
    grown = held.threads - before.threads
    contract.require(grown <= trial.threads, clause, f"{grown} threads: {threading.enumerate()}")
    grown = held.files - before.files
    contract.require(grown <= 0, clause, f"{grown} more open files")
