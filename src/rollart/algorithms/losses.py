"""Policy loss of a micro-batch as its share of the loss of the whole batch.

Invariant: a token's weight is fixed by the batch (`token_weight`), never by the micro-batch,
pack or rank it travels in. The loss of a micro-batch is a weighted *sum*, and the sums of any cut
of the batch add up to the same loss and the same gradient. Values at masked positions are
replaced before any arithmetic, so whatever stands there (NaN included) reaches neither the loss
nor the gradient.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean"]
Correction = Literal["behaviour", "truncated_is"]
AGGREGATIONS: Final[tuple[Aggregation, ...]] = get_args(Aggregation)
CORRECTIONS: Final[tuple[Correction, ...]] = get_args(Correction)

# A log-ratio beyond this is a broken token, not a policy change (e^20 = 5e8); without the bound
# exp overflows float32 at 88 and one such token turns every gradient into NaN.
_LOG_RATIO_LIMIT: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What the policy loss is, the same for every micro-batch.

    Attributes:
        clip_low: the ratio counts no further below 1 - clip_low (PPO, arXiv 1707.06347).
        clip_high: likewise above 1 + clip_high; larger than clip_low lets rare tokens grow
            (clip-higher, DAPO, arXiv 2503.14476).
        entropy_coef: weight of the entropy bonus, per nat.
        correction: how off-policy tokens are corrected; there is no uncorrected variant.
            `behaviour`: the ratio is against the engine's log-probs, which is PPO as published.
            `truncated_is`: the ratio is against the trainer's log-probs before this batch's first
            update (decoupled PPO, AReaL, arXiv 2505.24298), times a constant
            min(exp(proximal - behaviour), importance_cap): importance sampling from the engine's
            policy, truncated to bound its variance (Ionides 2008, "Truncated Importance
            Sampling", J. Comput. Graph. Stat. 17(2)).
        importance_cap: C of `truncated_is`.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy_coef: float = 0.0
    correction: Correction = "behaviour"
    importance_cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.clip_low <= 1.0:
            raise ValueError(f"clip_low is {self.clip_low}; use 0 to 1, for example 0.2")
        if not self.clip_high >= 0.0:
            raise ValueError(f"clip_high is {self.clip_high}; use 0 or more, for example 0.28")
        if not self.entropy_coef >= 0.0:
            raise ValueError(f"entropy_coef is {self.entropy_coef}; use 0 or more")
        if self.correction not in CORRECTIONS:
            known = ", ".join(CORRECTIONS)
            raise ValueError(f"correction {self.correction!r} is not known; use one of {known}")
        if not self.importance_cap >= 1.0:
            raise ValueError(
                f"importance_cap is {self.importance_cap}; use 1 or more, for example 2.0: "
                "below 1 even on-policy tokens would be cut"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Tensors of one micro-batch, all of one shape (any layout) and aligned token by token.

    Attributes:
        logprobs: log-probs under the weights being trained; the gradient flows through these.
        entropy: entropy at each token; the gradient flows through it.
        behaviour_logprobs: log-probs the engine reported when it sampled.
        proximal_logprobs: log-probs recomputed by the trainer before the batch's first update;
            required by `truncated_is`, else None.
        advantages: the advantage of each token's trajectory.
        weights: `token_weight` of each token's trajectory.
        mask: bool, true only on trained tokens. Elsewhere every other field may hold anything.
    """

    logprobs: Tensor
    entropy: Tensor
    behaviour_logprobs: Tensor
    proximal_logprobs: Tensor | None
    advantages: Tensor
    weights: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMetrics:
    """Sums, counts and maxima over trained tokens; `merge` over any cut gives the batch's.

    The means (the properties) are 0 when nothing was trained.

    Attributes:
        tokens: trained tokens.
        clipped: tokens whose gradient the clip removed.
        ratio_sum, ratio_max: of the clipped ratio, before the clip.
        kl_sum: k3 estimate of KL(behaviour || current) in nats: exp(d) - 1 - d with
            d = log-prob now - log-prob at sampling (Schulman 2020, "Approximating KL divergence").
        entropy_sum: nats.
        importance_sum: of the truncated weights; equal to `tokens` under `behaviour`.
        truncated: tokens whose importance weight was cut to the cap.
    """

    tokens: int = 0
    clipped: int = 0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    kl_sum: float = 0.0
    entropy_sum: float = 0.0
    importance_sum: float = 0.0
    truncated: int = 0

    def merge(self, other: "LossMetrics") -> "LossMetrics":
        """Return the metrics of both parts together."""
        return LossMetrics(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=max(self.ratio_max, other.ratio_max),
            kl_sum=self.kl_sum + other.kl_sum,
            entropy_sum=self.entropy_sum + other.entropy_sum,
            importance_sum=self.importance_sum + other.importance_sum,
            truncated=self.truncated + other.truncated,
        )

    @property
    def clip_fraction(self) -> float:
        return self._per_token(self.clipped)

    @property
    def ratio_mean(self) -> float:
        return self._per_token(self.ratio_sum)

    @property
    def approx_kl(self) -> float:
        return self._per_token(self.kl_sum)

    @property
    def entropy_mean(self) -> float:
        return self._per_token(self.entropy_sum)

    @property
    def importance_mean(self) -> float:
        return self._per_token(self.importance_sum)

    @property
    def truncated_fraction(self) -> float:
        return self._per_token(self.truncated)

    def _per_token(self, total: float) -> float:
        return total / self.tokens if self.tokens else 0.0


def token_weight(
    aggregation: Aggregation,
    *,
    trajectory_tokens: int,
    batch_tokens: int,
    batch_trajectories: int,
) -> float:
    """Return the weight of each trained token of a trajectory in the loss of the batch.

    `token_mean`: 1 / batch_tokens, every token counts the same. `sequence_mean`: every trajectory
    counts the same, 1 / batch_trajectories, spread evenly over its tokens in all its segments;
    so it does not matter how many segments or rows a trajectory was cut into.

    The counts are global: over all ranks, micro-batches and rows of one optimiser step. A data
    parallel reducer that averages gradients over W ranks needs the loss multiplied by W.

    Args:
        trajectory_tokens: trained tokens of this trajectory, over all its segments.
        batch_tokens: trained tokens of the batch.
        batch_trajectories: trajectories of the batch with at least one trained token.

    Raises:
        ValueError: the aggregation is not known, or the counts contradict each other.
    """
    if aggregation not in AGGREGATIONS:
        known = ", ".join(AGGREGATIONS)
        raise ValueError(f"aggregation {aggregation!r} is not known; use one of {known}")
    if not 0 <= trajectory_tokens <= batch_tokens or batch_trajectories < min(1, batch_tokens):
        raise ValueError(
            f"{trajectory_tokens} trained tokens of the trajectory, {batch_tokens} of the batch "
            f"and {batch_trajectories} trajectories contradict each other; count all three over "
            "the whole batch, all ranks included"
        )
    if trajectory_tokens == 0:
        return 0.0
    if aggregation == "token_mean":
        return 1.0 / batch_tokens
    return 1.0 / (batch_trajectories * trajectory_tokens)


def policy_loss(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, LossMetrics]:
    """Return the micro-batch's share of the batch loss (0-dim, with graph) and its metrics.

    Per token -w · min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - entropy_coef · H, times the
    token's weight, summed. w and r are set by `settings.correction`. A micro-batch in which
    nothing is trained gives 0 with a graph and zero gradients, so that every rank runs the same
    backward pass.

    Raises:
        ValueError: shapes differ, the mask is not bool, or the log-probs the correction needs are
            missing or given without need.
    """
    _check(inputs, settings)
    mask = inputs.mask
    logprobs = _trained(inputs.logprobs, mask)
    entropy = _trained(inputs.entropy, mask)
    behaviour = _trained(inputs.behaviour_logprobs, mask)
    advantages = _trained(inputs.advantages, mask)
    weights = _trained(inputs.weights, mask)
    if inputs.proximal_logprobs is None:
        reference, importance = behaviour, mask.to(logprobs.dtype)
        truncated = torch.zeros_like(mask)
    else:
        reference = _trained(inputs.proximal_logprobs, mask).detach()
        untruncated = _ratio(reference - behaviour)
        truncated = mask & (untruncated > settings.importance_cap)
        importance = untruncated.clamp(max=settings.importance_cap)

    ratio = _ratio(logprobs - reference)
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    unclipped_gain, clipped_gain = ratio * advantages, bounded * advantages
    surrogate = importance * torch.minimum(unclipped_gain, clipped_gain)
    loss = -(weights * (surrogate + settings.entropy_coef * entropy)).sum()

    with torch.no_grad():
        # In double: exp(d) - 1 - d is about d²/2, below float32's rounding of d for d < 1e-7.
        drift = (logprobs - behaviour).double().clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
        metrics = _metrics(
            mask=mask,
            clipped=clipped_gain < unclipped_gain,
            ratio=ratio,
            kl=drift.expm1() - drift,
            entropy=entropy,
            importance=importance,
            truncated=truncated,
        )
    return loss, metrics


def _trained(values: Tensor, mask: Tensor) -> Tensor:
    """Values at trained tokens, exact zeros elsewhere: 0 * NaN would still be NaN."""
    return torch.where(mask, values, torch.zeros_like(values))


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()


def _metrics(
    *,
    mask: Tensor,
    clipped: Tensor,
    ratio: Tensor,
    kl: Tensor,
    entropy: Tensor,
    importance: Tensor,
    truncated: Tensor,
) -> LossMetrics:
    trained_ratio = _trained(ratio, mask)
    # One transfer to the host for all figures: each .item() would wait for the device again.
    sums = torch.stack(
        [
            mask.sum().double(),
            clipped.sum().double(),
            trained_ratio.sum().double(),
            # A zero put first: the maximum of no tokens is 0.
            torch.cat([trained_ratio.new_zeros(1), trained_ratio.flatten()]).max().double(),
            kl.sum().double(),
            entropy.sum().double(),
            _trained(importance, mask).sum().double(),
            truncated.sum().double(),
        ]
    ).tolist()
    return LossMetrics(
        tokens=int(sums[0]),
        clipped=int(sums[1]),
        ratio_sum=sums[2],
        ratio_max=sums[3],
        kl_sum=sums[4],
        entropy_sum=sums[5],
        importance_sum=sums[6],
        truncated=int(sums[7]),
    )


def _check(inputs: LossInputs, settings: LossSettings) -> None:
    needs_proximal = settings.correction == "truncated_is"
    if needs_proximal and inputs.proximal_logprobs is None:
        raise ValueError(
            "correction 'truncated_is' needs proximal_logprobs; recompute them under the "
            "trainer's weights before the batch's first update, or use 'behaviour'"
        )
    if not needs_proximal and inputs.proximal_logprobs is not None:
        raise ValueError(
            "correction 'behaviour' does not use proximal_logprobs; pass None, or use "
            "'truncated_is'"
        )
    if inputs.mask.dtype != torch.bool:
        raise ValueError(f"mask is {inputs.mask.dtype}; convert it with mask.bool()")
    shape = inputs.mask.shape
    named = (
        ("logprobs", inputs.logprobs),
        ("entropy", inputs.entropy),
        ("behaviour_logprobs", inputs.behaviour_logprobs),
        ("proximal_logprobs", inputs.proximal_logprobs),
        ("advantages", inputs.advantages),
        ("weights", inputs.weights),
    )
    for name, tensor in named:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, the mask {tuple(shape)}; give one "
                "value a token"
            )
