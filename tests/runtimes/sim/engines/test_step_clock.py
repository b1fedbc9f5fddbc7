"""The batch in closed form agrees with a plain loop over iterations, token by token."""

import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from rollart.core.events import Work
from rollart.runtimes.sim.engines.seq import Prefixes, Seq
from rollart.runtimes.sim.engines.step_clock import StepClock, StepTimes
from rollart.runtimes.sim.engines.stretch import Stretch
from rollart.runtimes.sim.hardware.catalogue import gpu
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.hardware.roofline import Roofline

TOLERANCE = 0.02
SEEDS = range(40)


@dataclass(frozen=True, kw_only=True)
class Asked:
    at: float
    name: str
    session: str
    prompt: int
    wanted: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Stop:
    at: float
    until: float
    renews: bool


@dataclass(frozen=True, kw_only=True)
class Case:
    """A load (in order of time) and the engine that it meets."""

    times: StepTimes
    capacity: int
    step_tokens: int
    most_running: int
    asked: Sequence[Asked]
    aborts: Sequence[tuple[float, str]] = ()
    stops: Sequence[Stop] = ()


@dataclass
class Outcome:
    finished: dict[str, float] = field(default_factory=dict[str, float])
    prefilled: int = 0
    cached: int = 0
    preempted: int = 0
    rebuilt: int = 0
    dropped: int = 0


@dataclass(eq=False)
class _Row:
    asked: Asked
    sampled: int = 0
    left: int = 0
    prefilled: int = 0
    cached: int = 0

    @property
    def held(self) -> int:
        return self.asked.prompt + self.sampled


class TokenByToken:
    """The same rules, one iteration after another, with nothing clever."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 0.0
        self.asked = list(case.asked)
        self.aborts = list(case.aborts)
        self.stops = list(case.stops)
        self.waiting: list[_Row] = []
        self.running: list[_Row] = []
        self.idle: OrderedDict[str, int] = OrderedDict()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        while True:
            self.arrive()
            if self.stops and self.stops[0].at <= self.now:
                self.stand_still(self.stops.pop(0))
                continue
            self.drop(self.due_aborts())
            self.choose()
            if self.running:
                self.iterate()
            elif self.asked:
                self.now = self.asked[0].at
            elif self.stops:
                self.now = self.stops[0].at
            else:
                return self.outcome

    def arrive(self) -> None:
        while self.asked and self.asked[0].at <= self.now:
            self.waiting.append(_Row(self.asked.pop(0)))

    def stand_still(self, stop: Stop) -> None:
        self.now = max(self.now, stop.until)
        self.drop(self.due_aborts())
        if stop.renews:
            self.idle.clear()
            for row in self.running:
                self.outcome.rebuilt += row.held - row.left
                row.left = row.held

    def due_aborts(self) -> list[str]:
        self.arrive()
        names = [name for at, name in self.aborts if at < self.now]
        self.aborts = [entry for entry in self.aborts if entry[0] >= self.now]
        return names

    def drop(self, names: list[str]) -> None:
        before = len(self.waiting) + len(self.running)
        self.waiting = [row for row in self.waiting if row.asked.name not in names]
        self.running = [row for row in self.running if row.asked.name not in names]
        self.outcome.dropped += before - len(self.waiting) - len(self.running)

    @property
    def active(self) -> int:
        return sum(row.held for row in self.running)

    def trim(self) -> None:
        excess = self.active + sum(self.idle.values()) - self.case.capacity
        for _ in range(min(excess, sum(self.idle.values()))):
            session = next(iter(self.idle))
            self.idle[session] -= 1
            if not self.idle[session]:
                del self.idle[session]

    def fits(self, row: _Row) -> bool:
        count = len(self.running)
        room = self.case.capacity - self.active
        return not count or (count < self.case.most_running and row.held + count + 1 <= room)

    def choose(self) -> None:
        self.trim()
        while len(self.running) > 1 and self.active + len(self.running) > self.case.capacity:
            row = self.running.pop()
            self.waiting.insert(0, row)
            self.outcome.preempted += 1
        while self.waiting and self.fits(self.waiting[0]):
            row = self.waiting.pop(0)
            kept = int(self.idle.pop(row.asked.session, 0) * row.asked.share)
            cached = min(kept, row.held - 1)
            row.cached += cached
            row.left = row.held - cached
            self.running.append(row)
        self.trim()

    def iterate(self) -> None:
        decoding = [row for row in self.running if not row.left]
        budget = self.case.step_tokens - len(decoding)
        parts: list[tuple[_Row, int]] = []
        for row in self.running:
            part = min(row.left, budget)
            if part:
                parts.append((row, part))
                budget -= part
        tokens = sum(part for _, part in parts)
        attended = sum(part * (row.held - row.left + part / 2) for row, part in parts)
        self.now += self.case.times.step_s(
            decoding=len(decoding),
            prefill_tokens=tokens,
            context_tokens=sum(row.held for row in decoding),
            prefill_context=attended / tokens if tokens else 0.0,
        )
        for row in decoding:
            row.sampled += 1
        self.trim()
        self.drop(self.due_aborts())
        for row, part in parts:
            row.left -= part
            row.prefilled += part
            if not row.left:
                row.sampled += 1
        order = [*decoding, *(row for row, _ in parts)]
        for row in order:
            if row in self.running and not row.left and row.sampled == row.asked.wanted:
                self.running.remove(row)
                self.idle.pop(row.asked.session, None)
                self.idle[row.asked.session] = row.held
                self.outcome.finished[row.asked.name] = self.now
                self.outcome.prefilled += row.prefilled
                self.outcome.cached += row.cached


def in_closed_form(case: Case, kind: type[StepClock] = StepClock) -> Outcome:
    clock = kind(
        case.times,
        capacity=case.capacity,
        step_tokens=case.step_tokens,
        most_running=case.most_running,
    )
    outcome, seqs = Outcome(), [_seq(asked) for asked in case.asked]

    def until(at: float) -> None:
        while clock.next_event_at <= at:
            now = clock.next_event_at
            for seq in clock.advance(now):
                outcome.finished[seq.name] = now
            assert clock.kv_tokens + clock.idle_tokens <= case.capacity

    actions: list[tuple[float, int, object]] = []
    actions += [(asked.at, 0, seq) for asked, seq in zip(case.asked, seqs, strict=True)]
    actions += [(at, 1, name) for at, name in case.aborts]
    for stop in case.stops:
        actions += [(stop.at, 2, None), (stop.until, 3, stop)]
    latest = 0.0
    for version, (at, _, action) in enumerate(sorted(actions, key=lambda entry: entry[:2])):
        now = max(at, latest)
        until(now)
        match action:
            case Seq():
                clock.add(action, now)
            case str():
                clock.abort([action], now)
            case Stop():
                if not clock.stopped:  # the iteration that was to be its last still runs
                    now = clock.next_event_at
                    until(now)
                if action.renews:
                    outcome.rebuilt += clock.renew(version, now, keep=False)
                clock.start(now)
                latest = now
            case _:
                clock.stop(now)
    while clock.next_event_at < math.inf:
        until(clock.next_event_at)
    assert (clock.load, clock.backlog, clock.kv_tokens) == (0, 0, 0)
    whole = [seq for seq in seqs if seq.name in outcome.finished]
    outcome.prefilled = sum(seq.prefilled for seq in whole)
    outcome.cached = sum(seq.cached for seq in whole)
    return outcome


def _seq(asked: Asked) -> Seq:
    return Seq(
        name=asked.name,
        session=asked.session,
        prompt=asked.prompt,
        wanted=asked.wanted,
        share=asked.share,
    )


def drawn(seed: int) -> Case:
    """A crowded little engine: preemption, evictions, chunks, aborts, stops, in most cases."""
    rng = random.Random(seed)
    model = rng.choice(["Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B"])
    roofline = Roofline(
        model=model_shape(model), gpu=gpu(rng.choice(["H20", "H800"])), tp=rng.choice([1, 2, 4])
    )
    capacity = rng.choice([1500, 4000, 12000])
    span = rng.choice([0.5, 3.0, 10.0])
    asked: list[Asked] = []
    at = 0.0
    for index in range(rng.randint(1, 40)):
        at += rng.expovariate(20 / span) if rng.random() < 0.8 else 0.0
        asked.append(
            Asked(
                at=at,
                name=f"r{index}",
                session=f"s{rng.randrange(12)}",
                prompt=rng.randint(1, min(1000, capacity // 2)),
                wanted=min(1 + int(rng.expovariate(1 / 100)), capacity // 2),
                share=rng.choice([0.0, 0.5, 1.0]),
            )
        )
    aborts = sorted(
        (one.at + rng.uniform(0.001, 2.0), one.name) for one in asked if rng.random() < 0.15
    )
    stops: list[Stop] = []
    begin = 0.0
    for _ in range(rng.randint(0, 3)):
        begin += rng.uniform(0.2, span)
        until = begin + rng.uniform(0.5, 2.0)
        stops.append(Stop(at=begin, until=until, renews=rng.random() < 0.6))
        begin = until + 0.01
    return Case(
        times=roofline,
        capacity=capacity,
        step_tokens=rng.choice([64, 512, 8192]),
        most_running=rng.choice([3, 16, 48]),
        asked=asked,
        aborts=aborts,
        stops=stops,
    )


def worst_error(case: Case, ours: Outcome, plain: Outcome) -> float:
    """The largest relative error of any request's time from being asked to its end."""
    assert ours.finished.keys() == plain.finished.keys()
    began = {asked.name: asked.at for asked in case.asked}
    return max(
        (abs(ours.finished[name] - at) / (at - began[name]) for name, at in plain.finished.items()),
        default=0.0,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_it_agrees_with_the_loop_over_tokens(seed: int) -> None:
    case = drawn(seed)
    ours, plain = in_closed_form(case), TokenByToken(case).run()
    assert worst_error(case, ours, plain) <= TOLERANCE
    for count in ("prefilled", "cached", "rebuilt"):
        assert getattr(ours, count) == pytest.approx(getattr(plain, count), rel=TOLERANCE)


def test_the_cases_hold_what_is_difficult() -> None:
    plain = [TokenByToken(drawn(seed)).run() for seed in SEEDS]
    for count in ("preempted", "cached", "rebuilt", "dropped"):
        assert sum(getattr(one, count) > 0 for one in plain) >= 5, count


class ForgetsGrowth(StepClock):
    """Takes every iteration of a stretch to be as long as the first."""

    def _seconds(self, iterations: int, tokens: int, attended: float) -> tuple[float, float]:
        return super()._seconds(iterations, tokens, attended)[0], 0.0


def test_a_clock_that_forgets_that_contexts_grow_is_found() -> None:
    case = Case(
        times=Roofline(model=model_shape("Qwen3-8B"), gpu=gpu("H800")),
        capacity=200_000,
        step_tokens=8192,
        most_running=64,
        asked=[
            Asked(at=0.0, name=f"r{i}", session=f"s{i}", prompt=100, wanted=2000, share=1.0)
            for i in range(50)
        ],
    )
    plain = TokenByToken(case).run()
    assert worst_error(case, in_closed_form(case), plain) < 1e-6
    assert worst_error(case, in_closed_form(case, ForgetsGrowth), plain) > TOLERANCE


class Counting:
    """Counts how often it is asked; an iteration takes a millisecond and a little a token."""

    def __init__(self) -> None:
        self.asked = 0

    def step_s(
        self,
        *,
        decoding: float,
        prefill_tokens: float,
        context_tokens: float,
        prefill_context: float,
    ) -> float:
        self.asked += 1
        return 1e-3 + 1e-6 * (prefill_tokens + decoding) + 1e-9 * context_tokens


def alone(wanted: int, *, prompt: int = 10) -> tuple[float, int]:
    """When a single request ends, and how many times an iteration's time was asked for."""
    times = Counting()
    clock = StepClock(times, capacity=10_000_000)
    clock.add(Seq(name="r", session="s", prompt=prompt, wanted=wanted), 0.0)
    at = 0.0
    while clock.next_event_at < math.inf:
        at = clock.next_event_at
        clock.advance(at)
    return at, times.asked


def test_a_long_answer_costs_no_more_work_than_a_short_one() -> None:
    (short_s, short), (long_s, long) = alone(100), alone(1_000_000)
    assert long == short
    assert long_s > 1000 * short_s


def test_a_prompt_longer_than_an_iteration_is_cut_into_chunks() -> None:
    whole_s, _ = alone(1, prompt=8192)
    cut_s, _ = alone(1, prompt=8193)
    assert cut_s == pytest.approx(whole_s + 1e-3, rel=0.01)


def run_until(clock: StepClock, at: float) -> dict[str, float]:
    ended: dict[str, float] = {}
    while clock.next_event_at <= at:
        now = clock.next_event_at
        ended.update((seq.name, now) for seq in clock.advance(now))
    return ended


def test_an_abort_is_over_at_the_end_of_the_iteration_that_runs() -> None:
    clock = StepClock(Counting(), capacity=1000)
    seq = Seq(name="r", session="s", prompt=10, wanted=500)
    clock.add(seq, 0.0)
    run_until(clock, 0.1)
    at = clock.abort(["r", "unknown"], 0.1)
    assert 0.1 < at < 0.1011
    assert run_until(clock, 10.0) == {}
    assert (clock.load, clock.kv_tokens, clock.idle_tokens) == (0, 0, 0)


def test_one_that_was_blocked_is_admitted_when_the_one_before_it_is_aborted() -> None:
    clock = StepClock(Counting(), capacity=1000)
    clock.add(Seq(name="long", session="a", prompt=500, wanted=400), 0.0)
    run_until(clock, 0.01)
    clock.add(Seq(name="wide", session="b", prompt=600, wanted=10), 0.01)
    clock.add(Seq(name="small", session="c", prompt=10, wanted=10), 0.01)
    run_until(clock, 0.02)
    clock.abort(["wide"], 0.02)
    assert run_until(clock, 10.0)["small"] < 0.04


def test_seconds_of_a_request_add_up_to_its_time_and_a_stop_counts_as_queueing() -> None:
    clock = StepClock(Counting(), capacity=10_000)
    seq = Seq(name="r", session="s", prompt=1000, wanted=100)
    clock.add(seq, 1.0)
    run_until(clock, 1.05)
    run_until(clock, clock.stop(1.05))
    assert clock.stopped
    clock.start(5.0)
    ended = run_until(clock, 10.0)["r"]
    cost = seq.cost()
    assert cost.queued_s + cost.prefill_s + cost.decode_s == pytest.approx(ended - 1.0)
    assert cost.queued_s == pytest.approx(3.95, abs=0.01)
    assert (cost.prefill_tokens, cost.decode_tokens, cost.cached_tokens) == (1000, 100, 0)


def test_progress_in_mid_flight_counts_whole_iterations() -> None:
    clock = StepClock(Counting(), capacity=10_000)
    seq = Seq(name="r", session="s", prompt=1, wanted=1000)
    clock.add(seq, 0.0)
    for at in (0.0005, 0.0500001, 0.3, 0.7):
        run_until(clock, at)
        assert abs(clock.sampled(seq, at) - at / 1.0015e-3) <= 1


def test_a_prefix_comes_back_in_part_and_goes_when_it_is_released() -> None:
    clock = StepClock(Counting(), capacity=10_000)
    clock.add(Seq(name="one", session="s", prompt=100, wanted=20), 0.0)
    run_until(clock, 1.0)
    assert clock.prefix("s") == 120
    second = Seq(name="two", session="s", prompt=150, wanted=1, share=0.5)
    clock.add(second, 1.0)
    run_until(clock, 2.0)
    assert (second.cached, second.prefilled) == (60, 90)
    clock.release("s")
    assert clock.idle_tokens == 0


def test_work_is_told_by_kind_without_overlap() -> None:
    told: list[tuple[Work, float, float]] = []
    clock = StepClock(
        Counting(), capacity=10_000, busy=lambda work, begin, end: told.append((work, begin, end))
    )
    clock.add(Seq(name="one", session="a", prompt=100, wanted=300), 0.0)
    run_until(clock, 0.1)
    clock.add(Seq(name="two", session="b", prompt=100, wanted=300), 0.1)
    run_until(clock, 0.2)
    run_until(clock, clock.stop(0.2))
    clock.renew(1, 0.5, keep=False)
    clock.start(0.5)
    run_until(clock, 10.0)
    assert {work for work, _, _ in told} == {Work.PREFILL, Work.DECODE, Work.MIXED, Work.REBUILD}
    assert all(one[2] <= two[1] for one, two in pairwise(told))


def test_a_slow_engine_takes_as_many_times_as_long_from_the_next_iteration_on() -> None:
    clock = StepClock(Counting(), capacity=10_000)
    clock.add(Seq(name="r", session="s", prompt=1, wanted=200), 0.0)
    run_until(clock, 0.1)
    clock.set_pace(3.0, 0.1)
    assert run_until(clock, 10.0)["r"] == pytest.approx(0.1 + 3 * 0.1, rel=0.02)


def test_a_stretch_counts_its_iterations_as_they_come() -> None:
    rng = random.Random(1)
    for _ in range(300):
        first, growth = rng.uniform(1e-3, 0.1), rng.choice([0.0, 1e-7, 1e-5, 1e-3])
        stretch = Stretch(rng.uniform(0, 1e5), first, growth, rng.randint(1, 500), Work.DECODE)
        ends = [stretch.after(index) for index in range(stretch.count + 1)]
        for at in [*rng.sample(ends, min(5, len(ends))), rng.uniform(ends[0], ends[-1])]:
            assert stretch.done(at) == sum(end <= at for end in ends[1:])
        at = rng.choice([rng.uniform(ends[0], ends[-1]), rng.choice(ends[1:])])
        stretch.cut(at)
        assert stretch.ends_at == min(end for end in ends[1:] if end >= at)


def test_an_iteration_without_a_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="must take some time"):
        Stretch(0.0, 0.0, 0.0, 1, Work.DECODE)
    with pytest.raises(ValueError, match="allow more tokens"):
        StepClock(Counting(), capacity=10, step_tokens=8, most_running=8)


def test_the_prefix_used_longest_ago_goes_first_and_not_all_at_once() -> None:
    prefixes = Prefixes()
    for name in ("a", "b", "c"):
        prefixes.put(name, 100, 0)
    assert prefixes.take("a") == (100, 0)
    prefixes.put("a", 110, 1)
    prefixes.trim(250)
    assert [prefixes.of(name) for name in ("a", "b", "c")] == [110, 40, 100]
    prefixes.trim(120)
    assert [prefixes.of(name) for name in ("a", "b", "c")] == [110, 0, 10]
    assert len(prefixes) == 2
