"""A trainer in one process: a Hugging Face causal language model, AdamW, one version a batch.

Owns the policy's weights. Invariant: the version counts batches, not optimiser steps, and it
advances with every `train_step`, whatever the batch held; a loss or gradient that is not finite
never reaches the weights. Everything here blocks and runs in the trainer's own process.
"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from rollart.algorithms.losses import LossMetrics
from rollart.algorithms.packing import Layout
from rollart.backends.trainers.export import weight_tensors
from rollart.backends.trainers.objective import Objective, Outcome, Progress
from rollart.backends.trainers.optim import adamw, learning_rate
from rollart.backends.trainers.scorer import CausalScorer
from rollart.backends.trainers.sequences import (
    SegmentKey,
    TrainSequence,
    group_shares,
    sequences_by_key,
    sequences_of,
    split_steps,
)
from rollart.core.config import TrainConfig
from rollart.core.errors import ConfigError
from rollart.core.identity import PolicyVersion, derive_seed
from rollart.core.ports import WeightStore
from rollart.core.types import LogprobGap, TrainBatch, TrainStats, Trajectory

Attention = Literal["eager", "sdpa"]
Sequences = Mapping[SegmentKey, TrainSequence]

# The fastest, as benchmarks/trainer.py measures them on a CPU.
DEFAULT_LAYOUT: Final[Layout] = "padded"
DEFAULT_ATTENTION: Final[dict[str, Attention]] = {"bfloat16": "eager", "float32": "sdpa"}


# Copied as they are: writing a tokenizer anew could change it.
_TOKENIZER_FILES: Final = ("*token*.json", "tokenizer.model", "vocab.*", "merges.txt", "*.jinja")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Loaded:
    model: PreTrainedModel
    objective: Objective
    optimizer: torch.optim.AdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An optimiser step that was taken; the norm is that before clipping."""

    outcome: Outcome
    grad_norm: float


class TorchTrainer:
    """The policy `policy`, trained as `config` says; call `load` before anything else.

    Args:
        model_dir: a directory that transformers loads; weights are held in float32.
        temperatures: sampling temperature of each domain's tag.
        seed: the run's; it decides which groups share an optimiser step.
        layout, attention, row_tokens: how sequences are laid out and attended where the model's
            own forward runs; no influence on the result. `row_tokens` is the width of a packed
            row. By default what is fastest.
        may_cut_short: whether a shorter way to the same numbers may be taken where there is one.
        progress: told after every micro-batch.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: TrainConfig,
        *,
        policy: str,
        temperatures: Mapping[str, float],
        seed: int = 0,
        layout: Layout = DEFAULT_LAYOUT,
        attention: Attention | None = None,
        row_tokens: int | None = None,
        may_cut_short: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self._model_dir = Path(model_dir)
        self._config = config
        self._version = PolicyVersion(policy, 0)
        self._temperatures = dict(temperatures)
        self._seed = seed
        self._layout: Layout = layout
        self._attention: Attention = attention or DEFAULT_ATTENTION[config.dtype]
        self._row_tokens = row_tokens
        self._may_cut_short = may_cut_short
        self._progress = progress
        self._loaded: _Loaded | None = None

    def load(self) -> None:
        """Load the model and make the optimiser.

        Raises:
            OSError: the directory holds no model.
            ValueError: the model cannot be trained in the layout asked for.
        """
        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(
            self._model_dir, dtype=torch.float32, attn_implementation=self._attention
        )
        model.eval()
        config = self._config
        scorer = CausalScorer(
            model,
            layout=self._layout,
            autocast=torch.bfloat16 if config.dtype == "bfloat16" else None,
            may_cut_short=self._may_cut_short,
        )
        objective = Objective(
            scorer,
            correction=config.correction,
            clip_low=config.clip[0],
            clip_high=config.clip[1],
            correction_cap=config.correction_cap,
            entropy=config.entropy,
            token_budget=config.microbatch_tokens,
            row_tokens=self._row_tokens,
            progress=self._progress,
        )
        self._loaded = _Loaded(
            model=model, objective=objective, optimizer=adamw(model, config.weight_decay)
        )

    @property
    def version(self) -> PolicyVersion:
        return self._version

    @property
    def model(self) -> PreTrainedModel:
        """The model itself; its weights are those of `version`."""
        return self._ready().model

    def train_step(self, batch: TrainBatch) -> TrainStats:
        """Train on a batch once; afterwards the version is one higher.

        An optimiser step whose loss or gradient is not finite is left out. `skipped` says that
        this happened, or that no token of the batch carried a signal; loss, norm and token counts
        are those of the steps taken.

        Raises:
            ValueError: the batch is not one for this trainer; nothing was changed.
            ConfigError: off-policy tokens without a correction; nothing was changed.
        """
        begin = time.monotonic()
        loaded, config = self._ready(), self._config
        parts = self._parts(batch)
        rate = learning_rate(
            config.learning_rate,
            config.final_learning_rate,
            progress=batch.progress,
        )
        for group in loaded.optimizer.param_groups:
            group["lr"] = rate
        later = {key: sequence for part in parts[1:] for key, sequence in part.items()}
        recompute = config.correction == "tis" and later
        proximal = loaded.objective.logprobs(later) if recompute else None
        taken: list[_Step] = []
        gap: float | None = None
        for number, part in enumerate(parts):
            outcome = loaded.objective.backward(
                part,
                proximal=proximal if number else None,
                version=None if number else self._version.number,
            )
            gap = gap if number else outcome.gap
            norm = self._clip()
            if math.isfinite(norm) and math.isfinite(outcome.loss):
                loaded.optimizer.step()
                taken.append(_Step(outcome=outcome, grad_norm=norm))
            loaded.optimizer.zero_grad(set_to_none=True)
        self._version = self._version.next()
        return self._stats(taken, len(parts), rate, gap, time.monotonic() - begin)

    def publish(self, store: WeightStore) -> PolicyVersion:
        """Commit the present weights to the store under the present version."""
        store.publish(self._version, weight_tensors(self.model))
        return self._version

    def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        """Compare recorded log-probs with one's own, on tokens that the present version sampled.

        Computed in float32 also where training is in bfloat16, so that what it shows is a wrong
        token, weight, cache or temperature, and not rounding. Zero where there is no such token.
        """
        number = self._version.number
        found = (
            sequence
            for trajectory in trajectories
            for sequence in sequences_of(trajectory, temperature=temperature, version=number)
        )
        return self._ready().objective.gap({each.key: each for each in found}, number)

    def save(self, directory: str | Path) -> None:
        """Write weights and configuration, and the tokenizer's files, as a model directory."""
        target = Path(directory)
        self.model.save_pretrained(target)
        if target.resolve() != self._model_dir.resolve():
            for pattern in _TOKENIZER_FILES:
                for file in self._model_dir.glob(pattern):
                    shutil.copyfile(file, target / file.name)

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError(f"trainer of {self._version.policy!r}: call load() first")
        return self._loaded

    def _parts(self, batch: TrainBatch) -> tuple[Sequences, ...]:
        """The sequences of each optimiser step. Whatever can be refused is refused here."""
        config = self._config
        shares = group_shares(
            batch.groups,
            config.advantage,
            eps=config.advantage_eps,
            drop_zero_variance=config.drop_zero_variance,
        )
        for share in shares:
            for trajectory, _ in share.members:
                self._refuse_foreign(trajectory)
        seed = derive_seed(self._seed, self._version.policy, self._version.number)
        parts = tuple(
            sequences_by_key(step, self._temperatures)
            for step in split_steps(shares, config.optimizer_steps, seed=seed)
        )
        for part in parts:
            self._ready().objective.portions(part)
        return parts

    def _refuse_foreign(self, trajectory: Trajectory) -> None:
        if trajectory.policy != self._version.policy:
            raise ValueError(
                f"trajectory {trajectory.id} was sampled by policy {trajectory.policy!r}; this "
                f"trainer holds {self._version.policy!r}: give it its own trajectories"
            )
        if self._config.correction != "none":
            return
        for version, _ in trajectory.version_runs():
            if version != self._version.number:
                raise ConfigError(
                    f'train.correction = "none": trajectory {trajectory.id} has tokens of version '
                    f"{version} and the trainer is at {self._version.number}, which needs an "
                    'importance correction; use train.correction = "behaviour" or "tis"'
                )

    def _clip(self) -> float:
        """Bound the gradient's norm; returns the norm before that, not finite if any part is."""
        parameters = self.model.parameters()
        return float(torch.nn.utils.clip_grad_norm_(parameters, self._config.grad_clip))

    def _stats(
        self, taken: Sequence[_Step], planned: int, rate: float, gap: float | None, seconds: float
    ) -> TrainStats:
        metrics = LossMetrics()
        for step in taken:
            metrics = metrics.merge(step.outcome.metrics)
        return TrainStats(
            version=self._version.number,
            loss=sum(step.outcome.loss for step in taken) / max(len(taken), 1),
            grad_norm=max((step.grad_norm for step in taken), default=0.0),
            trained_tokens=metrics.tokens,
            input_tokens=sum(step.outcome.input_tokens for step in taken),
            optimizer_steps=len(taken),
            learning_rate=rate,
            entropy=metrics.entropy_mean,
            clip_fraction=metrics.clip_fraction,
            approx_kl=metrics.approx_kl,
            ratio_max=metrics.ratio_max,
            skipped=planned == 0 or len(taken) < planned,
            same_version_gap=gap,
            seconds=seconds,
        )
