"""What later work stands on: blocks without content, policies of a protocol, seeds of a run."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rollart.control.assembly import ControlParts
from rollart.control.protocols import ProtocolPolicy
from rollart.control.scheduler import RolloutScheduler
from rollart.core.events import Disposed, StepTrained, TurnEnded
from rollart.core.identity import TrajectoryId, environment_seed, request_seed
from rollart.core.ports import Binding, DeltaSink, Engine, Rendered, Renderer
from rollart.core.tokens import LengthOnly, TokenBlock, join
from rollart.core.types import GenerateRequest, Message, TokenDelta
from rollart.testing.engine import ScriptedEngine
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.parts import PlainRenderer, ScriptedLauncher
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script


class LengthRenderer(PlainRenderer):
    """Renders to lengths."""

    async def open(self, messages: Sequence[Message]) -> Rendered:
        return Rendered(tokens=LengthOnly(5 * len(messages)))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return Rendered(tokens=LengthOnly(5 * len(messages)))


class LengthEngine(ScriptedEngine):
    """Samples lengths."""

    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        def bare(delta: TokenDelta) -> None:
            count = LengthOnly(len(delta.ids))
            sink(replace(delta, ids=count, logprobs=count))

        super().add(request, bare)


class LengthLauncher(ScriptedLauncher):
    async def engine(self, binding: Binding) -> Engine:
        engine = LengthEngine(binding.worker, self.script, hardware=binding.hardware)
        self.engines.append(engine)
        return engine

    async def renderer(self) -> Renderer:
        return LengthRenderer()


def test_control_runs_on_blocks_that_have_a_length_and_no_content() -> None:
    run = run_scripted(scripted_job(), launcher=LengthLauncher)
    assert run.result.ok, run.result.reason
    assert len(run.events.of(StepTrained)) == 5
    assert all(turn.sampled_tokens > 0 for turn in run.events.of(TurnEnded))
    assert [broken for broken in broken_promises(run) if not broken.startswith("tokens")] == []


def test_blocks_with_and_without_content_are_never_joined() -> None:
    ids = np.array([1, 2], np.int32)
    with pytest.raises(TypeError, match="cannot be joined"):
        join([ids, LengthOnly(3)])
    assert join([ids, LengthOnly(0)]) is ids
    assert len(join([LengthOnly(2), LengthOnly(3)])) == 5


class Lenient(RolloutScheduler):
    """A protocol that checks the start only."""

    def __init__(self, **parts: object) -> None:
        policy = ProtocolPolicy(name="start-only", alpha=0, overlap=True)
        super().__init__(**(parts | {"protocol": policy}))  # pyright: ignore[reportArgumentType]


def test_a_policy_without_aborts_ends_nothing_in_flight() -> None:
    slow = Script(seed=3, turns=(4, 8), step_s=(1.0, 3.0), train_s=(0.1, 0.2))
    strict = run_scripted(scripted_job(protocol__alpha=1), slow)
    aborted = [e for e in strict.events.of(Disposed) if e.reason.startswith("aborted")]
    assert aborted, "the script must make the strict protocol abort"
    lenient = run_scripted(
        scripted_job(protocol__alpha=1), slow, parts=ControlParts(scheduler=Lenient)
    )
    assert not [e for e in lenient.events.of(Disposed) if e.reason.startswith("aborted")]


def test_seeds_follow_the_runs_seed_and_not_its_name() -> None:
    one = TrajectoryId(run="a-1", domain="lake", task="t", group=1, member=0)
    other = replace(one, run="b-2")
    for seed_of in (
        lambda t, seed: request_seed(t, run_seed=seed, turn=0),
        lambda t, seed: environment_seed(t, run_seed=seed),
    ):
        assert seed_of(one, 7) == seed_of(other, 7)
        assert seed_of(one, 7) != seed_of(one, 8)
