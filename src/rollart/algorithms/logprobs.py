"""Log-probability of given tokens, and the entropy of the distributions they came from.

Invariant: both are those of softmax(logits / temperature), which is what an engine samples from
and reports, so the two sides of an importance ratio speak of one distribution.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# 64 MiB of float32: large enough that a small vocabulary is one chunk, small against the logits
# of a large one.
DEFAULT_CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Per token, in the shape of the ids: log-probability and entropy, both in nats."""

    logprobs: Tensor
    entropy: Tensor


def token_scores(
    logits: Tensor,
    ids: Tensor,
    *,
    temperature: float,
    chunk_elements: int = DEFAULT_CHUNK_ELEMENTS,
) -> TokenScores:
    """Score `ids` under softmax(logits / temperature), differentiably in `logits`.

    The caller aligns the two: a causal model's logits at position t speak of the id at t + 1, so
    rows of shape [B, L] are scored as `token_scores(logits[:, :-1], ids[:, 1:], ...)`. The score
    of a sequence's first token is then meaningless (in a packed row it comes from the sequence
    before) and must be masked out.

    Computed in float32 (float64 if the logits are), `chunk_elements` logits at a time, and a
    chunk is computed again in the backward pass instead of being kept: beyond the logits and
    their gradient, memory does not grow with the number of tokens times the vocabulary.

    Args:
        logits: [..., V] floating point.
        ids: [...] integer, each in 0..V-1.
        temperature: the one the engine sampled with, above 0.

    Raises:
        ValueError: shapes do not agree, or the temperature is not above 0.
    """
    if logits.shape[:-1] != ids.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and ids {tuple(ids.shape)} do not agree; "
            "logits need the shape of ids plus one axis for the vocabulary"
        )
    if not temperature > 0.0:
        raise ValueError(
            f"temperature is {temperature}; it must be above 0, since greedy choices "
            "have no log-probability to train on"
        )
    flat = logits.reshape(-1, logits.shape[-1])
    rows = max(1, chunk_elements // logits.shape[-1])
    # split, not slices: its backward is one concatenation, where every slice would allocate and
    # add a gradient as large as all logits.
    chunks = list(zip(flat.split(rows), ids.reshape(-1).split(rows), strict=True))
    if len(chunks) == 1:
        logprobs, entropy = _score_chunk(*chunks[0], temperature)
    else:
        scored = [
            checkpoint(
                _score_chunk, *chunk, temperature, use_reentrant=False, preserve_rng_state=False
            )
            for chunk in chunks
        ]
        logprobs = torch.cat([part[0] for part in scored])
        entropy = torch.cat([part[1] for part in scored])
    return TokenScores(logprobs=logprobs.view(ids.shape), entropy=entropy.view(ids.shape))


def _score_chunk(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_p = torch.log_softmax(logits.to(dtype) / temperature, dim=-1)
    chosen = log_p.gather(-1, ids.long().unsqueeze(-1)).squeeze(-1)
    return chosen, -(log_p.exp() * log_p).sum(-1)
