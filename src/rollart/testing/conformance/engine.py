"""Conformance of an `Engine`: tokens, aborts, pauses, weight updates, KV, death.

Each check makes an engine of its own. A request that must still run when something happens to it
is tried with several seeds, because a model may end it early.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from rollart.core.identity import PolicyVersion
from rollart.core.ports import Engine
from rollart.core.tokens import Int32Array
from rollart.core.types import GenerateRequest, StopReason
from rollart.testing.conformance.contract import Contract, cancelled
from rollart.testing.conformance.stream import Stream

MakeEngine = Callable[[], Awaitable[Engine]]
TRIES = 20
"""Seeds to try for a request that is still running when it is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTrial:
    """What the suite may assume about the engines it is given.

    Attributes:
        versions: two versions of different weights that an engine can load.
        missing: a version that it cannot load; without it that clause is not checked.
        impossible: a request that it must refuse; without it that clause is not checked.
        kill: ends an engine as a crash would; without it death is not checked.
        prompt: ids of the requests' prompt.
        tokens: tokens asked of a request that is to be interfered with.
        keeps_kv: the engine was told to keep KV of older versions, so that is not checked.
        tolerance: between log-probs of the same tokens under the same weights.
        patience_s, quiet_s: seconds to wait for an answer, and to watch that nothing comes.
    """

    versions: tuple[PolicyVersion, PolicyVersion] = (
        PolicyVersion("agent", 0),
        PolicyVersion("agent", 1),
    )
    missing: PolicyVersion | None = None
    impossible: GenerateRequest | None = None
    kill: Callable[[Engine], None] | None = None
    prompt: tuple[int, ...] = (1, 2, 3, 4, 5)
    tokens: int = 40
    keeps_kv: bool = False
    tolerance: float = 1e-3
    patience_s: float = 30.0
    quiet_s: float = 0.2


class _Suite:
    def __init__(self, make: MakeEngine, trial: EngineTrial) -> None:
        self.make = make
        self.trial = trial
        self.contract = Contract("Engine", trial.patience_s)
        self._asked = 0

    async def started(self) -> Engine:
        """An engine that runs under the first version."""
        engine = await self.contract.soon(self.make(), "an engine can be made")
        await self.take(engine, self.trial.versions[0])
        return engine

    async def take(self, engine: Engine, version: PolicyVersion) -> None:
        await self.contract.soon(engine.pause(), "pause returns")
        await self.contract.soon(engine.update(version), "update returns")
        await self.contract.soon(engine.resume(), "resume returns")

    def request(
        self,
        *,
        tokens: int | None = None,
        seed: int = 0,
        session: str = "",
        more: Int32Array | None = None,
        offset: int = 0,
    ) -> GenerateRequest:
        self._asked += 1
        first = np.asarray(self.trial.prompt, np.int32)
        return GenerateRequest(
            id=f"request-{self._asked}",
            session=session or f"session-{self._asked}",
            prompt=(first,) if more is None else (first, more),
            max_tokens=self.trial.tokens if tokens is None else tokens,
            temperature=1.0,
            seed=seed,
            offset=offset,
        )

    def add(self, engine: Engine, request: GenerateRequest) -> Stream:
        stream = Stream(self.contract, request)
        try:
            engine.add(request, stream.sink)
        except Exception as error:
            self.contract.require(False, "add never raises", repr(error))
        return stream

    async def whole(self, engine: Engine, request: GenerateRequest) -> Stream:
        stream = self.add(engine, request)
        await stream.end()
        return stream

    async def midway(self, engine: Engine, *, first_seed: int = 0) -> Stream:
        """A request that has two tokens and is not over."""
        for seed in range(first_seed, first_seed + TRIES):
            stream = self.add(engine, self.request(seed=seed))
            if await stream.until(2):
                return stream
        raise self.never_midway()

    def never_midway(self) -> Exception:
        return RuntimeError(
            f"{TRIES} requests of {self.trial.tokens} tokens all ended before they could be "
            "interfered with; raise EngineTrial.tokens, or use a model that stops less"
        )

    def same(self, clause: str, one: Stream, other: Stream, skip: int = 0) -> None:
        """`one` from token `skip` on must be `other`, as far as both go."""
        mine, count = one.ids[skip:], min(len(one.ids) - skip, len(other.ids))
        self.contract.require(
            count > 0 and np.array_equal(mine[:count], other.ids[:count]),
            clause,
            f"ids {mine[:count].tolist()} against {other.ids[:count].tolist()}",
        )
        gap = np.abs(one.logprobs[skip:][:count] - other.logprobs[:count]).max()
        self.contract.require(
            bool(gap <= self.trial.tolerance), clause, f"log-probs differ by up to {gap:.3g}"
        )


async def check_engine(make: MakeEngine, trial: EngineTrial | None = None) -> None:
    """Every clause of the `Engine` port; raises `ConformanceError` at the first broken one.

    Args:
        make: makes an engine that has no version yet; called once a check. The suite closes it.
        trial: what may be assumed about it.
    """
    suite = _Suite(make, trial or EngineTrial())
    for check in (
        answers_requests,
        repeats_and_continues,
        lets_go_when_aborted,
        stands_still_when_paused,
        changes_weights_in_mid_request,
        forgets_old_kv,
        keeps_its_version_when_an_update_fails,
        ends_when_closed,
        is_known_to_be_dead,
    ):
        await check(suite)


async def answers_requests(suite: _Suite) -> None:
    """Ids, log-probs, versions, cost and end of plain requests, several at once."""
    engine, need = await suite.started(), suite.contract.require
    need(bool(engine.id) and bool(engine.hardware), "it says its id and hardware", repr(engine.id))
    streams = [suite.add(engine, suite.request(tokens=6, seed=seed)) for seed in range(6)]
    for stream in streams:
        await stream.end()
        last, count = stream.deltas[-1], len(stream.ids)
        need(0 < count <= 6, "a request yields at most max_tokens tokens", f"{count} of 6")
        full = last.finish is StopReason.LENGTH
        need(
            count == 6 if full else last.finish is StopReason.STOP,
            "it says why it ended",
            f"{last}",
        )
        good = bool(np.all(np.isfinite(stream.logprobs)) and np.all(stream.logprobs <= 1e-6))
        need(good, "log-probs are finite and not positive", f"{stream.logprobs}")
        wrong = set(stream.versions) - {suite.trial.versions[0].number}
        need(not wrong, "tokens carry the version that sampled them", f"{wrong}")
        cost = last.cost
        counted = cost is not None and cost.decode_tokens == count
        need(counted, "the cost counts the decoded tokens", f"{cost} for {count} tokens")
    engine.release("never seen")
    engine.release(streams[0].request.session)
    session = streams[0].request.session
    again = await suite.whole(engine, suite.request(tokens=3, session=session))
    need(len(again.ids) > 0, "a released session may come back", "no token came")
    if suite.trial.impossible is not None:
        refused = suite.add(engine, suite.trial.impossible)
        await refused.end()
        words = refused.deltas[-1].refused
        need(bool(words), "an impossible request is refused in words", f"{refused.deltas[-1]}")
    await engine.close()


async def repeats_and_continues(suite: _Suite) -> None:
    """The seed decides, and a continued request goes on in its own stream."""
    engine = await suite.started()
    one = await suite.whole(engine, suite.request(tokens=8, seed=7))
    two = await suite.whole(engine, suite.request(tokens=8, seed=7))
    suite.same("the same seed on the same prompt gives the same tokens", one, two)
    others = [await suite.whole(engine, suite.request(tokens=8, seed=s)) for s in range(8, 12)]
    suite.contract.require(
        any(not np.array_equal(one.ids, other.ids) for other in others),
        "the seed decides what is sampled",
        f"five seeds gave {one.ids.tolist()}",
    )
    for seed in range(TRIES):
        whole = await suite.whole(engine, suite.request(tokens=8, seed=seed))
        if len(whole.ids) < 4:
            continue
        rest = await suite.whole(
            engine, suite.request(tokens=5, seed=seed, more=whole.ids[:3], offset=3)
        )
        suite.same("a continued request goes on where it was", whole, rest, skip=3)
        break
    await engine.close()


async def lets_go_when_aborted(suite: _Suite) -> None:
    """No delta follows an abort; the others go on; unknown ids are fine; also while paused."""
    engine = await suite.started()
    clause = "after abort has returned, no delta of that request comes"
    returns = "abort returns, also for unknown, finished and twice aborted requests"
    for paused in (False, True):
        doomed, other = await suite.midway(engine), await suite.midway(engine, first_seed=100)
        if paused:
            await suite.contract.soon(engine.pause(), "pause returns")
        name = doomed.request.id
        await suite.contract.soon(engine.abort((name, "never seen")), returns)
        seen = len(doomed.deltas)
        if paused:
            await suite.contract.soon(engine.resume(), "resume returns")
        await suite.contract.soon(engine.abort((name,)), returns)
        await other.end()
        await asyncio.sleep(suite.trial.quiet_s)
        more = len(doomed.deltas) - seen
        suite.contract.require(more == 0, clause, f"{more} came, paused: {paused}")
        await suite.contract.soon(engine.abort((other.request.id,)), returns)
    await engine.close()


async def stands_still_when_paused(suite: _Suite) -> None:
    """After pause no token comes; requests stay, and new ones wait; resume lets all run."""
    engine = await suite.started()
    stream = await suite.midway(engine)
    for _ in range(2):
        await suite.contract.soon(engine.pause(), "pause returns, also twice")
    seen = len(stream.deltas)
    late = suite.add(engine, suite.request(tokens=4))
    await asyncio.sleep(suite.trial.quiet_s)
    came = len(stream.deltas) - seen + len(late.deltas)
    suite.contract.require(came == 0, "no step runs while paused", f"{came} deltas came")
    for _ in range(2):
        await suite.contract.soon(engine.resume(), "resume returns, also twice")
    await stream.end()
    await late.end()
    suite.contract.require(
        len(late.ids) > 0, "a request added while paused is served after resume", "no token"
    )
    await engine.close()


async def changes_weights_in_mid_request(suite: _Suite) -> None:
    """A running request survives an update; each token carries the version that sampled it."""
    engine = await suite.started()
    old, new = (version.number for version in suite.trial.versions)
    clause = "each token carries the version that sampled it"
    for seed in range(0, 10 * TRIES, TRIES):
        stream = await suite.midway(engine, first_seed=seed)
        await suite.contract.soon(engine.pause(), "pause returns")
        before = len(stream.ids)
        await suite.contract.soon(engine.update(suite.trial.versions[1]), "update returns")
        await suite.contract.soon(engine.resume(), "resume returns")
        rebuilt = await suite.contract.soon(engine.rebuild_kv(), "rebuild_kv returns")
        suite.contract.require(rebuilt >= 0, "rebuild_kv counts tokens", f"{rebuilt}")
        await stream.end()
        wanted = [old] * before + [new] * (len(stream.ids) - before)
        suite.contract.require(stream.versions == wanted, clause, f"{stream.versions}")
        if len(stream.ids) > before:
            await engine.close()
            return
        await suite.take(engine, suite.trial.versions[0])
    raise suite.never_midway()


async def forgets_old_kv(suite: _Suite) -> None:
    """What follows an update is what the new weights say about the whole sequence.

    Both for a request in flight and for a prefix that lay idle between two turns.
    """
    if suite.trial.keeps_kv:
        return
    engine = await suite.started()
    clause = "KV written under an older version is never attended to"
    flying = await suite.midway(engine)
    idle = suite.request(tokens=4, session="idle")
    turn = await suite.whole(engine, idle)
    await suite.contract.soon(engine.pause(), "pause returns")
    before = len(flying.ids)
    await suite.contract.soon(engine.update(suite.trial.versions[1]), "update returns")
    await suite.contract.soon(engine.resume(), "resume returns")
    await suite.contract.soon(engine.rebuild_kv(), "rebuild_kv returns")
    await flying.end()
    if len(flying.ids) > before:
        so_far = flying.ids[:before]
        fresh = suite.request(tokens=8, seed=flying.request.seed, more=so_far, offset=before)
        suite.same(f"{clause} (in flight)", flying, await suite.whole(engine, fresh), skip=before)
    held = suite.request(tokens=4, seed=3, session="idle", more=turn.ids)
    fresh = suite.request(tokens=4, seed=3, session="fresh", more=turn.ids)
    one, other = await suite.whole(engine, held), await suite.whole(engine, fresh)
    suite.same(f"{clause} (idle prefix)", one, other)
    await engine.close()


async def keeps_its_version_when_an_update_fails(suite: _Suite) -> None:
    """An update that fails raises, and the old version goes on, whole."""
    missing = suite.trial.missing
    if missing is None:
        return
    engine = await suite.started()
    before = await suite.whole(engine, suite.request(tokens=6, seed=1))
    await suite.contract.soon(engine.pause(), "pause returns")
    await suite.contract.raises(
        engine.update(missing), (Exception,), "an update that cannot be done raises"
    )
    await suite.contract.soon(engine.resume(), "resume returns after a failed update")
    after = await suite.whole(engine, suite.request(tokens=6, seed=1))
    clause = "on error it holds its old version, whole"
    wrong = set(after.versions) - {suite.trial.versions[0].number}
    suite.contract.require(not wrong, clause, f"tokens carry {wrong}")
    suite.same(clause, before, after)
    await suite.take(engine, suite.trial.versions[1])
    last = await suite.whole(engine, suite.request(tokens=2))
    suite.contract.require(
        set(last.versions) == {suite.trial.versions[1].number},
        "the next update succeeds",
        f"{last.versions}",
    )
    await engine.close()


async def ends_when_closed(suite: _Suite) -> None:
    """Close ends it, once and again; who waits for its end hears of it; nothing comes any more."""
    engine = await suite.started()
    waiter = asyncio.ensure_future(engine.wait_dead())
    await suite.contract.waits(waiter, suite.trial.quiet_s, "wait_dead waits while it lives")
    stream = await suite.midway(engine)
    for _ in range(2):
        await suite.contract.soon(engine.close(), "close returns, also twice")
    await suite.contract.soon(waiter, "wait_dead returns once it is closed")
    seen = len(stream.deltas)
    await asyncio.sleep(suite.trial.quiet_s)
    suite.contract.require(
        len(stream.deltas) == seen, "no delta comes after close", f"{len(stream.deltas) - seen}"
    )


async def is_known_to_be_dead(suite: _Suite) -> None:
    """Everyone who waits for its death hears the reason; commands fail soon; `add` never raises."""
    kill = suite.trial.kill
    if kill is None:
        return
    engine = await suite.started()
    impatient = asyncio.ensure_future(engine.wait_dead())
    await suite.contract.waits(impatient, suite.trial.quiet_s, "wait_dead waits while it lives")
    await cancelled(impatient)
    waiters = [asyncio.ensure_future(engine.wait_dead()) for _ in range(2)]
    await suite.contract.waits(waiters[0], 0.0, "one who stops waiting does not wake the others")
    stream = await suite.midway(engine)
    kill(engine)
    for waiter in waiters:
        reason = await suite.contract.soon(waiter, "wait_dead returns when it has died")
        suite.contract.require(bool(reason), "wait_dead says why", repr(reason))
    seen = len(stream.deltas)
    for command in (engine.pause, engine.resume, engine.rebuild_kv):
        clause = "a command to a dead engine fails soon"
        await suite.contract.raises(command(), (Exception,), clause)
    late = suite.add(engine, suite.request(tokens=2))
    engine.release(stream.request.session)
    await asyncio.sleep(suite.trial.quiet_s)
    came = len(stream.deltas) - seen + len(late.deltas)
    suite.contract.require(came == 0, "no delta comes from the dead", f"{came} came")
    await suite.contract.soon(engine.close(), "a dead engine can be closed")
