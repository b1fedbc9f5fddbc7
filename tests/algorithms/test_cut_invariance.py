"""The gradient of a batch does not depend on how the batch was cut, ordered or laid out.

A one-layer attention model in float64 is trained on eight trajectories. The reference runs each
trajectory alone, with no packing and no mask but the causal one.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollart.algorithms.logprobs import token_scores
from rollart.algorithms.losses import (
    Aggregation,
    LossInputs,
    LossMetrics,
    LossSettings,
    policy_loss,
    token_weight,
)
from rollart.algorithms.packing import (
    MicroBatch,
    Place,
    block_causal_mask,
    plan_micro_batches,
)

VOCABULARY, WIDTH, LONGEST = 11, 8, 16
SETTINGS = LossSettings(entropy_coef=0.01, correction="truncated_is", importance_cap=1.1)

Attend = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, position_ids: Tensor, allowed: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.positions(position_ids)
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return self.head(torch.tanh(hidden + attended))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The batch, one array a trajectory and token, under the trajectory's key."""

    ids: Mapping[str, NDArray[np.generic]]
    mask: Mapping[str, NDArray[np.generic]]
    behaviour: Mapping[str, NDArray[np.generic]]
    proximal: Mapping[str, NDArray[np.generic]]
    advantages: Mapping[str, NDArray[np.generic]]
    weights: Mapping[str, NDArray[np.generic]]

    def lengths(self) -> dict[str, int]:
        return {key: len(ids) for key, ids in self.ids.items()}


def make_model() -> OneLayer:
    torch.manual_seed(3)
    return OneLayer().double()


def make_batch(aggregation: Aggregation) -> Columns:
    rng = np.random.default_rng(5)
    lengths = {f"trajectory {i}": int(rng.integers(3, LONGEST)) for i in range(8)}
    mask = {}
    for key, length in lengths.items():
        mask[key] = rng.random(length) < 0.6
        mask[key][0] = False  # the first token has nothing to be predicted from
    batch_tokens = int(sum(trained.sum() for trained in mask.values()))
    weights = {
        key: np.full(
            length,
            token_weight(
                aggregation,
                trajectory_tokens=int(mask[key].sum()),
                batch_tokens=batch_tokens,
                batch_trajectories=sum(bool(trained.any()) for trained in mask.values()),
            ),
        )
        for key, length in lengths.items()
    }
    near_uniform = {key: -2.4 + 0.3 * rng.standard_normal(n) for key, n in lengths.items()}
    return Columns(
        ids={key: rng.integers(0, VOCABULARY, n) for key, n in lengths.items()},
        mask=mask,
        behaviour=near_uniform,
        proximal={k: v + 0.2 * rng.standard_normal(len(v)) for k, v in near_uniform.items()},
        advantages={key: np.full(n, rng.standard_normal()) for key, n in lengths.items()},
        weights=weights,
    )


def micro_batch_loss(
    model: OneLayer,
    batch: Columns,
    micro: MicroBatch[str],
    attend: Attend = block_causal_mask,
    positions: Callable[[MicroBatch[str]], NDArray[np.int64]] = MicroBatch.position_ids,
) -> tuple[Tensor, LossMetrics]:
    def place(values: Mapping[str, NDArray[np.generic]], fill: float) -> Tensor:
        return torch.from_numpy(micro.pack(values, fill=fill))

    ids = place(batch.ids, 0)
    allowed = torch.from_numpy(attend(micro.segment_ids()))
    logits = model(ids, torch.from_numpy(positions(micro)), allowed)
    scores = token_scores(logits[:, :-1], ids[:, 1:], temperature=0.8)
    return policy_loss(
        LossInputs(
            logprobs=scores.logprobs,
            entropy=scores.entropy,
            behaviour_logprobs=place(batch.behaviour, np.nan)[:, 1:],
            proximal_logprobs=place(batch.proximal, np.nan)[:, 1:],
            advantages=place(batch.advantages, np.nan)[:, 1:],
            weights=place(batch.weights, np.nan)[:, 1:],
            mask=place(batch.mask, False)[:, 1:],
        ),
        SETTINGS,
    )


def gradient_of(model: OneLayer, losses: Sequence[Tensor]) -> Tensor:
    model.zero_grad()
    for loss in losses:
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch.cat([torch.zeros(0) if g is None else g.flatten().clone() for g in gradients])


def reference_gradient(model: OneLayer, batch: Columns) -> Tensor:
    losses = []
    for key, length in batch.lengths().items():
        alone = MicroBatch(rows=((Place(key=key, start=0, length=length),),), width=length)
        loss, _ = micro_batch_loss(
            model,
            batch,
            alone,
            attend=lambda segments: np.tri(segments.shape[-1], dtype=np.bool_)[None],
            positions=lambda micro: np.arange(micro.width)[None],
        )
        losses.append(loss)
    return gradient_of(model, losses)


def in_equal_parts(batch: Columns, parts: int, layout: str, seed: int) -> list[MicroBatch[str]]:
    """The trajectories in a random order, cut into `parts` micro-batches of as many each."""
    lengths = batch.lengths()
    keys = list(lengths)
    random.Random(seed).shuffle(keys)
    size = len(keys) // parts
    micros = []
    for begin in range(0, len(keys), size):
        some = {key: lengths[key] for key in keys[begin : begin + size]}
        row = max(some.values()) if layout == "padded" else sum(some.values())
        budget = row * len(some)
        micros += plan_micro_batches(
            some,
            token_budget=budget,
            layout="padded" if layout == "padded" else "packed",
            row_tokens=row,
        )
    assert len(micros) == parts
    return micros


def assert_the_cut_does_not_matter(
    micros: Sequence[MicroBatch[str]],
    aggregation: Aggregation = "token_mean",
    loss_of: Callable[
        [OneLayer, Columns, MicroBatch[str]], tuple[Tensor, LossMetrics]
    ] = micro_batch_loss,
) -> None:
    model, batch = make_model(), make_batch(aggregation)
    expected = reference_gradient(model, batch)
    assert expected.abs().max() > 1e-2, "a gradient of zero would agree with anything"
    got = gradient_of(model, [loss_of(model, batch, micro)[0] for micro in micros])
    assert (got - expected).abs().max().item() < 1e-6


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_the_gradient_is_the_same_for_any_micro_batches_order_and_layout(
    parts: int, layout: str, aggregation: Aggregation
) -> None:
    for seed in range(3):
        micros = in_equal_parts(make_batch(aggregation), parts, layout, seed)
        assert_the_cut_does_not_matter(micros, aggregation)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("budget", [16, 40, 200])
def test_the_gradient_is_the_same_for_any_token_budget(budget: int, layout: str) -> None:
    micros = plan_micro_batches(
        make_batch("token_mean").lengths(),
        token_budget=budget,
        layout="packed" if layout == "packed" else "padded",
        row_tokens=16,
    )
    assert_the_cut_does_not_matter(micros)


def divide_by_the_micro_batch(
    model: OneLayer, batch: Columns, micro: MicroBatch[str]
) -> tuple[Tensor, LossMetrics]:
    """The planted bug: a mean within the micro-batch, then the mean of the two of them."""
    loss, metrics = micro_batch_loss(model, batch, micro)
    batch_tokens = sum(int(mask.sum()) for mask in batch.mask.values())
    return loss * batch_tokens / metrics.tokens / 2, metrics


def test_a_mean_of_means_is_caught() -> None:
    micros = in_equal_parts(make_batch("token_mean"), 2, "packed", seed=0)
    with pytest.raises(AssertionError):
        assert_the_cut_does_not_matter(micros, loss_of=divide_by_the_micro_batch)


def test_attention_across_packed_sequences_is_caught() -> None:
    micros = in_equal_parts(make_batch("token_mean"), 2, "packed", seed=0)
    leaky = partial(
        micro_batch_loss,
        attend=lambda segments: np.tri(segments.shape[-1], dtype=np.bool_)[None],
    )
    with pytest.raises(AssertionError):
        assert_the_cut_does_not_matter(micros, loss_of=leaky)


def test_positions_that_do_not_restart_are_caught() -> None:
    micros = in_equal_parts(make_batch("token_mean"), 2, "packed", seed=0)
    running = partial(
        micro_batch_loss,
        positions=lambda micro: np.arange(micro.width)[None] % LONGEST,
    )
    with pytest.raises(AssertionError):
        assert_the_cut_does_not_matter(micros, loss_of=running)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_merged_metrics_are_those_of_the_whole_batch(parts: int) -> None:
    model, batch = make_model(), make_batch("token_mean")

    def metrics_in(parts: int, layout: str) -> LossMetrics:
        merged = LossMetrics()
        for micro in in_equal_parts(batch, parts, layout, seed=1):
            merged = merged.merge(micro_batch_loss(model, batch, micro)[1])
        return merged

    whole, cut = metrics_in(1, "padded"), metrics_in(parts, "packed")
    assert (cut.tokens, cut.clipped, cut.truncated) == (
        whole.tokens,
        whole.clipped,
        whole.truncated,
    )
    assert min(whole.clipped, whole.truncated) > 0
    for name in ("ratio_mean", "ratio_max", "approx_kl", "entropy_mean", "importance_mean"):
        assert getattr(cut, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_a_micro_batch_with_nothing_to_train_runs_backward_with_zero_gradients() -> None:
    model, batch = make_model(), make_batch("token_mean")
    nothing = {key: np.zeros_like(mask) for key, mask in batch.mask.items()}
    masked = dataclasses.replace(batch, mask=nothing)
    (micro,) = in_equal_parts(batch, 1, "packed", seed=0)
    loss, metrics = micro_batch_loss(model, masked, micro)
    gradient = gradient_of(model, [loss])
    assert loss.item() == 0.0
    assert metrics.tokens == 0
    assert gradient.numel() == sum(parameter.numel() for parameter in model.parameters())
    assert gradient.abs().max().item() == 0.0
