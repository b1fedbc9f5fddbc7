"""A causal language model as a function: micro-batch of sequences to log-prob and entropy a token.

Invariant: a token's values do not depend on the micro-batch, the layout or the place it travels
in, up to rounding: rows are filled from the left, so causal attention never sees padding, and a
packed row attends within its own sequences only. Only the tokens asked for reach the vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rollart.algorithms.logprobs import TokenScores, token_scores
from rollart.algorithms.packing import (
    Layout,
    MicroBatch,
    block_causal_mask,
    plan_micro_batches,
)
from rollart.backends.trainers.llama import LlamaShaped, short_cut
from rollart.backends.trainers.sequences import SegmentKey, TrainSequence

_PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A micro-batch whose sequences share a temperature. Its N trained tokens have one order."""

    plan: MicroBatch[SegmentKey]
    sequences: Mapping[SegmentKey, TrainSequence]
    temperature: float

    def members(self) -> list[TrainSequence]:
        """The sequences, in the order of their trained tokens."""
        keys = self.plan.keys()
        return [self.sequences[key] for key in keys]

    def tokens(
        self, values: Callable[[TrainSequence], npt.NDArray[np.generic]]
    ) -> npt.NDArray[np.generic]:
        """One value for each trained token [N], in the order of `CausalScorer.score`."""
        return np.concatenate([values(member)[member.mask] for member in self.members()])

    def per_sequence(self, values: npt.NDArray[np.generic]) -> dict[SegmentKey, npt.NDArray]:
        """The inverse of `tokens`: values [N] to [L] for each sequence, 0 where not trained."""
        found: dict[SegmentKey, npt.NDArray] = {}
        at = 0
        for member in self.members():
            spread = np.zeros(len(member), values.dtype)
            end = at + int(member.mask.sum())
            spread[member.mask] = values[at:end]
            found[member.key], at = spread, end
        return found

    def mask(self) -> npt.NDArray[np.bool_]:
        """True at trained tokens [R, W]."""
        return self._layout(lambda sequence: sequence.mask, False).astype(np.bool_)

    def inputs(self) -> npt.NDArray[np.int64]:
        """Token ids [R, W]; padding holds id 0, which nothing attends to."""
        return self._layout(lambda sequence: sequence.inputs, 0).astype(np.int64)

    def _layout(
        self, values: Callable[[TrainSequence], npt.NDArray[np.generic]], fill: float | bool
    ) -> npt.NDArray[np.generic]:
        return self.plan.pack({each.key: values(each) for each in self.members()}, fill=fill)


def portions_of(
    sequences: Mapping[SegmentKey, TrainSequence],
    *,
    token_budget: int,
    layout: Layout,
    row_tokens: int | None = None,
) -> tuple[Portion, ...]:
    """Cut sequences into micro-batches of at most `token_budget` places, one temperature each.

    Raises:
        ValueError: a sequence is longer than the budget (or a packed row) allows.
    """
    return tuple(
        Portion(plan=plan, sequences=sequences, temperature=temperature)
        for temperature in sorted({sequence.temperature for sequence in sequences.values()})
        for plan in plan_micro_batches(
            {
                key: len(sequence)
                for key, sequence in sequences.items()
                if sequence.temperature == temperature
            },
            token_budget=token_budget,
            layout=layout,
            row_tokens=row_tokens,
        )
    )


class CausalScorer:
    """Log-probs and entropies of trained tokens under the model's present weights.

    Args:
        model: any causal language model; it must be in evaluation mode, so that dropout does not
            make the trainer's policy another one than the engine's.
        autocast: dtype of the matrix products of the model's body; None for the weights' own. The
            last projection and all that follows it are computed in the weights' dtype: a logit of
            20 in bfloat16 is off by up to 0.06, and that would go straight into the ratio.
        may_cut_short: take the short cut of `llama` if the model allows it. It ignores the layout
            and the model's kind of attention; the values are the same, up to rounding.

    Raises:
        ValueError: layout "packed" with a model whose layers do not all attend to everything.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        layout: Layout,
        autocast: torch.dtype | None,
        may_cut_short: bool = True,
    ) -> None:
        if layout == "packed":
            refuse_unpackable(model)
        self.model = model
        self.layout: Layout = layout
        self._autocast = autocast
        self._plain_head = _plain_head(model)
        allowed = may_cut_short and self._plain_head is not None
        self._short_cut = short_cut(model) if allowed else None

    def score(self, portion: Portion, *, exact: bool = False) -> TokenScores:
        """Score the portion's trained tokens [N], differentiably unless gradients are off.

        Args:
            exact: without autocast.
        """
        logits = self._logits(portion, None if exact else self._autocast)
        targets = self._tensor(portion.tokens(lambda sequence: sequence.targets))
        return token_scores(logits, targets, temperature=portion.temperature)

    def _logits(self, portion: Portion, autocast: torch.dtype | None) -> Tensor:
        """Logits [N, V] at the places that predict a trained token."""
        if self._short_cut is not None and self._plain_head is not None:
            return self._plain_head(self._by_short_cut(portion, self._short_cut, autocast))
        chosen = self._tensor(np.flatnonzero(portion.mask()))
        arguments = self._arguments(portion)
        device = self.model.device.type
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            if self._plain_head is None:
                logits = self.model(**arguments).logits
                return logits.flatten(0, 1).index_select(0, chosen)
            hidden = _body(self.model)(**arguments).last_hidden_state
        picked = hidden.flatten(0, 1).index_select(0, chosen)
        return self._plain_head(picked.to(self.model.dtype))

    def _by_short_cut(
        self, portion: Portion, run: LlamaShaped, autocast: torch.dtype | None
    ) -> Tensor:
        members = portion.members()
        ids = np.concatenate([member.inputs for member in members]).astype(np.int64)
        chosen = np.flatnonzero(np.concatenate([member.mask for member in members]))
        lengths = np.array([len(member) for member in members], np.int64)
        return run.hidden(self._tensor(ids), lengths, chosen, autocast)

    def _arguments(self, portion: Portion) -> dict[str, Tensor | bool | None]:
        arguments: dict[str, Tensor | bool | None] = {
            "input_ids": self._tensor(portion.inputs()),
            "use_cache": False,
        }
        if self.layout == "packed":
            arguments["position_ids"] = self._tensor(portion.plan.position_ids())
            arguments["attention_mask"] = self._attention(portion)
        return arguments

    def _attention(self, portion: Portion) -> Tensor:
        """The block-diagonal causal mask [R, 1, W, W], as the model's attention wants it."""
        allowed = self._tensor(block_causal_mask(portion.plan.segment_ids())).unsqueeze(1)
        if self.model.config._attn_implementation == "sdpa":
            return allowed
        dtype = self.model.dtype
        added = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return added.masked_fill(~allowed, torch.finfo(dtype).min)

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self.model.device)


def refuse_unpackable(model: PreTrainedModel) -> None:
    """Raise `ValueError` if a packed row's mask could not be given to every layer."""
    kinds: Sequence[str] = getattr(model.config, "layer_types", None) or ()
    windowed = not kinds and getattr(model.config, "sliding_window", None) is not None
    other = sorted(set(kinds) - {"full_attention"}) or (["sliding_attention"] if windowed else [])
    if other:
        raise ValueError(
            f'layout = "packed": this {model.config.model_type} model has {other[0]} layers, '
            'which one mask for all layers does not serve; use layout = "padded"'
        )


def _body(model: PreTrainedModel) -> PreTrainedModel:
    return getattr(model, model.base_model_prefix)


def _plain_head(model: PreTrainedModel) -> nn.Module | None:
    """The output embedding, if logits are that of the last hidden state and nothing more.

    Some families scale or cap their logits. They are told by trying, since no configuration key
    is common to all; for them all logits are computed and the wanted ones taken.
    """
    head = model.get_output_embeddings()
    if head is None or not hasattr(model, model.base_model_prefix):
        return None
    ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0) % model.config.vocab_size
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        split = head(_body(model)(input_ids=ids, use_cache=False).last_hidden_state)
    return head if torch.allclose(whole, split, rtol=1e-5, atol=1e-6) else None
