"""The trainer in a child: versions, weights in the store, and how its loss is told."""

import asyncio
import os
import signal

import numpy as np
import pytest

from rollart.core.errors import ConfigError, RollartError, TrainerLost
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import Binding
from rollart.core.tokens import VersionRuns
from rollart.core.types import (
    Group,
    Piece,
    Segment,
    Status,
    Task,
    TrainBatch,
    Trajectory,
    Verdict,
)
from rollart.runtimes.local.launcher import LocalLauncher, weights_root
from rollart.runtimes.local.trainer import LocalTrainer, TrainerLimits

pytestmark = pytest.mark.real

TASK = Task(domain="lake", key="0")
TRAINER = Binding(worker="trainer", hardware="local")


def own_logprobs(folder, prompt: list[int], sampled: list[int]) -> list[float]:
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(sampled)[:, None])
    return chosen[:, 0].tolist()


def trajectory(member: int, logprobs: list[float], *, policy: str = "agent") -> Trajectory:
    sampled = Piece(
        ids=np.array([9, 10, 11], np.int32),
        logprobs=np.array(logprobs, np.float32),
        versions=VersionRuns(((0, 3),)),
    )
    return Trajectory(
        id=TrajectoryId(run="r", domain="lake", task="0", group=1, member=member),
        policy=policy,
        task=TASK,
        segments=(Segment(pieces=(Piece(ids=np.array([5, 6, 7], np.int32)), sampled)),),
        turns=(),
        start_version=0,
        status=Status.FINISHED,
        verdict=Verdict(score=float(member)),
    )


def batch(logprobs: list[float], *, policy: str = "agent") -> TrainBatch:
    members = tuple(trajectory(member, logprobs, policy=policy) for member in range(2))
    group = Group(id=1, task=TASK, members=members, start_version=0)
    return TrainBatch(step=0, groups=(group,))


@pytest.fixture(scope="module")
def logprobs(tiny_model) -> list[float]:
    return own_logprobs(tiny_model, [5, 6, 7], [9, 10, 11])


def test_a_step_advances_the_version_and_publishing_makes_it_readable(
    stage, tiny_model, logprobs, tmp_path
):
    from rollart.backends.weights.shm import SharedMemoryWeightStore

    launcher: LocalLauncher = stage.launcher

    async def main():
        trainer = await launcher.trainer(TRAINER)
        assert trainer.version == PolicyVersion("agent", 0)
        gap = await trainer.score([trajectory(0, logprobs)], 1.0)
        assert gap.tokens == 3
        assert gap.maximum < 1e-4

        stats = await trainer.train_step(batch(logprobs))
        assert (stats.version, stats.trained_tokens) == (1, 6)
        assert trainer.version == PolicyVersion("agent", 1)
        for _ in range(5):
            assert await trainer.publish() == trainer.version
            await trainer.train_step(batch(logprobs))

        store = SharedMemoryWeightStore(weights_root(launcher.run_directory), launcher.run_id)
        kept = [version.number for version in store.versions() if version.policy == "agent"]
        assert kept == [3, 4, 5], "alpha + 2 versions are kept"
        store.close()

        with pytest.raises(RollartError, match="was sampled by policy 'other'"):
            await trainer.train_step(batch(logprobs, policy="other"))
        assert trainer.version.number == 6, "a refused batch changes nothing"

        await trainer.save(str(tmp_path / "weights"))
        assert own_logprobs(tmp_path / "weights", [5, 6, 7], [9, 10, 11]) != logprobs
        works = {one.work for one in stage.events.busy("trainer")}
        assert works == {"train", "publish", "score", "save"}
        await trainer.close()
        assert "was closed" in await trainer.wait_dead()

    stage.run(main())


def test_a_killed_trainer_is_lost_with_the_reason(stage, logprobs):
    async def main():
        trainer = await stage.launcher.trainer(TRAINER)
        os.kill(trainer.pid, signal.SIGSTOP)
        training = asyncio.create_task(trainer.train_step(batch(logprobs)))
        await asyncio.sleep(0.1)
        os.kill(trainer.pid, signal.SIGKILL)
        async with asyncio.timeout(3):
            with pytest.raises(TrainerLost, match="SIGKILL"):
                await training
            assert "SIGKILL" in await trainer.wait_dead()
        with pytest.raises(TrainerLost):
            await trainer.publish()
        await trainer.close()

    stage.run(main())


def test_a_step_over_its_deadline_ends_the_trainer(stage, logprobs):
    async def main():
        slow = await stage.launcher.trainer(TRAINER)
        os.kill(slow.pid, signal.SIGSTOP)
        trainer = LocalTrainer(
            slow.child,
            worker="trainer",
            policy="agent",
            limits=TrainerLimits(train_s=0.3, publish_s=1.0),
            on_busy=lambda interval: None,
        )
        with pytest.raises(TrainerLost, match=r"no answer to train_step within 0\.3 s"):
            await trainer.train_step(batch(logprobs))
        async with asyncio.timeout(3):
            await slow.wait_dead()
        await slow.close()

    stage.run(main())


def test_a_model_that_cannot_be_loaded_is_a_lost_trainer_with_the_last_words(
    job_table, tiny_model, tmp_path
):
    import shutil

    from rollart.core.jobfile import parse_job

    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")

    class Nobody:
        def emit(self, event: object) -> None: ...

    async def main(table):
        launcher = LocalLauncher(
            parse_job(table),
            run_id="broken-model",
            run_directory=tmp_path / "run",
            python_path=(),
            events=Nobody(),
        )
        try:
            with pytest.raises(TrainerLost, match=r"(?i)header"):
                await launcher.trainer(TRAINER)
        finally:
            await launcher.close()

    asyncio.run(main({**job_table, "model": {"path": str(broken), "context": 256}}))
    missing = {"path": str(tmp_path / "none"), "context": 256}
    with pytest.raises(ConfigError, match="no such directory"):
        asyncio.run(main({**job_table, "model": missing}))
