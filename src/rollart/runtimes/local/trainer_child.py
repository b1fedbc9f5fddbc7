"""The trainer's process: one command at a time, on one thread.

It blocks in torch; meanwhile its heartbeat goes on, and what it computes is told twice a second.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from rollart.core.config import TrainConfig
from rollart.core.events import Work
from rollart.process.serve import ChildPort, serve
from rollart.runtimes.local.busy import BusyLog
from rollart.runtimes.local.codec import (
    Packed,
    pack_gap,
    pack_stats,
    unpack_batch,
    unpack_trajectory,
)
from rollart.runtimes.local.torch_child import compute_on_one_thread, end_at_once

if TYPE_CHECKING:
    from rollart.backends.trainers.torch_trainer import TorchTrainer
    from rollart.backends.weights.shm import SharedMemoryWeightStore

ENTRY = "rollart.runtimes.local.trainer_child:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerChildConfig:
    """What a trainer is made of. `train` is the job's section; `keep` versions stay stored."""

    model: str
    weights: str
    run: str
    train: dict[str, Any]
    policy: str
    temperatures: dict[str, float]
    seed: int
    keep: int


def entry(port: ChildPort, config: Any) -> None:
    """Load the model, then serve until stopped."""
    from rollart.backends.trainers.torch_trainer import TorchTrainer
    from rollart.backends.weights.shm import SharedMemoryWeightStore

    settings = msgspec.convert(config, TrainerChildConfig)
    compute_on_one_thread()
    device = Device(port)
    trainer = TorchTrainer(
        settings.model,
        TrainConfig.model_validate(settings.train),
        policy=settings.policy,
        temperatures=settings.temperatures,
        seed=settings.seed,
        progress=device.progress,
    )
    trainer.load()
    store = SharedMemoryWeightStore(settings.weights, settings.run)
    serve(port, TrainerCommands(trainer, store, settings.keep, device).handlers)
    end_at_once()


class Device:
    """Tells the owner what this device is busy with, as it goes on."""

    def __init__(self, port: ChildPort) -> None:
        self._port = port
        self._busy = BusyLog()
        self._work = Work.TRAIN
        self._since = 0.0

    @contextmanager
    def on(self, work: Work) -> Iterator[None]:
        """Everything within is one kind of work."""
        self._work, self._since = work, time.monotonic()
        try:
            yield
        finally:
            self._note()
            self._port.event(self._busy.take())

    def progress(self, _work: str, _begin: float, _end: float) -> None:
        """Called by the trainer after each micro-batch."""
        self._note()
        if self._busy.due:
            self._port.event(self._busy.take())

    def _note(self) -> None:
        now = time.monotonic()
        self._busy.add(self._work.value, self._since, now)
        self._since = now


class TrainerCommands:
    """What the owner may ask."""

    def __init__(
        self, trainer: "TorchTrainer", store: "SharedMemoryWeightStore", keep: int, device: Device
    ) -> None:
        self._trainer = trainer
        self._store = store
        self._keep = keep
        self._device = device
        self.handlers: dict[str, Callable[..., Packed]] = {
            "train_step": self.train_step,
            "publish": self.publish,
            "score": self.score,
            "save": self.save,
        }

    def train_step(self, batch: Packed) -> Packed:
        with self._device.on(Work.TRAIN):
            return pack_stats(self._trainer.train_step(unpack_batch(batch)))

    def publish(self) -> int:
        """Commit the present version, then drop those that nobody may need any more."""
        with self._device.on(Work.PUBLISH):
            version = self._trainer.publish(self._store)
            self._store.collect(self._keep)
            return version.number

    def score(self, trajectories: list[Packed], temperature: float) -> Packed:
        with self._device.on(Work.SCORE):
            unpacked = [unpack_trajectory(packed) for packed in trajectories]
            return pack_gap(self._trainer.score(unpacked, temperature))

    def save(self, directory: str) -> None:
        with self._device.on(Work.SAVE):
            self._trainer.save(directory)
