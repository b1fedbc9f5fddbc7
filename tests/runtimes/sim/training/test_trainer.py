"""The modelled trainer: how long a step takes, what it says, and how it dies."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError, TrainerLost
from rollart.core.events import DeviceBusy, Work
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Trainer
from rollart.core.tokens import LengthOnly
from rollart.core.types import LogprobGap, Piece, Segment, TrainBatch
from rollart.runtimes.sim.hardware.catalogue import gpu
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.hardware.network import Network
from rollart.runtimes.sim.loop import run_virtual
from rollart.runtimes.sim.training.trainer import (
    MODELLED_FILE,
    ModelledTrainer,
    TrainerSettings,
    check_fits,
    train_seconds,
)
from rollart.runtimes.sim.training.weights import ModelledStore, WeightSettings
from rollart.testing.conformance import TrainerTrial, check_trainer
from rollart.testing.parts import EventRecorder
from rollart.testing.samples import sample_batch, sample_group

MODEL = model_shape("Qwen3-8B")
SETTINGS = TrainerSettings(gpu=gpu("H800"), gpus=32)


class Rig:
    """A trainer with its store and the events of both."""

    def __init__(
        self,
        kind: type[ModelledTrainer] = ModelledTrainer,
        weights: WeightSettings | None = None,
    ) -> None:
        self.events = EventRecorder()
        self.store = ModelledStore(
            model=MODEL, settings=weights or WeightSettings(), network=Network()
        )
        self.trainer = kind(
            worker="trainer",
            model=MODEL,
            settings=SETTINGS,
            store=self.store,
            events=self.events,
        )

    def busy(self) -> list[tuple[str, float, float]]:
        return [(event.work, event.begin, event.end) for event in self.events.of(DeviceBusy)]


def silent_batch(version: int) -> TrainBatch:
    group = sample_group(members=2, start=version)
    members = tuple(replace(m, verdict=group.members[0].verdict) for m in group.members)
    return TrainBatch(step=version, groups=(replace(group, members=members),))


def check(kind: type[ModelledTrainer], directory: Path) -> None:
    rigs: list[Rig] = []

    async def make() -> Trainer:
        rigs.append(Rig(kind))
        return rigs[-1].trainer

    def stored() -> tuple[PolicyVersion, ...]:
        return tuple(PolicyVersion("agent", number) for number in rigs[-1].store.versions())

    def kill(trainer: Trainer) -> None:
        rigs[-1].trainer.die("killed")

    trial = TrainerTrial(
        batch=sample_batch,
        silent=silent_batch,
        stored=stored,
        directory=str(directory),
        saved=lambda folder: (Path(folder) / MODELLED_FILE).is_file(),
        kill=kill,
        compares=False,
        patience_s=600.0,
    )
    run_virtual(lambda: check_trainer(make, trial))


def test_it_conforms_but_for_log_probs_that_it_does_not_have(tmp_path: Path) -> None:
    check(ModelledTrainer, tmp_path / "weights")


def test_it_compares_no_log_probs_since_it_has_none() -> None:
    async def main() -> LogprobGap:
        return await Rig().trainer.score(sample_batch().trajectories, 1.0)

    assert run_virtual(main) == LogprobGap(tokens=0, maximum=0.0, mean=0.0)


def test_a_step_takes_the_operations_of_its_tokens() -> None:
    """By hand: 10 N a token and attention, on 32 GPUs at .35 of their peak, and 50 s."""
    lengths = [26_000] * 128
    tokens = 128 * 26_000
    attention = 5 * 4 * 36 * 32 * 128 * tokens * 13_000
    by_hand = 50.0 + (10 * MODEL.parameters * tokens + attention) / (32 * 989.5e12 * 0.35)
    assert train_seconds(MODEL, SETTINGS, lengths) == pytest.approx(by_hand, rel=1e-12)
    assert by_hand == pytest.approx(0.231 * 365.7, rel=0.05)  # the paper's profile of SWE-bench


def test_each_setting_of_a_step_has_its_effect() -> None:
    lengths = [8000] * 64
    usual = train_seconds(MODEL, SETTINGS, lengths) - 50.0

    def seconds(**change: object) -> float:
        settings = replace(SETTINGS, **change)
        return train_seconds(MODEL, settings, lengths) - settings.fixed_s

    assert seconds(fixed_s=65.0) == pytest.approx(usual)
    assert seconds(gpus=64) == pytest.approx(usual / 2)
    assert seconds(mfu=0.7) == pytest.approx(usual / 2)
    assert seconds(recompute=False) == pytest.approx(usual * 4 / 5)
    assert seconds(logprob_passes=3) == pytest.approx(usual * 7 / 5)
    longer = train_seconds(MODEL, SETTINGS, [16_000] * 32) - 50.0
    assert longer > usual  # as many tokens, more attention


def test_of_a_mixture_of_experts_the_active_part_is_trained() -> None:
    sparse, dense = model_shape("Qwen3-30B-A3B"), model_shape("Qwen3-32B")
    lengths = [100] * 1000
    ratio = (train_seconds(dense, SETTINGS, lengths) - 50.0) / (
        train_seconds(sparse, SETTINGS, lengths) - 50.0
    )
    assert ratio == pytest.approx(dense.parameters / sparse.active_parameters, rel=0.02)


def test_blocks_without_content_are_enough() -> None:
    async def main() -> None:
        group = sample_group(members=2)
        segment = Segment(pieces=(Piece(ids=LengthOnly(26_000)),))
        members = tuple(replace(member, segments=(segment,) * 2) for member in group.members)
        batch = TrainBatch(step=0, groups=(replace(group, members=members),))
        stats = await Rig().trainer.train_step(batch)
        assert stats.input_tokens == 4 * 26_000
        expected = train_seconds(MODEL, SETTINGS, [26_000] * 4)
        assert asyncio.get_running_loop().time() == stats.seconds == pytest.approx(expected)

    run_virtual(main)


def test_its_work_is_told_as_busy_intervals() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.trainer.publish()
        pushed = asyncio.get_running_loop().time()
        await asyncio.sleep(10.0)
        stats = await rig.trainer.train_step(sample_batch())
        trained = pushed + 10.0, pushed + 10.0 + stats.seconds
        assert rig.busy() == [
            (Work.PUBLISH, 0.0, pytest.approx(pushed)),
            (Work.TRAIN, *map(pytest.approx, trained)),
        ]
        assert {(e.device, e.hardware) for e in rig.events.of(DeviceBusy)} == {("trainer", "H800")}

    run_virtual(main)


def test_a_blocking_push_is_told_when_the_update_makes_it() -> None:
    async def main() -> None:
        rig = Rig(weights=WeightSettings(mode="blocking"))
        await rig.trainer.publish()
        assert rig.busy() == []
        await asyncio.sleep(7.0)
        await rig.store.pulled("e0", 0)
        ((work, begin, end),) = rig.busy()
        assert (work, begin) == (Work.PUBLISH, 7.0)
        assert end - begin == pytest.approx(MODEL.weight_bytes / 0.5e9, rel=1e-3)

    run_virtual(main)


def test_death_ends_a_step_at_once_and_trains_nothing() -> None:
    async def main() -> None:
        rig = Rig()
        impatient = asyncio.ensure_future(rig.trainer.wait_dead())
        waiters = [asyncio.ensure_future(rig.trainer.wait_dead()) for _ in range(2)]
        step = asyncio.ensure_future(rig.trainer.train_step(sample_batch()))
        await asyncio.sleep(5.0)
        impatient.cancel()
        await asyncio.sleep(0.0)
        assert not any(waiter.done() for waiter in waiters)
        rig.trainer.die("power cut")
        rig.trainer.die("again")
        with pytest.raises(TrainerLost, match="power cut"):
            await step
        assert asyncio.get_running_loop().time() == 5.0
        assert [await waiter for waiter in waiters] == ["power cut", "power cut"]
        assert rig.trainer.version.number == 0
        await rig.trainer.close()

    run_virtual(main)


def test_death_ends_a_push_at_once_and_leaves_no_version() -> None:
    async def main() -> None:
        rig = Rig()
        push = asyncio.ensure_future(rig.trainer.publish())
        await asyncio.sleep(5.0)
        rig.trainer.die("power cut")
        with pytest.raises(TrainerLost, match="power cut"):
            await push
        assert asyncio.get_running_loop().time() == 5.0
        assert rig.store.versions() == ()
        for after in (rig.trainer.publish(), rig.trainer.train_step(sample_batch())):
            with pytest.raises(TrainerLost, match="power cut"):
                await after

    run_virtual(main)


def test_a_cancelled_step_trains_nothing_and_tells_what_it_worked() -> None:
    async def main() -> None:
        rig = Rig()
        step = asyncio.ensure_future(rig.trainer.train_step(sample_batch()))
        await asyncio.sleep(5.0)
        step.cancel()
        await asyncio.sleep(100.0)
        assert step.cancelled()
        assert rig.trainer.version.number == 0
        assert rig.busy() == [(Work.TRAIN, 0.0, 5.0)]

    run_virtual(main)


def test_a_model_that_cannot_be_trained_on_the_gpus_is_refused_with_how_many_it_takes() -> None:
    large = model_shape("Qwen3-235B-A22B")
    with pytest.raises(ConfigError, match=r"takes 3761 GB .* 32 H800 have 2560 GB; .* least 48"):
        check_fits(large, SETTINGS)
    check_fits(large, replace(SETTINGS, gpus=48))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 0}, "gpus = 0"),
        ({"mfu": 1.5}, r"mfu = 1\.5"),
        ({"mfu": 0.0}, r"mfu = 0\.0"),
        ({"fixed_s": -1.0}, r"fixed_s = -1\.0"),
        ({"logprob_passes": -1}, "logprob_passes = -1"),
    ],
)
def test_settings_that_no_trainer_can_have_are_refused(change, said) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(SETTINGS, **change)
