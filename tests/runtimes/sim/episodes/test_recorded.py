"""A workload from a run's event log: what is resampled is what was recorded."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from rollart.core.errors import ConfigError
from rollart.core.events import (
    DeviceBusy,
    EnvironmentReset,
    Event,
    RunStarted,
    Stamped,
    TrajectoryEnded,
    TurnEnded,
)
from rollart.core.types import RequestCost
from rollart.observe.eventlog import EVENTS_FILE, EventLog
from rollart.runtimes.sim.episodes.recorded import RecordedDomain, gather, load_recorded
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world.file import parse_world
from rollart.testing.parts import EventRecorder
from rollart.testing.samples import every_event
from rollart.testing.worlds import TAG, small_job, small_table, small_world


def turn(
    name: str,
    number: int,
    *,
    prompt: int,
    answer: int,
    env_s: float,
    cached: int = 0,
    engine: str = "engine-0",
    versions: tuple[int, int] = (0, 0),
) -> Event:
    return TurnEnded(
        trajectory=name,
        turn=number,
        engine=engine,
        prompt_tokens=prompt,
        sampled_tokens=answer,
        cost=RequestCost(cached_tokens=cached),
        proxy_queued_s=0.0,
        env_s=env_s,
        first_version=versions[0],
        last_version=versions[1],
        versions=tuple((version, answer // 2) for version in versions),
        stop="stop",
        interruptions=0,
    )


def ended(name: str, turns: int, *, purpose: str = "train", status: str = "finished") -> Event:
    return TrajectoryEnded(
        trajectory=name,
        purpose=purpose,
        domain="lake",
        status=status,
        failure="",
        detail="",
        turns=turns,
        prompt_tokens=0,
        sampled_tokens=0,
        start_version=0,
        score=0.75,
        success=1.0,
        elapsed_s=1.0,
        reset_s=2.0,
        reward_s=0.5,
    )


LONG, SHORT, LOST, EVAL = "lake/a/g0.0.0", "lake/a/g0.1.0", "lake/b/g1.0.0", "eval:lake/h/g0.0.0"
EVENTS: list[Event] = [
    EnvironmentReset(trajectory=LONG, seconds=2.0, ok=True),
    EnvironmentReset(trajectory=SHORT, seconds=9.0, ok=True),
    EnvironmentReset(trajectory=LOST, seconds=50.0, ok=False),
    EnvironmentReset(trajectory=EVAL, seconds=1.0, ok=True),
    turn(LONG, 0, prompt=100, answer=10, env_s=0.1),
    turn(SHORT, 0, prompt=100, answer=500, env_s=7.0),
    turn(EVAL, 0, prompt=999, answer=999, env_s=99.0),
    turn(LONG, 1, prompt=130, answer=11, env_s=0.2, cached=55),
    turn(LONG, 2, prompt=156, answer=12, env_s=0.3, cached=70),
    ended(LONG, 3),
    ended(SHORT, 1),
    ended(LOST, 0, status="failed"),
    ended(EVAL, 1, purpose="eval"),
]
NAMES = [f"lake/task/g{number}.0.0" for number in range(400)]


def started() -> Event:
    return next(event for event in every_event() if isinstance(event, RunStarted))


def written(run: Path, events: list[Event]) -> Path:
    """The directory of a run with these events."""
    run.mkdir()
    log = EventLog(run / EVENTS_FILE)
    for one in stamped(events):
        log.append(one)
    log.close()
    return run


def stamped(events: list[Event]) -> list[Stamped]:
    return [
        Stamped(time=float(seq), seq=seq, incarnation=0, event=event)
        for seq, event in enumerate(events)
    ]


def domain() -> RecordedDomain:
    return RecordedDomain(gather(stamped(EVENTS))["lake"], seed=0)


def test_a_trajectory_takes_the_whole_shape_of_a_recorded_one() -> None:
    lake = domain()
    for name in NAMES:
        if lake.turns(name) == 3:
            assert [lake.observed(name, number) for number in (1, 2)] == [20, 15]
            assert [lake.step(name, number).seconds for number in (0, 1, 2)] == [0.1, 0.2, 0.3]
            assert lake.answered(name, 5) in (10, 11, 12)
        else:
            assert lake.turns(name) == 1
            assert lake.answered(name, 5) == 500
        assert lake.first("task") == 100
        assert lake.scoring(name).seconds == 0.5
        assert lake.succeeds(name)
    long = sum(lake.turns(name) == 3 for name in NAMES)
    assert 120 < long < 280


def test_resets_fail_as_often_as_they_did_and_cost_what_they_cost() -> None:
    resets = [domain().reset(name) for name in NAMES]
    assert {(span.seconds, span.fails) for span in resets} == {
        (2.0, False),
        (9.0, False),
        (50.0, True),
    }
    assert fmean(span.fails for span in resets) == pytest.approx(0.25, abs=0.07)


def test_the_prefix_cache_is_as_good_as_it_was() -> None:
    assert domain().prefix_hit == pytest.approx((55 + 70) / (110 + 141))


def test_what_an_update_flushed_or_another_engine_has_is_no_miss_of_the_prefix_cache() -> None:
    """The model of an engine misses there by itself."""
    events = [
        turn(LONG, 0, prompt=100, answer=10, env_s=0.1, versions=(0, 1)),
        turn(LONG, 1, prompt=130, answer=10, env_s=0.1, cached=88, versions=(1, 1)),
        turn(LONG, 2, prompt=150, answer=10, env_s=0.1, versions=(2, 2)),
        turn(LONG, 3, prompt=170, answer=10, env_s=0.1, versions=(2, 2), engine="engine-1"),
        turn(LONG, 4, prompt=190, answer=10, env_s=0.1, cached=90, versions=(2, 2)),
        turn(LONG, 5, prompt=210, answer=10, env_s=0.1, cached=200, versions=(2, 2)),
        ended(LONG, 6),
    ]
    assert gather(stamped(events))["lake"].prefix_hit == pytest.approx((88 + 200) / (110 + 200))


def test_a_directory_without_a_run_or_without_trajectories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recorded\.run = .*cannot be read"):
        load_recorded(tmp_path, seed=0)
    EventLog(tmp_path / EVENTS_FILE).close()
    with pytest.raises(ConfigError, match="holds no event"):
        load_recorded(tmp_path, seed=0)
    with pytest.raises(ConfigError, match="no trajectory of it ended"):
        load_recorded(written(tmp_path / "run", [started()]), seed=0)


def test_a_run_can_be_simulated_on_what_another_recorded(tmp_path: Path) -> None:
    first = EventRecorder()
    assert simulate(small_job(), small_world(), events=first).ok
    written(tmp_path / "run", [started(), *(event for _, event in first.events)])
    world = parse_world(small_table(domains={}, recorded={"run": str(tmp_path / "run")}))
    again = EventRecorder()
    assert simulate(small_job(), world, seed=9, events=again).ok

    def tokens(events: EventRecorder) -> float:
        return fmean(turn.sampled_tokens for turn in events.of(TurnEnded))

    assert tokens(again) == pytest.approx(tokens(first), rel=0.15)
    other = small_table(domains={}, recorded={"run": str(tmp_path / "run")})
    job = small_job(domains=[{"tag": "moon", "environment": "none:None"}])
    with pytest.raises(ConfigError, match=rf"domains\.moon: missing.*only {TAG}"):
        simulate(job, parse_world(other), events=EventRecorder())


def test_a_damaged_log_is_no_workload_and_of_a_part_of_one_it_is_said(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [started(), *EVENTS])
    (doubt,) = load_recorded(run, seed=0).doubts
    assert "no end" in doubt
    log = run / EVENTS_FILE
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:4], b"noise\n", *lines[4:]]))
    with pytest.raises(ConfigError, match=r"recorded\.run = .*line 5 is damaged"):
        load_recorded(run, seed=0)


def test_a_reward_takes_what_it_computed_and_not_what_it_queued() -> None:
    """Two verdicts asked for at 0 s of one GPU that takes 2 s for each: 2 s, and 4 s with queue."""

    def busy(begin: float, end: float) -> Event:
        return DeviceBusy(
            device="lake-rewards-0", hardware="H800", work="reward", begin=begin, end=end
        )

    first, second = (f"lake/a/g0.{member}.0" for member in range(2))
    told: list[tuple[float, Event]] = [
        (0.0, turn(first, 0, prompt=1, answer=1, env_s=0.0)),
        (0.0, turn(second, 0, prompt=1, answer=1, env_s=0.0)),
        (2.0, busy(0.0, 2.0)),
        (2.0, replace(ended(first, 1), reward_s=2.0)),
        (4.0, busy(2.0, 4.0)),
        (4.0, replace(ended(second, 1), reward_s=4.0)),
    ]
    log = [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(told)
    ]
    shapes = gather(log)["lake"].shapes
    assert [(shape.reward_s, shape.with_queue) for shape in shapes] == [(2.0, False)] * 2
    silent = [one for one in log if not isinstance(one.event, DeviceBusy)]
    shapes = gather(silent)["lake"].shapes
    assert [(shape.reward_s, shape.with_queue) for shape in shapes] == [(2.0, True), (4.0, True)]


def test_where_a_log_does_not_tell_a_queue_from_its_rewards_a_pool_gives_cause_to_doubt(
    tmp_path: Path,
) -> None:
    run = written(tmp_path / "run", [started(), *EVENTS])
    said = load_recorded(run, seed=0, pooled=["lake"]).doubts
    assert "of rewards of lake it says how long a verdict was waited for" in said[-1]
    assert len(said) == 1 + len(load_recorded(run, seed=0).doubts)


def test_a_recorded_reward_queue_is_not_queued_again(tmp_path: Path) -> None:
    rewards = {TAG: {"seconds": 2.0, "dedicated": {"hardware": "H800", "gpus": 1}}}
    pools = {**small_table()["pools"], "H800": small_table()["pools"].get("H800", 0) + 1}
    first = EventRecorder()
    world = parse_world(small_table(rewards=rewards, pools=pools))
    assert simulate(small_job(), world, events=first).ok
    waited = [one.reward_s for one in first.of(TrajectoryEnded) if one.score is not None]
    assert max(waited) > 2.5
    with_time = [Stamped(time=0.0, seq=0, incarnation=0, event=started())]
    with_time += [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(first.events, 1)
    ]
    found = gather(with_time)[TAG]
    assert {round(shape.reward_s, 6) for shape in found.shapes if shape.score is not None} == {2.0}
