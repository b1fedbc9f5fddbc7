"""The trainer of a simulation: a train step takes as long as its operations do.

It has no weights. Its version counts steps; publishing pushes as many bytes as the model weighs.
Invariant: the version changes at the end of a step and not at all when the trainer dies within it.
Who waits: the caller of a step for a timer, of `publish` for the store's slow link; death ends both
waits at once. What it did is told as `DeviceBusy`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart.core.errors import ConfigError, TrainerLost, WeightsMissing
from rollart.core.events import DeviceBusy, Work
from rollart.core.identity import PolicyVersion
from rollart.core.ports import EventSink
from rollart.core.types import Group, LogprobGap, TrainBatch, TrainStats, Trajectory, scores_equal
from rollart.runtimes.sim.hardware.catalogue import GpuClass
from rollart.runtimes.sim.hardware.model_shape import ModelShape
from rollart.runtimes.sim.training.weights import ModelledStore

MODELLED_FILE = "MODELLED.txt"
"""What `save` writes instead of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What a train step runs on, and what it does.

    Attributes:
        gpu: class of its GPUs.
        gpus: how many.
        mfu: share of the bf16 peak over all operations done, recomputation included; the class's
            own if None.
        fixed_s: seconds a step beside its operations: data, optimiser, communication, start and end
            of a phase (inferred: 50-65; its lower end, since attention is counted apart).
        logprob_passes: forward passes beside the training itself, for log-probs of the policy
            before the step or of a reference (inferred: 1).
        recompute: whether activations are computed again in the backward pass (inferred: yes).
        state_bytes: of a parameter while it is trained: bf16 weight and gradient, float32 weight
            and two moments, spread over all GPUs (16; ZeRO, arXiv 1910.02054).
    """

    gpu: GpuClass
    gpus: int
    mfu: float | None = None
    fixed_s: float = 50.0
    logprob_passes: int = 1
    recompute: bool = True
    state_bytes: float = 16.0

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what no trainer can be."""
        if self.gpus < 1:
            raise ConfigError(f"trainer: gpus = {self.gpus}; it has at least one, use 1 or more")
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise ConfigError(f"trainer: mfu = {self.mfu}; a share of the peak, say 0.35")
        if self.fixed_s < 0 or self.logprob_passes < 0:
            raise ConfigError(
                f"trainer: fixed_s = {self.fixed_s}, logprob_passes = {self.logprob_passes}; "
                "both are 0 or more"
            )


def check_fits(model: ModelShape, settings: TrainerSettings) -> None:
    """Raises `ConfigError` when the GPUs cannot hold weights, gradients and optimiser state."""
    needed = model.parameters * settings.state_bytes / 1e9
    each = settings.gpu.memory_gb
    if needed >= each * settings.gpus:
        raise ConfigError(
            f"trainer: training {model.name} takes {needed:.0f} GB of state and {settings.gpus} "
            f"{settings.gpu.name} have {each * settings.gpus:.0f} GB; "
            f"use at least {int(needed / each) + 1}"
        )


def train_seconds(model: ModelShape, settings: TrainerSettings, lengths: Iterable[int]) -> float:
    """Seconds of a train step on sequences of these lengths (tokens).

    (6 + 2 recompute + 2 passes) N operations a token, where a forward pass takes 2 N and its
    gradient 4 N, and as many times a third of that for attention: a token attends to half of its
    sequence in the mean. N is what is active. All of them are done at the settings' `mfu`.
    """
    tokens = attended = 0.0
    for length in lengths:
        tokens += length
        attended += length * length / 2.0
    forwards = 3 + settings.recompute + settings.logprob_passes
    operations = forwards * (
        2.0 * model.active_parameters * tokens + model.attention_flops * attended
    )
    mfu = settings.gpu.training_mfu if settings.mfu is None else settings.mfu
    return settings.fixed_s + operations / (settings.gpus * settings.gpu.tflops * 1e12 * mfu)


class ModelledTrainer:
    """The `Trainer` port on modelled hardware.

    Args:
        worker: its name, which is its device in `DeviceBusy`.
        store: where versions are pushed.
        events: takes `DeviceBusy` for train steps and pushes.

    Raises `ConfigError` when the model cannot be trained on these GPUs.
    """

    def __init__(
        self,
        *,
        worker: str,
        model: ModelShape,
        settings: TrainerSettings,
        store: ModelledStore,
        events: EventSink,
        policy: str = "agent",
    ) -> None:
        check_fits(model, settings)
        self._worker = worker
        self._model = model
        self._settings = settings
        self._store = store
        self._events = events
        self._version = PolicyVersion(policy, 0)
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._step: asyncio.Future[None] | None = None

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        """Train once: sleep as long as it takes. Raises `TrainerLost`."""
        self._check()
        members = batch.trajectories
        lengths = [len(segment) for member in members for segment in member.segments]
        seconds = train_seconds(self._model, self._settings, lengths)
        await self._work(seconds)
        self._version = self._version.next()
        silent = not any(map(_has_signal, batch.groups))
        return TrainStats(
            version=self._version.number,
            loss=0.0,
            grad_norm=0.0,
            trained_tokens=0 if silent else sum(member.sampled_tokens for member in members),
            input_tokens=sum(lengths),
            optimizer_steps=0 if silent else 1,
            learning_rate=0.0,
            entropy=0.0,
            clip_fraction=0.0,
            approx_kl=0.0,
            ratio_max=1.0,
            skipped=silent,
            seconds=seconds,
        )

    async def publish(self) -> PolicyVersion:
        """Push the present version; returns when engines may read it. Raises `TrainerLost`."""
        self._check()
        version = self._version
        try:
            await self._store.push(version.number, self._was_busy(Work.PUBLISH))
        except WeightsMissing:
            self._check()  # the push ended because the trainer did
            raise
        return version

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        """No gap on no tokens: a model of a trainer has no log-probs to compare."""
        self._check()
        return LogprobGap(tokens=0, maximum=0.0, mean=0.0)

    async def save(self, directory: str) -> None:
        """Write a note instead of weights, of which there are none. Raises `TrainerLost`."""
        self._check()
        _write_note(
            Path(directory),
            f"This run was simulated: {self._model.name} was trained {self._version.number} steps "
            "on modelled hardware, and there are no weights.\n",
        )

    def die(self, reason: str) -> None:
        """End as a crash does: in the middle of a step or of a push. Idempotent."""
        if self._dead.done():
            return
        self._dead.set_result(reason)
        if self._step is not None and not self._step.done():
            self._step.set_exception(self._lost())
        self._store.abandon(self._version.number, f"{self._worker} died: {reason}")

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        self.die("closed")

    async def _work(self, seconds: float) -> None:
        """Wait out a step, unless death is sooner."""
        loop = asyncio.get_running_loop()
        step = self._step = loop.create_future()
        timer = loop.call_later(seconds, _end, step)
        began = loop.time()
        try:
            await step
        finally:
            timer.cancel()
            self._was_busy(Work.TRAIN)(began, loop.time())

    def _was_busy(self, work: Work) -> Callable[[float, float], None]:
        def emit(begin: float, end: float) -> None:
            if begin == end:
                return
            self._events.emit(
                DeviceBusy(
                    device=self._worker,
                    hardware=self._settings.gpu.name,
                    work=work,
                    begin=begin,
                    end=end,
                )
            )

        return emit

    def _check(self) -> None:
        if self._dead.done():
            raise self._lost()

    def _lost(self) -> TrainerLost:
        return TrainerLost(f"{self._worker} is gone: {self._dead.result()}")


def _write_note(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODELLED_FILE).write_text(text, encoding="utf-8")


def _end(step: asyncio.Future[None]) -> None:
    if not step.done():
        step.set_result(None)


def _has_signal(group: Group) -> bool:
    """Whether the members' scores differ, up to rounding."""
    scores = [member.score for member in group.members if member.score is not None]
    return bool(scores) and not scores_equal(min(scores), max(scores))
