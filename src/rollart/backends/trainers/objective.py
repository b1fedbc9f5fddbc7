"""The learning objective on a set of sequences: gradients by micro-batch, and what they measure.

Invariant: a token's weight in the loss is one over the trained tokens of the whole optimiser
step, so loss and gradient do not depend on how the step was cut into micro-batches or rows.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollart.algorithms.losses import (
    LossInputs,
    LossMetrics,
    LossSettings,
    policy_loss,
    token_weight,
)
from rollart.backends.trainers.scorer import CausalScorer, Portion, portions_of
from rollart.backends.trainers.sequences import SegmentKey, TrainSequence
from rollart.core.types import LogprobGap

Progress = Callable[[str, float, float], None]
"""Told (work, begin, end) after each micro-batch; times by `time.monotonic`, in seconds."""

Correction = Literal["none", "behaviour", "tis"]
Proximal = Mapping[SegmentKey, npt.NDArray[np.float32]]
"""Log-probs [L] of each sequence under the weights a batch began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one pass over an optimiser step's sequences gave; gradients are in the model.

    `gap` compares engine and model on the tokens that the given version sampled; None if none.
    """

    loss: float
    metrics: LossMetrics
    input_tokens: int
    gap: float | None


class Objective:
    """Clipped surrogate with an off-policy correction and an entropy bonus, token mean.

    Args:
        correction: "behaviour" and "tis" as in `rollart.algorithms.losses`. "none" is for
            strictly on-policy batches: the ratio is against the model itself, so it is exactly 1
            and the gradient is that of REINFORCE.
    """

    def __init__(
        self,
        scorer: CausalScorer,
        *,
        correction: Correction,
        clip_low: float,
        clip_high: float,
        correction_cap: float,
        entropy: float,
        token_budget: int,
        row_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.correction: Correction = correction
        self._scorer = scorer
        self._settings = LossSettings(
            clip_low=clip_low,
            clip_high=clip_high,
            entropy_coef=entropy,
            correction="truncated_is" if correction == "tis" else "behaviour",
            importance_cap=correction_cap,
        )
        self._token_budget = token_budget
        self._row_tokens = row_tokens
        self._progress = progress

    def portions(self, sequences: Mapping[SegmentKey, TrainSequence]) -> tuple[Portion, ...]:
        """The micro-batches of these sequences; `ValueError` if one does not fit."""
        return portions_of(
            sequences,
            token_budget=self._token_budget,
            layout=self._scorer.layout,
            row_tokens=self._row_tokens,
        )

    def backward(
        self,
        sequences: Mapping[SegmentKey, TrainSequence],
        *,
        proximal: Proximal | None = None,
        version: int | None = None,
    ) -> Outcome:
        """Add the gradient of one optimiser step's loss to the model.

        Args:
            proximal: log-probs before the batch's first update, for "tis"; None where the present
                weights are still those, which spares the extra pass.
            version: the model's version, if its weights are exactly those, to measure the gap.
        """
        tokens = sum(int(sequence.mask.sum()) for sequence in sequences.values())
        loss, metrics, gap = 0.0, LossMetrics(), None
        for portion in self.portions(sequences):
            begin = time.monotonic()
            scores = self._scorer.score(portion)
            part, part_metrics = policy_loss(
                self._inputs(portion, scores.logprobs, scores.entropy, proximal, tokens),
                self._settings,
            )
            part.backward()
            loss += float(part.detach())
            metrics = metrics.merge(part_metrics)
            if version is not None:
                gap = _largest(gap, _differences(portion, scores.logprobs, version))
            self._tell("train", begin)
        return Outcome(
            loss=loss,
            metrics=metrics,
            input_tokens=sum(len(sequence) for sequence in sequences.values()),
            gap=gap,
        )

    def logprobs(self, sequences: Mapping[SegmentKey, TrainSequence]) -> Proximal:
        """Log-probs [L] of each sequence under the present weights; 0 where not trained."""
        found: dict[SegmentKey, npt.NDArray[np.float32]] = {}
        with torch.no_grad():
            for portion in self.portions(sequences):
                begin = time.monotonic()
                scores = self._scorer.score(portion)
                found.update(portion.per_sequence(scores.logprobs.cpu().numpy()))
                self._tell("recompute", begin)
        return found

    def gap(self, sequences: Mapping[SegmentKey, TrainSequence], version: int) -> LogprobGap:
        """Engine against model, exact to the weights' dtype, on tokens that `version` sampled."""
        parts: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        with torch.no_grad():
            for portion in self.portions(sequences):
                begin = time.monotonic()
                scores = self._scorer.score(portion, exact=True)
                parts.append(_differences(portion, scores.logprobs, version))
                self._tell("score", begin)
        differences = np.concatenate(parts)
        return LogprobGap(
            tokens=len(differences),
            maximum=float(differences.max(initial=0.0)),
            mean=float(differences.mean()) if len(differences) else 0.0,
        )

    def _inputs(
        self,
        portion: Portion,
        logprobs: Tensor,
        entropy: Tensor,
        proximal: Proximal | None,
        tokens: int,
    ) -> LossInputs:
        def tensor(values: npt.NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values).to(logprobs.device, logprobs.dtype)

        own = logprobs.detach()
        reference = None
        if self.correction == "tis":
            reference = (
                own
                if proximal is None
                else tensor(portion.tokens(lambda sequence: proximal[sequence.key]))
            )
        behaviour = tensor(portion.tokens(lambda sequence: sequence.behaviour))
        # Every trajectory has the same weight a token under the token mean.
        weight = token_weight(
            "token_mean",
            trajectory_tokens=len(logprobs),
            batch_tokens=tokens,
            batch_trajectories=1,
        )
        return LossInputs(
            logprobs=logprobs,
            entropy=entropy,
            behaviour_logprobs=own if self.correction == "none" else behaviour,
            proximal_logprobs=reference,
            advantages=tensor(portion.tokens(_advantages)),
            weights=torch.full_like(own, weight),
            mask=torch.ones_like(own, dtype=torch.bool),
        )

    def _tell(self, work: str, begin: float) -> None:
        if self._progress is not None:
            self._progress(work, begin, time.monotonic())


def _advantages(sequence: TrainSequence) -> npt.NDArray[np.float64]:
    return np.full(len(sequence), sequence.advantage)


def _largest(known: float | None, values: npt.NDArray[np.float64]) -> float | None:
    return float(values.max(initial=known or 0.0)) if len(values) else known


def _differences(portion: Portion, logprobs: Tensor, version: int) -> npt.NDArray[np.float64]:
    """|engine - model| on tokens of `version`, in nats; what is not a number is infinitely far."""
    same = portion.tokens(lambda sequence: sequence.versions) == version
    engine = portion.tokens(lambda sequence: sequence.behaviour).astype(np.float64)
    model = logprobs.detach().double().cpu().numpy()
    return np.nan_to_num(np.abs(engine - model)[same], nan=np.inf)
