"""The launcher of a simulation, its renderer and its tasks against their ports' suites."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from rollart.core.errors import WorkerFailed
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, ClassPath, Engine, Launcher, Rendered, Renderer, TaskSource
from rollart.core.tokens import TokenBlock
from rollart.core.types import GenerateRequest, Message, TokenDelta
from rollart.runtimes.sim.engines.engine import ModelledEngine
from rollart.runtimes.sim.episodes.renderer import LengthRenderer, length_of, shown
from rollart.runtimes.sim.episodes.tasks import NumberedTasks
from rollart.runtimes.sim.launcher import SimLauncher
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.workers import start_worker
from rollart.testing.conformance import (
    LauncherTrial,
    RendererTrial,
    TaskSourceTrial,
    check_inventory,
    check_launcher,
    check_renderer,
    check_task_source,
)
from rollart.testing.parts import EventRecorder
from rollart.testing.workers import PARROT
from rollart.testing.worlds import TAG, small_job, small_world

TRAINER = Binding(worker="trainer", hardware="H800")
GROUP = {"prefill": {"hardware": "H800"}, "decode": {"hardware": "H20", "count": 3}}


def kill(engine: Engine) -> None:
    assert isinstance(engine, ModelledEngine)
    engine.die("as told")


@pytest.mark.parametrize("grouped", [False, True])
def test_the_launcher_conforms(grouped: bool) -> None:
    kind = "pd" if grouped else "H20"
    job = small_job(rollout__engines={kind: 2}, rollout__affinity={})
    world = small_world(engines={"pd": GROUP} if grouped else {"H20": {}})

    async def make() -> Launcher:
        return SimLauncher(job, world, events=EventRecorder())

    engines = tuple(Binding(worker=f"engine-{number}", hardware=kind) for number in range(2))
    trial = LauncherTrial(engines=engines, trainer=TRAINER, domain=TAG, kill=kill)
    run_virtual(lambda: check_launcher(make, trial))


def test_the_launcher_says_what_gpus_there_are() -> None:
    async def make() -> SimLauncher:
        return SimLauncher(small_job(), small_world(pools__H800=16), events=EventRecorder())

    async def main() -> None:
        await check_inventory(make)
        pools = await (await make()).pools()
        assert [(pool.name, pool.slots, pool.free) for pool in pools] == [
            ("H800", 16, 6),
            ("H20", 6, 0),
        ]

    run_virtual(main)


@pytest.mark.parametrize("count", [None, 5])
def test_tasks_conform(count: int | None) -> None:
    async def make() -> TaskSource:
        return NumberedTasks(TAG, count)

    run_virtual(lambda: check_task_source(make, TaskSourceTrial(domain=TAG, count=count)))


class Filled:
    """The renderer with some content in its blocks, for a suite that looks at ids."""

    def __init__(self) -> None:
        self._renderer = LengthRenderer()

    async def open(self, messages: Sequence[Message]) -> Rendered:
        return filled(await self._renderer.open(messages))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        return filled(await self._renderer.extend(history, sampled, messages))

    async def parse(self, sampled: TokenBlock) -> Message:
        return await self._renderer.parse(sampled)


def filled(rendered: Rendered) -> Rendered:
    return Rendered(tokens=np.ones(len(rendered.tokens), np.int32), restarts=rendered.restarts)


def test_the_renderer_conforms_but_for_the_content_that_its_blocks_do_not_have() -> None:
    async def make() -> Renderer:
        return Filled()

    trial = RendererTrial(sampled=np.arange(7, dtype=np.int32))
    run_virtual(lambda: check_renderer(make, trial))


def test_a_message_is_as_long_as_it_says() -> None:
    assert length_of(Message(role="user", content=shown(450))) == 450
    assert length_of(Message(role="user", content=shown(0))) == 1
    assert length_of(Message(role="user", content="Where are you?")) == 4


def test_an_engine_comes_up_again_on_a_binding_with_the_same_workload_and_store() -> None:
    async def main() -> None:
        launcher = SimLauncher(small_job(), small_world(), events=EventRecorder())
        trainer = await launcher.trainer(TRAINER)
        await trainer.publish()
        answers: list[int] = []
        for _ in range(2):
            engine = await launcher.engine(Binding(worker="engine-0", hardware="H20"))
            await engine.pause()
            await engine.update(PolicyVersion("agent", 0))
            await engine.resume()
            answers.append(await answered(engine))
            kill(engine)
        assert answers[0] == answers[1]
        await launcher.close()

    run_virtual(main)


async def answered(engine: Engine) -> int:
    """How many tokens the engine answers a request with."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tokens = 0

    def sink(delta: TokenDelta) -> None:
        nonlocal tokens
        tokens += len(delta.ids)
        if delta.finish is not None:
            over.set_result(None)

    engine.add(
        GenerateRequest(
            id="r",
            session=f"sim/{TAG}/task-0/g0.0.0",
            prompt=(np.ones(100, np.int32),),
            max_tokens=400,
            temperature=1.0,
            seed=11,
        ),
        sink,
    )
    await over
    return tokens


def test_a_worker_that_cannot_be_made_is_named() -> None:
    async def main() -> None:
        place = Binding(worker="parrot-0", hardware="green")
        with pytest.raises(WorkerFailed, match=r"parrot-0: .* cannot be made: ModuleNotFound"):
            start_worker(place, ClassPath(path="no_such_module:Parrot"), {})
        with pytest.raises(WorkerFailed, match="cannot be made: TypeError"):
            start_worker(place, PARROT, {"no_such_option": 1})

    run_virtual(main)
