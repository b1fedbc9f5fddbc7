"""Small logs, written by hand, of which everyone can say what each second was."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.core.events import (
    SCHEMA,
    Admitted,
    BatchTaken,
    Committed,
    CreditsReturned,
    DeviceBusy,
    DeviceReserved,
    Disposed,
    EngineAcknowledged,
    EngineDown,
    EngineUp,
    EnvironmentReset,
    Event,
    GroupReady,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RequestDropped,
    RunStarted,
    Stamped,
    TaskDrawn,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
    WorkerBound,
)
from rollart.core.types import Disposition, RequestCost
from rollart.observe.history import gather
from rollart.observe.idle import IdleAccount, account

WINDOW = (0.0, 10.0)


@dataclass
class Scene:
    """Ten seconds of training, told event by event; each helper gives times in seconds."""

    protocol: str = "rollart"
    told: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])

    def __post_init__(self) -> None:
        self.tell(
            -9.0,
            RunStarted(
                schema=SCHEMA, run="run", runtime="local", protocol=self.protocol, alpha=1, seed=0,
                steps=1, batch_groups=1, group_size=1, domains=("a",), config="",
            ),
        )  # fmt: skip

    def tell(self, time: float, event: Event) -> None:
        self.told.append((time, event))

    def engine(self, name: str = "e", hardware: str = "H20") -> None:
        self.tell(-5.0, EngineUp(engine=name, hardware=hardware))

    def busy(
        self, begin: float, end: float, device: str = "e", work: str = "decode", hardware: str = ""
    ) -> None:
        self.tell(
            end,
            DeviceBusy(device=device, hardware=hardware or "H20", work=work, begin=begin, end=end),
        )

    def reserve(self, device: str, begin: float, end: float | None = None) -> None:
        self.tell(
            begin if end is None else end,
            DeviceReserved(device=device, hardware="H20", begin=begin, end=end),
        )

    def phase(self, phase: Phase, begin: float, end: float) -> None:
        self.tell(begin, PhaseBegan(step=0, phase=phase))
        self.tell(end, PhaseEnded(step=0, phase=phase, seconds=end - begin, ok=True))

    def admit(self, time: float, group: int, *, outstanding: int = 1, capacity: int = 1) -> None:
        self.tell(
            time,
            Admitted(
                group=group, domain="a", task="t", requeued=False,
                outstanding=outstanding, capacity=capacity,
            ),
        )  # fmt: skip

    def start(self, time: float, name: str, group: int = 0, domain: str = "a") -> None:
        self.tell(
            time,
            TrajectoryStarted(
                trajectory=name, purpose="train", domain=domain, task="t", group=group,
                member=0, attempt=0,
            ),
        )  # fmt: skip
        self.tell(time, EnvironmentReset(trajectory=name, seconds=0.0, ok=True))

    def turn(
        self, name: str, asked: float, answered: float, until: float, engine: str = "e"
    ) -> None:
        """Asked and answered by the engine, and then a step that lasts until `until`."""
        self.tell(
            until,
            TurnEnded(
                trajectory=name, turn=0, engine=engine, prompt_tokens=1, sampled_tokens=10,
                cost=RequestCost(), proxy_queued_s=0.0, env_s=until - answered, first_version=0,
                last_version=0, versions=((0, 10),), stop="stop", interruptions=0,
                asked_at=asked, answered_at=answered,
            ),
        )  # fmt: skip

    def end(self, time: float, name: str, reward_s: float = 0.0) -> None:
        self.tell(
            time,
            TrajectoryEnded(
                trajectory=name, purpose="train", domain="a", status="finished", failure="",
                detail="", turns=1, prompt_tokens=1, sampled_tokens=10, start_version=0, score=1.0,
                success=None, elapsed_s=1.0, reset_s=0.0, reward_s=reward_s,
            ),
        )  # fmt: skip

    def leave(self, time: float, name: str, group: int, how: Disposition) -> None:
        self.tell(
            time,
            Disposed(
                trajectory=name, domain="a", group=group, disposition=how, reason="",
                start_version=0, elapsed_s=1.0, censored=False,
            ),
        )  # fmt: skip

    def ready(self, time: float, group: int, members: int = 1) -> None:
        self.tell(time, GroupReady(group=group, domain="a", members=members, start_version=0))

    def batch(self, time: float, groups: int = 1, trajectories: int = 1) -> None:
        self.tell(
            time,
            BatchTaken(
                step=0, groups=groups, trajectories=trajectories, tokens=1, start_lag_max=0,
                score_mean=None, success_mean=None,
            ),
        )  # fmt: skip

    def credits(self, time: float, *, outstanding: int, capacity: int) -> None:
        self.tell(time, CreditsReturned(groups=1, outstanding=outstanding, capacity=capacity))

    def account(self, window: tuple[float, float] = WINDOW) -> IdleAccount:
        ordered = sorted(self.told, key=lambda one: one[0])
        history = gather(
            Stamped(time=time, seq=seq, incarnation=0, event=event)
            for seq, (time, event) in enumerate(ordered)
        )
        return account(history.idle, history.busy, window)

    def shares(self, device: str = "e") -> dict[str, Any]:
        """The shares of one device that are not 0."""
        found = next(one for one in self.account().devices if one.device == device)
        assert math.fsum(share for _, share in found.shares) == pytest.approx(1.0, abs=1e-12)
        return {name: pytest.approx(share) for name, share in found.shares if share > 1e-12}


# -- engines -------------------------------------------------------------------------------------


def test_an_engine_waits_for_the_environments_of_its_trajectories() -> None:
    scene = Scene()
    scene.engine()
    scene.phase(Phase.GET_BATCH, -1.0, 11.0)
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.turn("x", 0.0, 2.0, until=6.0)
    scene.turn("x", 6.0, 10.0, until=12.0)
    scene.busy(0.0, 2.0)
    scene.busy(6.0, 10.0)
    assert scene.shares() == {"busy": 0.6, "environment": 0.4}


def test_an_engine_waits_for_a_reset() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.tell(-1.0, TrajectoryStarted(
        trajectory="x", purpose="train", domain="a", task="t", group=0, member=0, attempt=0,
    ))  # fmt: skip
    scene.tell(7.0, EnvironmentReset(trajectory="x", seconds=8.0, ok=True))
    scene.turn("x", 7.0, 10.0, until=11.0)
    scene.busy(7.0, 10.0)
    assert scene.shares() == {"busy": 0.3, "environment": 0.7}


def test_an_engine_waits_for_verdicts_once_everything_is_generated() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.turn("x", 0.0, 2.0, until=2.0)
    scene.end(10.0, "x", reward_s=8.0)
    scene.busy(0.0, 2.0)
    assert scene.shares() == {"busy": 0.2, "reward": 0.8}


def test_an_engine_waits_for_stragglers_of_other_engines() -> None:
    scene = Scene()
    scene.engine("e")
    scene.engine("f")
    scene.phase(Phase.GET_BATCH, -1.0, 11.0)
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.start(-1.0, "y")
    scene.turn("x", 0.0, 2.0, until=2.0)
    scene.end(2.0, "x")
    scene.turn("y", 0.0, 10.0, until=10.0, engine="f")
    scene.busy(0.0, 2.0, "e")
    scene.busy(0.0, 10.0, "f")
    assert scene.shares("e") == {"busy": 0.2, "straggler": 0.8}
    assert scene.shares("f") == {"busy": 1.0}


def test_an_engine_whose_own_trajectories_are_at_their_environments_waits_for_those() -> None:
    scene = Scene()
    scene.engine("e")
    scene.engine("f")
    scene.admit(-1.0, 0)
    for name in ("x", "y", "z"):
        scene.start(-1.0, name)
    scene.turn("x", 0.0, 2.0, until=11.0, engine="e")
    scene.turn("y", 0.0, 10.0, until=10.0, engine="f")
    scene.turn("z", 0.0, 10.0, until=10.0, engine="f")
    scene.busy(0.0, 2.0, "e")
    scene.busy(0.0, 10.0, "f")
    assert scene.shares("e") == {"busy": 0.2, "environment": 0.8}


def test_suspension_is_weight_sync_and_a_synchronous_train_step_in_it_is_admission() -> None:
    scene = Scene(protocol="sync_plus")
    scene.engine()
    scene.busy(0.0, 4.0)
    scene.phase(Phase.SUSPEND, 4.0, 4.5)
    scene.phase(Phase.TRAIN_STEP, 5.0, 8.0)
    scene.phase(Phase.UPDATE, 8.0, 9.0)
    scene.busy(8.0, 8.5, work="update")
    scene.phase(Phase.RESUME, 9.0, 9.5)
    scene.busy(9.5, 10.0)
    assert scene.shares() == {"busy": 0.45, "weight_sync": 0.25, "admission": 0.3}


def test_groups_that_wait_for_a_trainer_at_work_hold_the_engines_back() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.phase(Phase.TRAIN_STEP, -1.0, 11.0)
    scene.turn("x", 0.0, 2.0, until=2.0)
    scene.end(2.0, "x")
    scene.ready(2.0, 0)
    scene.busy(0.0, 2.0)
    assert scene.shares() == {"busy": 0.2, "admission": 0.8}


def test_what_was_aborted_as_stale_leaves_engines_without_work_until_its_credits_return() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-2.0, 0, outstanding=1, capacity=2)
    scene.admit(-2.0, 1, outstanding=2, capacity=2)
    scene.ready(-1.0, 0)
    scene.batch(1.0)
    for name in ("x", "y", "z"):
        scene.start(-1.0, name, group=1)
        scene.tell(
            2.0,
            RequestDropped(
                request=f"run/{name}/t0#1", engine="e", prompt_tokens=1, sampled_tokens=5,
                asked_at=0.0,
            ),
        )  # fmt: skip
        scene.leave(2.0, name, 1, Disposition.STALE)
    scene.credits(8.0, outstanding=0, capacity=2)
    scene.busy(0.0, 2.0)
    assert scene.shares() == {"busy": 0.2, "staleness_drop": 0.6, "no_work": 0.2}


def test_free_places_without_a_task_are_no_work_and_with_one_that_waits_admission() -> None:
    scene = Scene()
    scene.engine()
    scene.busy(0.0, 2.0)
    scene.credits(-1.0, outstanding=0, capacity=2)
    assert scene.shares() == {"busy": 0.2, "no_work": 0.8}
    scene.tell(5.0, TaskDrawn(domain="a", task="t"))
    assert scene.shares() == {"busy": 0.2, "no_work": 0.3, "admission": 0.5}


def test_an_engine_that_died_is_down_and_then_catches_up() -> None:
    scene = Scene()
    scene.engine()
    scene.tell(-4.0, EngineAcknowledged(engine="e", version=0, seconds=0.1))
    scene.tell(-4.0, Committed(version=0))
    scene.busy(0.0, 3.0)
    scene.tell(3.0, EngineDown(engine="e", reason="killed", moved_requests=0))
    scene.tell(6.0, EngineUp(engine="e", hardware="H20"))
    scene.tell(8.0, EngineAcknowledged(engine="e", version=0, seconds=0.1))
    scene.busy(8.0, 10.0)
    assert scene.shares() == {"busy": 0.5, "down": 0.3, "weight_sync": 0.2}


def test_an_engine_left_behind_by_a_commit_waits_for_its_weights() -> None:
    scene = Scene()
    scene.engine()
    scene.tell(2.0, Committed(version=1))
    scene.tell(5.0, EngineAcknowledged(engine="e", version=1, seconds=3.0))
    scene.busy(0.0, 2.0)
    scene.busy(5.0, 10.0)
    assert scene.shares() == {"busy": 0.7, "weight_sync": 0.3}


def test_requests_that_an_engine_holds_and_says_nothing_of_are_unknown() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.turn("x", 0.0, 10.0, until=10.0)
    scene.busy(0.0, 6.0)
    assert scene.shares() == {"busy": 0.6, "unknown": 0.4}


def test_parts_of_a_prefill_decode_group_have_no_work_while_the_other_has_it() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.turn("x", 0.0, 9.0, until=11.0)
    scene.busy(0.0, 3.0, "e/prefill", "prefill")
    scene.busy(3.0, 9.0, "e/decode")
    assert scene.shares("e/prefill") == {"busy": 0.3, "no_work": 0.6, "environment": 0.1}
    assert scene.shares("e/decode") == {"busy": 0.6, "no_work": 0.3, "environment": 0.1}


def test_an_engine_waits_for_trajectories_of_domains_that_its_class_serves() -> None:
    scene = Scene()
    scene.engine("e", "H800")
    scene.engine("f", "H20")
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x", domain="a")
    scene.start(-1.0, "y", domain="b")
    scene.turn("x", 0.0, 2.0, until=3.0, engine="e")
    scene.end(3.0, "x")
    scene.turn("y", 0.0, 6.0, until=11.0, engine="f")
    scene.busy(0.0, 2.0, "e", hardware="H800")
    scene.busy(0.0, 6.0, "f", hardware="H20")
    # From 3 s on, what is left for `e` is to wait for the other class's trajectories.
    assert scene.shares("e") == {"busy": 0.2, "environment": 0.5, "straggler": 0.3}
    assert scene.shares("f") == {"busy": 0.6, "environment": 0.4}


def test_an_engine_does_not_wait_for_other_domains_while_its_own_has_something_under_way() -> None:
    scene = Scene()
    scene.engine("e", "H800")
    scene.engine("f", "H20")
    scene.admit(-1.0, 0)
    for name, domain in (("x", "a"), ("y", "b"), ("z", "b")):
        scene.start(-1.0, name, domain=domain)
    scene.turn("x", 0.0, 2.0, until=2.0, engine="e")
    scene.end(11.0, "x", reward_s=9.0)
    for name in ("y", "z"):
        scene.turn(name, 0.0, 1.0, until=11.0, engine="f")
    scene.busy(0.0, 2.0, "e", hardware="H800")
    scene.busy(0.0, 1.0, "f", hardware="H20")
    assert scene.shares("e") == {"busy": 0.2, "reward": 0.8}
    assert scene.shares("f") == {"busy": 0.1, "environment": 0.9}


# -- trainers ------------------------------------------------------------------------------------


def waited_for(scene: Scene, groups: int = 1) -> dict[str, Any]:
    """The shares of a trainer that got a batch at 10 s and had asked for it at 0 s."""
    scene.phase(Phase.GET_BATCH, 0.0, 10.0)
    scene.batch(10.0, groups=groups, trajectories=groups)
    scene.busy(10.0, 11.0, "t", "train")
    return scene.shares("t")


def test_a_trainer_waits_for_what_the_last_trajectory_of_the_last_group_did() -> None:
    scene = Scene()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.start(-1.0, "y")
    scene.turn("x", 0.0, 2.0, until=3.0)
    scene.end(3.0, "x")
    scene.turn("y", 0.0, 2.0, until=4.0)
    scene.turn("y", 4.0, 8.0, until=8.0)
    scene.end(10.0, "y", reward_s=2.0)
    scene.ready(10.0, 0, members=2)
    assert waited_for(scene) == {
        "buffer_wait": 0.2, "environment": 0.2, "straggler": 0.4, "reward": 0.2,
    }  # fmt: skip


def test_a_trainer_waits_for_tasks_where_a_credit_was_free() -> None:
    scene = Scene()
    scene.credits(1.0, outstanding=0, capacity=1)
    scene.admit(5.0, 0)
    scene.start(5.0, "x")
    scene.turn("x", 5.0, 10.0, until=10.0)
    scene.end(10.0, "x")
    scene.ready(10.0, 0)
    assert waited_for(scene) == {"buffer_wait": 0.6, "no_work": 0.4}


def test_ready_groups_that_left_as_stale_are_what_the_batch_lacks() -> None:
    scene = Scene()
    for group, name in ((0, "x"), (1, "y"), (2, "z")):
        scene.admit(-3.0, group)
        scene.start(-3.0, name, group=group)
    scene.turn("x", -3.0, -2.0, until=-2.0)
    scene.end(-2.0, "x")
    scene.ready(-2.0, 0)
    scene.leave(-1.0, "x", 0, Disposition.STALE)
    for name, group, at in (("y", 1, 4.0), ("z", 2, 10.0)):
        scene.turn(name, -3.0, at, until=at)
        scene.end(at, name)
        scene.ready(at, group)
    # With the one that left, `y` would have made two at 4 s.
    assert waited_for(scene, groups=2) == {"buffer_wait": 0.4, "staleness_drop": 0.6}


def test_a_batch_on_its_way_is_buffer_wait_and_a_silent_trainer_unknown() -> None:
    scene = Scene()
    scene.phase(Phase.TRAIN_STEP, 0.0, 8.0)
    scene.busy(2.0, 7.0, "t", "train")
    scene.phase(Phase.PUBLISH, 8.0, 10.0)
    scene.busy(8.0, 9.0, "t", "publish")
    assert scene.shares("t") == {
        "buffer_wait": 0.2, "busy": 0.5, "unknown": 0.1, "weight_sync": 0.2,
    }  # fmt: skip


def test_a_trainer_waits_for_aborts_an_evaluation_and_the_update() -> None:
    scene = Scene()
    scene.busy(-1.0, 0.0, "t", "train")
    scene.phase(Phase.ABORT_STALE, 0.0, 1.0)
    scene.phase(Phase.SUSPEND, 3.0, 4.0)
    scene.phase(Phase.UPDATE, 4.0, 6.0)
    scene.phase(Phase.RESUME, 6.0, 7.0)
    scene.busy(7.0, 10.0, "t", "train")
    assert scene.shares("t") == {"staleness_drop": 0.1, "weight_sync": 0.6, "busy": 0.3}


# -- rewards, waste, classes ---------------------------------------------------------------------


def test_a_rewards_device_waits_for_something_to_score() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    scene.start(-1.0, "x")
    scene.turn("x", 0.0, 4.0, until=6.0)
    scene.end(10.0, "x", reward_s=4.0)
    scene.busy(0.0, 4.0)
    scene.busy(7.0, 10.0, "judge", "reward")
    assert scene.shares("judge") == {
        "no_work": 0.4, "environment": 0.2, "reward": 0.1, "busy": 0.3,
    }  # fmt: skip
    scene.busy(6.0, 9.0, "other", "reward")
    assert scene.shares("other") == {"no_work": 0.5, "environment": 0.2, "busy": 0.3}


def test_an_instance_has_its_account_over_the_time_for_which_it_was_there() -> None:
    scene = Scene()
    scene.engine()
    scene.busy(0.0, 8.0)
    scene.busy(3.0, 4.0, "judge-0", "reward")
    scene.reserve("judge-0", 2.0)
    scene.reserve("judge-0", 2.0, 6.0)
    scene.busy(5.0, 8.0, "judge-1", "reward")
    scene.reserve("judge-1", 4.0)
    found = {one.device: one for one in scene.account().devices}
    assert set(found) == {"e", "judge-0", "judge-1"}
    assert found["judge-0"].seconds == pytest.approx(4.0)
    assert dict(found["judge-0"].shares)["busy"] == pytest.approx(0.25)
    assert found["judge-1"].seconds == pytest.approx(6.0)  # it never went
    assert dict(found["judge-1"].shares)["busy"] == pytest.approx(0.5)
    assert found["e"].seconds == pytest.approx(10.0)


def test_a_device_that_is_there_and_never_works_has_an_account_all_the_same() -> None:
    scene = Scene()
    scene.engine()
    scene.busy(0.0, 8.0)
    scene.busy(3.0, 4.0, "judge-0", "reward")
    scene.reserve("judge-0", -5.0)
    scene.reserve("judge-1", -5.0)
    scene.reserve("judge-2", -5.0, -1.0)
    found = {one.device: one for one in scene.account().devices}
    assert set(found) == {"e", "judge-0", "judge-1"}
    assert found["judge-1"].seconds == pytest.approx(10.0)
    assert dict(found["judge-1"].shares)["busy"] == 0.0
    (judges,) = (one for one in scene.account().classes if one.role == "reward")
    assert (judges.devices, judges.slots) == (2, 2)
    assert dict(judges.shares)["busy"] == pytest.approx(0.05)


def test_generation_that_was_thrown_away_stands_apart_from_idle_time() -> None:
    scene = Scene()
    scene.engine()
    scene.admit(-1.0, 0)
    for name, how in (("x", Disposition.STALE), ("y", Disposition.TRAINED)):
        scene.start(-1.0, name)
        scene.turn(name, 0.0, 8.0, until=8.0)
        scene.end(8.0, name)
        scene.leave(9.0, name, 0, how)
    scene.busy(0.0, 8.0)
    (device,) = scene.account().devices
    assert dict(device.shares)["busy"] == pytest.approx(0.8)
    assert dict(device.wasted) == {"stale": pytest.approx(0.4)}


def test_classes_are_means_over_slots() -> None:
    scene = Scene()
    for name, slots, until in (("e", 1, 10.0), ("f", 3, 2.0)):
        scene.tell(
            -6.0,
            WorkerBound(
                worker=name, role="generation", pool="p", hardware="H20",
                slots=tuple(range(slots)), wanted="", reason="",
            ),
        )  # fmt: skip
        scene.engine(name)
        scene.busy(0.0, until, name)
    (found,) = scene.account().classes
    assert (found.hardware, found.role, found.devices, found.slots) == ("H20", "engine", 2, 4)
    assert dict(found.shares)["busy"] == pytest.approx((1.0 + 3 * 0.2) / 4)


def test_an_engine_that_never_works_has_an_account_if_others_say_when_they_do() -> None:
    scene = Scene()
    scene.engine("e")
    scene.engine("f")
    assert scene.account().devices == ()
    scene.busy(0.0, 1.0, "e")
    assert [one.device for one in scene.account().devices] == ["e", "f"]
    assert "busy" not in scene.shares("f")


# -- whatever happens ----------------------------------------------------------------------------


def anything() -> st.SearchStrategy[list[tuple[str, tuple[Any, ...]]]]:
    """Calls on a scene in any order and at any time, also what no run would do."""
    time = st.integers(-4, 14).map(lambda half: half / 2)
    name, device = st.sampled_from("xyz"), st.sampled_from(("e", "f", "t", "e/part"))
    group, few = st.integers(0, 2), st.integers(1, 3)
    phase = st.sampled_from(list(Phase))
    how = st.sampled_from(list(Disposition))
    work = st.sampled_from(("decode", "update", "train", "publish", "score"))
    return st.lists(
        st.one_of(
            st.tuples(st.just("busy"), st.tuples(time, time, device, work)),
            st.tuples(st.just("phase"), st.tuples(phase, time, time)),
            st.tuples(st.just("admit"), st.tuples(time, group)),
            st.tuples(st.just("start"), st.tuples(time, name, group)),
            st.tuples(st.just("turn"), st.tuples(name, time, time, time, st.sampled_from("ef"))),
            st.tuples(st.just("end"), st.tuples(time, name, time)),
            st.tuples(st.just("leave"), st.tuples(time, name, group, how)),
            st.tuples(st.just("ready"), st.tuples(time, group, few)),
            st.tuples(st.just("batch"), st.tuples(time, few, few)),
        ),
        max_size=30,
    )


@settings(max_examples=150, deadline=None)
@given(calls=anything(), protocol=st.sampled_from(("rollart", "sync")))
def test_shares_add_up_to_one_and_none_is_negative_whatever_a_log_says(
    calls: list[tuple[str, tuple[Any, ...]]], protocol: str
) -> None:
    scene = Scene(protocol=protocol)
    scene.engine("e")
    scene.engine("f")
    for call, arguments in calls:
        getattr(scene, call)(*arguments)
    for device in scene.account().devices:
        assert math.fsum(share for _, share in device.shares) == pytest.approx(1.0, abs=1e-12)
        assert min(share for _, share in device.shares) >= -1e-12
