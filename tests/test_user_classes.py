"""A user's classes around scripted parts, under virtual time: what they see and what they cost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import rollart as ra
from rollart.control.assembly import as_it_is, assemble
from rollart.control.controller import RunResult
from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.events import EngineUp, TrajectoryEnded, TurnEnded
from rollart.data.roles import GenerationRequest
from rollart.resource.placement import place
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.harness import scripted_job
from rollart.testing.parts import EventRecorder, ScriptedLauncher
from rollart.user_classes import (
    UserClasses,
    apply,
    generation_through,
    training_through,
)


class Scored(ra.Reward):
    def compute_rewards(self, trajectory: ra.Trajectory) -> float:
        return 1.0


class World(ra.Environment):
    @ra.hw_mapping({"lake": "arm"})
    def reset(self, task: ra.Task, seed: int) -> str:
        return "here"

    def step(self, action: str) -> ra.StepResult:
        return ra.StepResult(observation=ra.as_observation("there"), done=True)


class Hetero(ra.ActorGen):
    @ra.hw_mapping(hw_affinity={"lake": "H800", "default": "H20"})
    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        return await super().generate(request, tag_name)


class Shortening(Hetero):
    """Lets nobody say more than one token."""

    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        short = replace(request, call=replace(request.call, max_tokens=1))
        return await super().generate(short, tag_name)


class Stumbling(ra.ActorGen):
    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        if request.call.trajectory.member == 0:
            raise ValueError("tired")
        return await super().generate(request, tag_name)


class Mute(ra.ActorGen):
    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        await super().generate(request, tag_name)


class Astray(ra.ActorGen):
    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        return await super().generate(request, "elsewhere")


class Seeding(ra.ActorGen):
    """Asks with a seed of its own."""

    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        other = replace(request, call=replace(request.call, seed=7))
        return await super().generate(other, tag_name)


class Twice(ra.ActorGen):
    """Asks twice at once and takes the longer answer."""

    async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
        again = replace(request, call=replace(request.call, seed=request.call.seed + 1))
        answers = await asyncio.gather(
            super().generate(request, tag_name), super().generate(again, tag_name)
        )
        return max(answers, key=lambda answer: len(answer.completion.ids))


def changing(**changes: Any) -> type[ra.ActorGen]:
    class Changing(ra.ActorGen):
        async def generate(self, request: GenerationRequest, tag_name: str = "default") -> Any:
            changed = {
                key: change(getattr(request.call, key)) if callable(change) else change
                for key, change in changes.items()
            }
            return await super().generate(
                replace(request, call=replace(request.call, **changed)), tag_name
            )

    return Changing


def run(
    job: JobConfig, classes: UserClasses, pools: ra.ResourceManager
) -> tuple[RunResult, EventRecorder, ScriptedLauncher]:
    async def main() -> tuple[RunResult, EventRecorder, ScriptedLauncher]:
        events, fakes = EventRecorder(), ScriptedLauncher()
        launcher: Any = fakes
        if classes.actor_train is not None:
            launcher = training_through(classes.actor_train, fakes)
        applied = apply(classes, job)
        wrap = as_it_is if classes.actor_gen is None else generation_through(classes.actor_gen)
        controller = await assemble(
            applied.job,
            launcher,
            run_id="run",
            placement=place(applied.job, pools, applied.wishes),
            save_to=None,
            events=events,
            generate=wrap,
        )
        return await controller.run(), events, fakes

    return run_virtual(main)


def pools() -> ra.ResourceManager:
    return ra.ResourceManager({"H800": range(4), "H20": range(4, 8)})


TWO = [
    {"tag": "lake", "environment": "fakes:Lake"},
    {"tag": "pond", "environment": "fakes:Pond"},
]


def job(**changes: Any) -> JobConfig:
    return scripted_job(run__steps=3, rollout__engines=2, domains=TWO, **changes)


def test_generation_of_each_domain_goes_to_the_class_that_the_actor_declares() -> None:
    result, events, _ = run(job(), UserClasses(actor_gen=Hetero), pools())
    assert result.ok, result.reason
    hardware = {event.engine: event.hardware for event in events.of(EngineUp)}
    served = {
        (turn.trajectory.partition("/")[0], hardware[turn.engine]) for turn in events.of(TurnEnded)
    }
    assert served == {("lake", "H800"), ("pond", "H20")}


def test_a_lost_class_is_stood_in_for_by_the_other() -> None:
    async def main() -> set[tuple[str, str]]:
        events, fakes = EventRecorder(), ScriptedLauncher()
        applied = apply(UserClasses(actor_gen=Hetero), job(faults__attempts=1))
        controller = await assemble(
            applied.job,
            fakes,
            run_id="run",
            placement=place(applied.job, pools(), applied.wishes),
            save_to=None,
            events=events,
            generate=generation_through(Hetero),
        )

        def lose() -> None:
            next(one for one in fakes.engines if one.hardware == "H800").die("lost")

        asyncio.get_running_loop().call_later(1.0, lose)
        assert (await controller.run()).ok
        hardware = {event.engine: event.hardware for event in events.of(EngineUp)}
        return {
            (turn.trajectory.partition("/")[0], hardware[turn.engine])
            for turn in events.of(TurnEnded)
        }

    assert run_virtual(main) == {("lake", "H800"), ("lake", "H20"), ("pond", "H20")}


def test_what_generate_asks_for_is_what_the_engine_is_asked_for() -> None:
    _, events, _ = run(job(), UserClasses(actor_gen=Shortening), pools())
    assert {turn.sampled_tokens for turn in events.of(TurnEnded)} == {1}
    _, events, _ = run(job(), UserClasses(actor_gen=Hetero), pools())
    assert max(turn.sampled_tokens for turn in events.of(TurnEnded)) > 1


@pytest.mark.parametrize("kind", [Seeding, Twice])
def test_generate_may_choose_the_seed_and_ask_more_than_once(kind: type[ra.ActorGen]) -> None:
    result, events, _ = run(job(), UserClasses(actor_gen=kind), pools())
    assert result.ok, result.reason
    assert not [event.detail for event in events.of(TrajectoryEnded) if event.failure]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"temperature": 0.5},
            "temperature = 0.5 in request.call: training scores by the domain's",
        ),
        ({"prompt": lambda prompt: prompt[:1] + prompt}, "another prompt in request.call"),
        ({"prompt_tokens": lambda count: count - 1}, "another prompt in request.call"),
        ({"max_tokens": lambda most: most + 1}, "must be from 1 to the 64 asked for"),
        ({"max_tokens": 0}, "max_tokens = 0 in request.call"),
        ({"turn": 9}, "nobody asks for turn 9 of"),
    ],
)
def test_a_call_that_training_would_take_for_another_fails_its_trajectory(
    changes: dict[str, Any], told: str
) -> None:
    few: dict[str, Any] = {"faults__max_dead_groups": 2}
    result, events, fakes = run(job(**few), UserClasses(actor_gen=changing(**changes)), pools())
    assert not result.ok
    details = {event.detail for event in events.of(TrajectoryEnded)}
    assert details
    assert all(told in detail for detail in details), details
    assert not any(engine.log.dispatches for engine in fakes.engines), "nothing was sampled so"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Stumbling, "Stumbling.generate raised ValueError: tired"),
        (Mute, "Mute.generate returned NoneType; return what super().generate"),
        (Astray, "is of domain 'lake'; pass tag_name on as it came"),
    ],
)
def test_code_in_generate_that_fails_costs_its_trajectory_and_says_why(
    kind: type[ra.ActorGen], told: str
) -> None:
    changes: dict[str, Any] = {"faults__max_dead_groups": 5}
    result, events, _ = run(job(**changes), UserClasses(actor_gen=kind), pools())
    ended = events.of(TrajectoryEnded)
    details = {event.detail for event in ended if event.failure == "engine"}
    assert any(told in detail for detail in details), details
    if kind is Stumbling:
        assert any(not event.failure for event in ended), "the others went on"
    else:
        assert not result.ok


class Counting(ra.ActorTrain):
    seen: list[tuple[str, str, int]] = []  # noqa: RUF012 - shared on purpose: the run makes the instance

    @ra.register(mode="execute_all")
    @ra.hw_mapping(hw_affinity={"default": "H20"})
    async def train_step(self, batch: Any, tag_name: str = "default") -> Any:
        stats = await super().train_step(batch, tag_name)
        self.seen.append((self.worker, self.hardware, stats.version))
        return stats


class Idle(ra.ActorTrain):
    async def train_step(self, batch: Any, tag_name: str = "default") -> Any:
        return None


class Raising(ra.ActorTrain):
    async def train_step(self, batch: Any, tag_name: str = "default") -> Any:
        raise KeyError("weights")


def test_every_train_step_goes_through_the_actor_which_places_the_trainer() -> None:
    Counting.seen.clear()
    result, _, fakes = run(job(), UserClasses(actor_train=Counting), pools())
    assert result.ok
    assert Counting.seen == [("trainer", "H20", version) for version in (1, 2, 3)]
    assert len(fakes.trainers[0].batches) == 3


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Idle, "Idle.train_step must train once and return the statistics"),
        (Raising, "Raising.train_step raised KeyError: 'weights'"),
    ],
)
def test_a_train_step_that_does_not_train_ends_the_run_with_the_reason(
    kind: type[ra.ActorTrain], told: str
) -> None:
    result, _, _ = run(job(), UserClasses(actor_train=kind), pools())
    assert not result.ok
    assert told in result.reason


def test_reward_and_environment_classes_take_the_places_of_the_jobs_own() -> None:
    applied = apply(UserClasses(reward=Scored, environment={"lake": World}), job())
    assert [one.reward_places[0].rpartition(":")[2] for one in applied.job.domains] == [
        "Scored"
    ] * 2
    assert [one.environment.rpartition(":")[2] for one in applied.job.domains] == ["World", "Pond"]
    assert len(applied.folders) == 1
    assert applied.wishes.environments == {"lake": "arm"}


class Plain(ra.ActorGen):
    def generate(self, request: Any, tag_name: str = "default") -> Any:
        return None


class Narrow(ra.ActorGen):
    async def generate(self, request: Any) -> Any:
        return None


class Demanding(ra.ActorGen):
    def __init__(self, gpu: int) -> None: ...


class Hooked(ra.ActorGen):
    @ra.register_serverless("proxy", "local://a:b")
    async def generate(self, request: Any, tag_name: str = "default") -> Any:
        return None


class Tagged(ra.ActorTrain):
    @ra.hw_mapping({"lake": "H800"})
    async def train_step(self, batch: Any, tag_name: str = "default") -> Any:
        return None


class Bound(ra.Reward):
    @ra.hw_mapping({"default": "H20"})
    def compute_rewards(self, trajectory: Any) -> float:
        return 0.0


not_a_class: Any = 3


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (UserClasses(actor_gen=Plain), r"must not block it; write async def generate"),
        (UserClasses(actor_gen=Narrow), r'must take \(self, request, tag_name="default"\)'),
        (UserClasses(actor_gen=Demanding), "cannot be made without arguments: .*gpu"),
        (UserClasses(actor_gen=Hooked), "register_serverless is for a Reward, not for actor_gen"),
        (UserClasses(actor_gen=not_a_class), "must be a class derived from rollart.ActorGen"),
        (UserClasses(actor_train=Tagged), r'every domain in it; use \{"default": "H800"\}'),
        (UserClasses(reward=Bound), "hw_mapping is not supported for rewards yet"),
        (UserClasses(reward=World), "must be a class derived from rollart.Reward"),
        (UserClasses(reward={"sea": Scored}), r"reward\['sea'\]: no domain.*use lake, pond"),
        (UserClasses(environment={"lake": not_a_class}), "environment = 3: is no class"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_starts(
    classes: UserClasses, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        apply(classes, job())
