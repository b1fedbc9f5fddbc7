"""Whatever a platform does: each call ends by its deadline with the verdict of its own answer, or
with none and a reason, and the limiter holds. Callers with a planted bug are found by the same.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rollart.backends.rewards.calling.call import Call
from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Place
from rollart.backends.rewards.calling.records import Outcome
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault, PlatformLimits
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Request, decode_answer, encode_answer
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import ANSWERS, Act

NAMES = ("a", "b", "c", "d", "e", "f")
FOREIGN = 99.0  # a score that is nobody's own


@dataclass(frozen=True, kw_only=True)
class Case:
    """Acts in the order of requests, then answers; calls as (which trajectory, begin, seconds)."""

    acts: tuple[Act, ...]
    calls: tuple[tuple[int, float, float], ...]
    concurrency: int
    hedge: bool
    failures: int
    fallback: bool
    function_s: float | None


times = st.sampled_from((0.0, 0.01, 0.5, 3.0, 1e6))
acts = st.one_of(
    st.builds(Act, seconds=times),
    st.sampled_from((Act(fault="refused"), Act(error="ValueError: no score"))),
    st.builds(
        Act,
        seconds=times,
        fault=st.sampled_from([str(kind) for kind in Fault]),
        retry_after_s=st.sampled_from((None, None, 0.0, 2.0, 40.0)),
    ),
    st.builds(Act, seconds=times, error=st.just("ValueError: no score")),
    st.builds(
        Act,
        seconds=times,
        key=st.sampled_from([f"{name}#0123456789abcdef" for name in NAMES] + [""]),
        score=st.just(FOREIGN),
    ),
    st.builds(Act, seconds=times, data=st.sampled_from((b"", b"<html>", b"{}", b"0.5"))),
)
cases = st.builds(
    Case,
    acts=st.lists(acts, max_size=25).map(tuple),
    calls=st.lists(
        st.tuples(
            st.integers(0, len(NAMES) - 1),
            st.sampled_from((0.0, 0.0, 0.3, 5.0)),
            st.sampled_from((0.2, 4.0, 30.0)),
        ),
        min_size=1,
        max_size=10,
    ).map(tuple),
    concurrency=st.integers(1, 3),
    hedge=st.booleans(),
    failures=st.integers(1, 4),
    fallback=st.booleans(),
    function_s=st.sampled_from((None, 1.0)),
)


class Judged:
    """One case, run and judged under virtual time; a broken promise is an `AssertionError`."""

    def __init__(self, case: Case, rig: Any, kind: type[Caller]) -> None:
        self.case = case
        self.rig = rig
        self.kind = kind
        self.final: set[str] = set()
        self.went_on = False

    async def main(self) -> None:
        case = self.case
        options = {"concurrency": case.concurrency, "hedge": case.hedge}
        other = self.rig(url="local://other", **options) if case.fallback else None
        made = self.rig(
            self.play,
            health=lambda time: Act(fault="unavailable") if time < 12.0 else ANSWERS,
            kind=self.kind,
            fallback=None if other is None else other.caller,
            breaker_failures=case.failures,
            breaker_s=2.0,
            function_s=case.function_s,
            **options,
        )
        await self.warm(made)
        await asyncio.gather(*(self.call(made, *call) for call in case.calls))
        assert not self.went_on, "a call went on after a final answer"
        for used in (made, other):
            if used is not None:
                assert used.platform.seen.most <= case.concurrency, "above the limiter"
                assert used.platform.seen.under_way == 0
                assert used.limiter.free == case.concurrency, "a place is lost"
        await made.caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def warm(self, made: Any) -> None:
        """So that durations are known and a call may be hedged."""
        if self.case.hedge:
            for i in range(40):
                await made.score(f"warm-{i}")

    def play(self, n: int, time: float, request: Request) -> Act:
        name = request.key.partition("#")[0]
        if name.startswith("warm"):
            return ANSWERS
        self.went_on |= name in self.final  # raised here, it would be a platform's own fault
        n -= 40 if self.case.hedge else 0
        act = self.case.acts[n] if n < len(self.case.acts) else ANSWERS
        lasting = act.fault in ("refused", "too_large", "garbled") or act.error
        if act.key == request.key:
            act = replace(act, score=None)
        alone = [NAMES[call[0]] for call in self.case.calls].count(name) == 1
        if lasting and alone and act.seconds == 0 and not self.case.hedge:
            self.final.add(name)
        return act

    async def call(self, made: Any, which: int, begin_s: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin_s)
        begin = loop.time()
        name = NAMES[which]
        self.final.discard(name)
        outcome = await made.score(name, seconds, value=float(which + 1))
        assert loop.time() <= begin + seconds + 1e-9, "it ended after its deadline"
        verdict = outcome.verdict
        if verdict.score is None:
            assert verdict.reason, "no verdict without a reason"
            assert verdict.failure is not None
        else:
            assert verdict.score == which + 1, "the verdict is not its own"
            assert verdict.failure is None
        assert outcome.waited_s <= loop.time() - begin + 1e-9
        assert outcome.served_by


def hunt(rig: Any, kind: type[Caller], examples: int, phases: tuple[Phase, ...]) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(case=cases)
    def every(case: Case) -> None:
        run_virtual(Judged(case, rig, kind).main, max_virtual_time=10_000)

    every()


def test_every_call_ends_in_time_with_its_own_verdict_or_none(rig: Any) -> None:
    hunt(rig, Caller, 400, (Phase.generate, Phase.shrink))


class RetriesRefusals(Caller):
    async def _send(self, call: Call) -> Answer:
        try:
            return await super()._send(call)
        except PlatformFault as fault:
            if fault.fault is Fault.REFUSED:
                raise PlatformFault(Fault.UNAVAILABLE, str(fault)) from fault
            raise


class Rewrites(Caller):
    """Changes answers before they are looked at."""

    def rewritten(self, answer: Answer, key: str) -> Answer:
        raise NotImplementedError

    def __init__(self, platform: Platform, **settings: Any) -> None:
        super().__init__(Rewriting(platform, self.rewritten), **settings)


class Rewriting:
    def __init__(self, platform: Platform, rewritten: Callable[[Answer, str], Answer]) -> None:
        self._platform = platform
        self._rewritten = rewritten

    @property
    def limits(self) -> PlatformLimits:
        return self._platform.limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        data = await self._platform.call(body, key=key, seconds=seconds)
        try:
            return encode_answer(self._rewritten(decode_answer(data), key))
        except ValueError:
            return data

    async def close(self) -> None:
        await self._platform.close()


class TakesAnyKey(Rewrites):
    def rewritten(self, answer: Answer, key: str) -> Answer:
        return replace(answer, key=key)


class TakesErrorsForZero(Rewrites):
    def rewritten(self, answer: Answer, key: str) -> Answer:
        return replace(answer, error="", verdict=Verdict(score=0.0)) if answer.error else answer


class GivesZeroForNone(Caller):
    async def score(self, document: Mapping[str, Any], *, identity: str, seconds: float) -> Outcome:
        outcome = await super().score(document, identity=identity, seconds=seconds)
        if outcome.verdict.score is None:
            return replace(outcome, verdict=Verdict(score=0.0))
        return outcome


class WaitsForNoPlace(Caller):
    async def _placed(self, place: Place, call: Call) -> None:
        await asyncio.sleep(0)


class KeepsItsPlace(Caller):
    async def _placed(self, place: Place, call: Call) -> None:
        await super()._placed(place, call)
        self._line.limiter.free -= 1


class ForgetsItsDeadline(Caller):
    async def _run(self, call: Call, identity: str) -> Outcome:
        call.deadline += 5.0
        return await super()._run(call, identity)


class GivesNoReason(Caller):
    async def score(self, document: Mapping[str, Any], *, identity: str, seconds: float) -> Outcome:
        outcome = await super().score(document, identity=identity, seconds=seconds)
        return replace(outcome, verdict=replace(outcome.verdict, reason=""))


class MixesCallsUp(Caller):
    """One key for all."""

    async def score(self, document: Mapping[str, Any], *, identity: str, seconds: float) -> Outcome:
        return await super().score(document, identity="a", seconds=seconds)


PLANTED: list[tuple[type[Caller], str]] = [
    (RetriesRefusals, "went on after a final answer"),
    (TakesAnyKey, "not its own"),
    (TakesErrorsForZero, "not its own"),
    (GivesZeroForNone, "not its own"),
    (WaitsForNoPlace, "above the limiter"),
    (KeepsItsPlace, "a place is lost|after its deadline"),
    (ForgetsItsDeadline, "after its deadline"),
    (GivesNoReason, "no verdict without a reason"),
    (MixesCallsUp, "not its own"),
]


@pytest.mark.parametrize(("kind", "broken"), PLANTED)
def test_a_planted_bug_is_found(rig: Callable[..., Any], kind: type[Caller], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        hunt(rig, kind, 400, (Phase.generate,))
