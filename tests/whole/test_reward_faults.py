"""Whatever a platform does to its rewards, a run loses nothing, invents nothing and goes on.

Whole runs of the control plane under virtual time, whose reward is called as the gateway calls it,
on a platform that does as told.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.calling.records import CallSettings, PlatformState
from rollart.backends.rewards.calling.references import References
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault, PlatformLimits
from rollart.core.config import JobConfig
from rollart.core.documents import document_of
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.events import Disposed, LedgerClosed, StepTrained, TrajectoryEnded
from rollart.core.events import TrajectoryStarted as Started
from rollart.core.ports import Reward, TaskSource
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.wire import Request, encode_request
from rollart.core.types import Task, Trajectory, Verdict
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import ScriptedLauncher, ScriptedReward
from rollart.testing.platform import FUNCTION, VERSION, Act, Play, ScriptedPlatform
from rollart.testing.promises import broken_promises
from rollart.testing.script import Draw, Script

DRAW = Draw(7)
SIX_MB = 6 * 1024 * 1024


def own_score(trajectory: str) -> float:
    """The one score that belongs to a trajectory."""
    return int.from_bytes(hashlib.sha256(trajectory.encode()).digest()[:4]) / 2**32


def asked_for(request: Request) -> str:
    """The trajectory that a request is about, whether or not it brings its document."""
    return request.key.removeprefix("run/").partition("#")[0]


def good(request: Request, seconds: float = 0.05) -> Act:
    return Act(seconds=seconds, score=own_score(asked_for(request)))


def struck(share: float, what: str, number: int) -> bool:
    """Whether one of many is, each by itself."""
    return DRAW.chance(share, what, number)


class MemoryObjects:
    """A store."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.written = 0

    async def write(self, url: str, data: bytes) -> None:
        await asyncio.sleep(0.1)
        self.held[url] = data
        self.written += 1

    async def remove(self, url: str) -> None:
        del self.held[url]


class CalledReward(ScriptedReward):
    """The `Reward` port over a caller, each trajectory asked for `copies` times at once."""

    def __init__(self, caller: Caller, *, seconds: float, copies: int = 1) -> None:
        super().__init__(Script())
        self.caller = caller
        self._seconds = seconds
        self._copies = copies

    def identity(self, trajectory: Trajectory) -> str:
        return f"run/{trajectory.id}"

    def verdict(self, given: Verdict) -> Verdict:
        return given

    async def score(self, trajectory: Trajectory) -> Verdict:
        document, identity = document_of(trajectory).to_json(), self.identity(trajectory)
        self.running += 1
        try:
            asked = [
                self.caller.score(document, identity=identity, seconds=self._seconds)
                for _ in range(self._copies)
            ]
            first, *others = await asyncio.gather(*asked)
            assert all(other.verdict == first.verdict for other in others)
            return self.verdict(first.verdict)
        finally:
            self.running -= 1


class LargeTasks:
    """Of eight tasks one has ten megabytes of payload."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._at = 0
        self._text = "x" * 10_000_000

    async def next(self) -> Task | None:
        number, self._at = self._at, self._at + 1
        payload = {"text": self._text} if number % 8 == 3 else {}
        return Task(domain=self._domain, key=f"task-{number}", payload=payload)

    def snapshot(self) -> int:
        return self._at

    def restore(self, position: int) -> None:
        self._at = position


@dataclass(slots=True, kw_only=True)
class Scene:
    """A platform, what is around it, and afterwards what it saw."""

    play: Play
    health: Callable[[float], Act] = lambda now: Act()
    around: Callable[[Platform], Platform] = lambda platform: platform
    fallback: Play | None = None
    function_s: float | None = None
    store: MemoryObjects | None = None
    body_bytes: int = 1 << 30
    copies: int = 1
    large: bool = False
    reward: type[CalledReward] = CalledReward
    states: list[PlatformState] = field(default_factory=list[PlatformState])
    platforms: list[ScriptedPlatform[PlatformLimits]] = field(
        default_factory=list[ScriptedPlatform[PlatformLimits]]
    )
    callers: list[Caller] = field(default_factory=list[Caller])

    @property
    def seen(self) -> Sequence[Request]:
        return self.platforms[-1].seen.requests

    def caller(self, play: Play, *, name: str, fallback: Caller | None = None) -> Caller:
        limits = PlatformLimits(name=name, body_bytes=self.body_bytes)
        health = (lambda now: Act()) if fallback is None and name == "second" else self.health
        platform = ScriptedPlatform(limits, make_fault, play, health=health)
        self.platforms.append(platform)
        store = None if self.store is None else References("mem://here", objects=self.store)
        caller = Caller(
            self.around(platform),
            url=f"http://{name}/score",
            function_version=VERSION,
            settings=CallSettings(function_s=self.function_s),
            limiter=Limiter(64),
            store=store,
            fallback=fallback,
            on_state=self.states.append,
        )
        self.callers.append(caller)
        return caller


def make_fault(kind: str, reason: str, retry_after_s: float | None) -> PlatformFault:
    return PlatformFault(Fault(kind), reason, retry_after_s=retry_after_s)


class Launches(ScriptedLauncher):
    """Its rewards are called on the scene's platform."""

    def __init__(self, script: Script, scene: Scene, reward_s: float) -> None:
        super().__init__(script)
        self._scene = scene
        self._reward_s = reward_s

    async def reward(self, domain: str) -> Reward:
        scene, fallback = self._scene, None
        if scene.fallback is not None:
            fallback = scene.caller(scene.fallback, name="second")
        caller = scene.caller(scene.play, name="first", fallback=fallback)
        made = scene.reward(caller, seconds=self._reward_s, copies=scene.copies)
        return self.rewards_of.setdefault(domain, made)

    async def tasks(self, domain: str) -> TaskSource:
        return LargeTasks(domain) if self._scene.large else await super().tasks(domain)


def job(**overrides: object) -> JobConfig:
    usual = {
        "run__steps": 12,
        "timeouts__reward_s": 30.0,
        "timeouts__episode_s": 400.0,
        "timeouts__stall_s": 400.0,
    }
    return scripted_job(**{**usual, **overrides})


def run_in(scene: Scene, **overrides: object) -> ScriptedRun:
    """A run in that scene."""
    plan = job(**overrides)
    return run_scripted(
        plan,
        Script(train_s=(3.0, 5.0)),
        launcher=lambda script: Launches(script, scene, plan.timeouts.reward_s),
        max_virtual_time=3600.0,
    )


def broken(run: ScriptedRun, scene: Scene) -> list[str]:
    """Every promise that the run broke: those of any run, and those about rewards."""
    told = broken_promises(run)
    for trainer in run.launcher.trainers:
        for _, batch in trainer.batches:
            for trajectory in batch.trajectories:
                if trajectory.score != own_score(str(trajectory.id)):
                    told.append(f"{trajectory.id} was trained with {trajectory.verdict}")
    for ended in run.events.of(TrajectoryEnded):
        lost = ended.failure.startswith("reward")
        if lost and (ended.score is not None or not ended.detail):
            told.append(f"a verdict, or no reason, beside {ended}")
    last = run.events.of(LedgerClosed)[-1]
    if last.in_flight or last.buffered or not last.balanced:
        told.append(f"at the end there is {last}")
    for platform in scene.platforms:
        if platform.seen.under_way:
            told.append(f"{platform.seen.under_way} calls are under way after the end")
    if scene.store is not None and scene.store.held:
        told.append(f"{len(scene.store.held)} documents were left in the store")
    return told


def whole(scene: Scene, **overrides: object) -> Counter[str]:
    """What a run lost, by reason, that went to its end and kept every promise."""
    run = run_in(scene, **overrides)
    assert run.result.ok, run.result.reason
    assert broken(run, scene) == []
    assert len(run.events.of(StepTrained)) == run.job.run.steps
    return lost_rewards(run)


def ended(scene: Scene, **overrides: object) -> str:
    """Why a run ended early; it kept every promise all the same."""
    run = run_in(scene, **overrides)
    assert not run.result.ok
    assert broken(run, scene) == []
    return run.result.reason


def lost_rewards(run: ScriptedRun) -> Counter[str]:
    lost = [event for event in run.events.of(TrajectoryEnded) if event.failure]
    left = {event.trajectory for event in run.events.of(Disposed) if event.disposition == "failed"}
    assert {event.trajectory for event in lost} >= left
    return Counter(event.failure for event in lost)


def test_time_outs_of_one_call_in_twenty_cost_a_second_try_and_no_trajectory() -> None:
    def play(number: int, now: float, request: Request) -> Act:
        return Act(seconds=1e6) if struck(0.05, "hang", number) else good(request)

    scene = Scene(play=play, function_s=0.5)
    assert whole(scene) == {}
    asked = Counter(map(asked_for, scene.seen))
    assert 3 < sum(count > 1 for count in asked.values()) < 0.15 * len(asked)
    assert scene.states == []


def test_time_outs_that_outlast_the_call_are_told_as_such_and_the_run_goes_on() -> None:
    def play(number: int, now: float, request: Request) -> Act:
        hangs = DRAW.chance(0.05, "hang", asked_for(request))
        return Act(seconds=1e6) if hangs else good(request)

    lost = whole(Scene(play=play, function_s=0.5), timeouts__reward_s=4.0)
    assert set(lost) == {FailureKind.REWARD_TIMEOUT}
    assert lost.total() > 5


def test_storms_of_429_are_waited_out_as_long_as_the_platform_asks() -> None:
    throttled: list[float] = []

    def play(number: int, now: float, request: Request) -> Act:
        if now % 25.0 < 10.0:
            throttled.append(now + 0.05)
            return Act(seconds=0.05, fault="throttled", retry_after_s=3.0)
        return good(request)

    scene = Scene(play=play)
    assert whole(scene) == {}
    assert len(set(throttled)) > 6
    begun = scene.platforms[0].seen.times
    assert not [time for time in begun for told in throttled if told < time < told + 2.999]


def test_duplicated_and_late_answers_are_nobodys_verdict_twice() -> None:
    def play(number: int, now: float, request: Request) -> Act:
        if struck(0.1, "late", number):  # it goes on when it is given up, and then answers
            late.append(number)
            return Act(seconds=3.0, score=own_score(asked_for(request)), stubborn=True)
        if struck(0.05, "double", number):  # what it answered before comes once more
            return Act(seconds=0.05, key=last[0], score=own_score("another"))
        last[0] = request.key
        return good(request)

    last, late = ["run/nobody#"], list[int]()
    scene = Scene(play=play, function_s=0.5, copies=2)
    lost = whole(scene)
    assert set(lost) == {FailureKind.REWARD_ERROR}  # of answers that bear another's key
    assert len(late) > 5
    answered = [key for key, count in Counter(map(asked_for, scene.seen)).items() if count == 1]
    assert len(answered) > 100  # two who ask for one trajectory are one call


@pytest.mark.parametrize("stored", [True, False])
def test_ten_megabytes_go_by_the_store_and_without_one_cost_their_trajectories(
    stored: bool,
) -> None:
    scene = Scene(
        play=lambda number, now, request: good(request),
        body_bytes=SIX_MB,
        store=MemoryObjects() if stored else None,
        large=True,
    )
    run = run_in(scene, run__steps=2, protocol__alpha=0, faults__max_no_verdict=1.0)
    assert run.result.ok, run.result.reason
    assert broken(run, scene) == []
    lost = [event for event in run.events.of(TrajectoryEnded) if event.failure]
    if scene.store is not None:
        assert not lost
        assert scene.store.written >= 1
        assert sum(request.reference is not None for request in scene.seen) >= 4
    else:
        assert {event.failure for event in lost} == {FailureKind.REWARD_ERROR}
        assert all("?store=s3://" in event.detail for event in lost)
        assert len({event.task for event in run.events.of(Started)}) > 7


def test_a_crash_in_mid_call_is_tried_again_and_one_that_always_comes_is_told() -> None:
    def play(number: int, now: float, request: Request) -> Act:
        always = DRAW.chance(0.05, "always", asked_for(request))
        if always or struck(0.1, "once", number):
            return Act(seconds=0.1, fault="crashed")
        return good(request)

    scene = Scene(play=play)
    lost = whole(scene)
    assert set(lost) == {FailureKind.REWARD_ERROR}
    tries = Counter(map(asked_for, scene.seen))
    assert max(tries.values()) == 3
    assert lost.total() <= sum(count == 3 for count in tries.values())


def gone(number: int, now: float, request: Request) -> Act:
    """The endpoint is gone from the tenth second to the seventieth."""
    return Act(fault="unavailable") if 10.0 <= now < 70.0 else good(request)


def no_health(now: float) -> Act:
    return Act(fault="unavailable") if 10.0 <= now < 70.0 else Act()


def test_an_endpoint_that_is_gone_for_60_s_delays_rewards_and_loses_none() -> None:
    scene = Scene(play=gone, health=no_health)
    assert whole(scene, timeouts__reward_s=120.0, run__steps=20) == {}
    down, up = scene.states
    assert (down.down, up.down) == (True, False)
    assert 55.0 < up.down_s < 75.0
    while_gone = [time for time in scene.platforms[0].seen.times if 10.0 <= time < 70.0]
    assert len(while_gone) < 80  # calls wait, and do not storm what is gone
    asked = scene.platforms[0].health_times
    assert all(after - before > 9.9 for before, after in pairwise(asked))


def test_an_endpoint_that_is_gone_longer_than_a_reward_may_take_is_told_by_its_reason() -> None:
    scene = Scene(play=gone, health=no_health)
    lost = whole(scene, timeouts__reward_s=15.0, run__steps=20, faults__max_no_verdict=1.0)
    assert set(lost) == {FailureKind.REWARD_TIMEOUT}
    reason = ended(
        Scene(play=gone, health=no_health), timeouts__reward_s=2.0, faults__max_no_verdict=0.2
    )
    assert "of the latest 100 trajectories have no verdict" in reason
    assert "reward_timeout in lake" in reason
    assert "unavailable" in reason


def test_with_a_second_place_nothing_waits_for_an_endpoint_that_is_gone() -> None:
    scene = Scene(
        play=gone,
        health=no_health,
        fallback=lambda number, now, request: good(request, 0.2),
    )
    assert whole(scene, run__steps=20) == {}
    assert scene.states[0].fallback == "http://second/score"
    assert 55.0 < scene.states[1].down_s < 75.0
    second, first = scene.platforms
    assert len(second.seen.requests) > 50
    assert all(9.0 <= time < 81.0 for time in second.seen.times)
    assert first.seen.times[-1] > 70.0


class Locked:
    """Takes no credentials from a time on, for some seconds."""

    def __init__(self, inner: Platform, since: float, seconds: float) -> None:
        self._inner = inner
        self._since = since
        self._until = since + seconds

    @property
    def limits(self) -> PlatformLimits:
        return self._inner.limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        if self._since <= asyncio.get_running_loop().time() < self._until:
            raise ConfigError("first: refused the key in AWS_ACCESS_KEY_ID; set a valid one")
        return await self._inner.call(body, key=key, seconds=seconds)

    async def close(self) -> None:
        await self._inner.close()


def test_credentials_that_fail_for_a_while_cost_those_rewards_and_say_which() -> None:
    def scene(seconds: float) -> Scene:
        return Scene(
            play=lambda number, now, request: good(request),
            around=lambda platform: Locked(platform, 10.0, seconds),
        )

    passing = scene(4.0)
    lost = whole(passing, faults__max_no_verdict=1.0)
    assert set(lost) == {FailureKind.REWARD_ERROR}
    assert passing.states == []  # who refuses lives
    reason = ended(scene(1e6), faults__max_no_verdict=0.2)
    assert "reward_error in lake" in reason
    assert "set a valid one" in reason


def errs(trajectory: TrajectoryDocument) -> object:
    """A function with bugs that depend on the trajectory."""
    which = DRAW.rng("bug", trajectory.id).random()
    if which < 0.05:
        raise KeyError("answer")
    if which < 0.1:
        return float("nan")
    if which < 0.15:
        return "good"
    return own_score(trajectory.id)


def test_a_function_that_raises_or_returns_nan_or_text_costs_exactly_those_trajectories() -> None:
    handler = Handler(errs, path=FUNCTION, version=VERSION)

    def play(number: int, now: float, request: Request) -> Act:
        return Act(data=handler.handle(encode_request(request)))

    scene = Scene(play=play)
    run = run_in(scene)
    assert run.result.ok, run.result.reason
    assert broken(run, scene) == []
    wrong = {event.trajectory: event for event in run.events.of(TrajectoryEnded) if event.failure}
    asked = Counter(map(asked_for, scene.seen))
    assert set(wrong) == {one for one in asked if DRAW.rng("bug", one).random() < 0.15}
    assert set(asked.values()) == {1}  # no other try mends a function
    assert {event.failure for event in wrong.values()} == {FailureKind.REWARD_ERROR}
    said = " ".join(event.detail for event in wrong.values())
    for words in ("KeyError: 'answer'", "returned nan", "returned str"):
        assert words in said


def test_a_function_that_always_fails_ends_the_run_with_the_reason_counted() -> None:
    reason = ended(Scene(play=lambda number, now, request: Act(error="ValueError: no model")))
    assert "100 of the latest 100 trajectories have no verdict (100 reward_error in lake)" in reason
    assert "ValueError: no model" in reason
    assert "mend the reward, or raise faults.max_no_verdict" in reason


class Zeros(CalledReward):
    """Makes a zero of what has no verdict."""

    def verdict(self, given: Verdict) -> Verdict:
        return Verdict(score=0.0) if given.score is None else given


class Shares(CalledReward):
    """Takes all members of a group for one trajectory."""

    def identity(self, trajectory: Trajectory) -> str:
        return f"run/{trajectory.task.key}"


class Believes(CalledReward):
    """Takes a verdict for its own because it came to its call."""

    async def score(self, trajectory: Trajectory) -> Verdict:
        given = await super().score(trajectory)
        return Verdict(score=0.25) if "it answers for" in given.reason else given


@pytest.mark.parametrize("reward", [Zeros, Shares, Believes])
def test_a_reward_with_a_planted_bug_is_found(reward: type[CalledReward]) -> None:
    def play(number: int, now: float, request: Request) -> Act:
        if struck(0.05, "double", number):
            return Act(key="run/another#", score=0.25)
        return good(request)

    scene = Scene(play=play, reward=reward)
    found = broken(run_in(scene), scene)
    assert found
    assert all("was trained with" in sentence for sentence in found)
