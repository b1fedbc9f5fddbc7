"""Drawing tokens: one uniform number per (seed, offset), so a row never depends on its neighbours.

Invariant: the noise of a token is a function of its request's seed and of its position in the
completion alone; continuing at a later offset never replays a number.
"""

import numpy as np
import numpy.typing as npt
import torch

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FACTORS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea, Flood; OOPSLA 2014), element by element."""
    for shift, factor in FACTORS:
        state = (state ^ (state >> np.uint64(shift))) * factor
    return state ^ (state >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Numbers in (0, 1) with 52 random bits, shape of `seeds`; the seed is mixed before use."""
    bits = _mix(_mix(seeds + GAMMA) + (offsets + np.uint64(1)) * GAMMA) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


@torch.inference_mode()
def draw(
    logits: torch.Tensor,
    temperatures: npt.NDArray[np.float32],
    seeds: npt.NDArray[np.uint64],
    offsets: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Sample one token a row over the full vocabulary, by inverting the cumulative distribution.

    Args:
        logits: [rows, vocabulary], any float dtype.
        temperatures: [rows]; 0 takes the most likely token and reports its log-prob at 1.
        seeds, offsets: [rows], see `uniforms`.

    Returns:
        ids [rows] and the log-softmax of logits / temperature at them [rows].

    Raises:
        FloatingPointError: the distribution is not finite, as after a diverged weight update.
    """
    greedy = temperatures == 0
    scale = torch.from_numpy(np.where(greedy, np.float32(1), temperatures)).to(logits.device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    # The sum runs in float64: in float32 the tail of a large vocabulary would be lost.
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    noise = torch.from_numpy(uniforms(seeds, offsets)).to(logits.device)
    target = (noise * cumulative[:, -1])[:, None]
    ids = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[1] - 1)
    if greedy.any():
        best = logprobs.argmax(-1, keepdim=True)
        ids = torch.where(torch.from_numpy(greedy).to(ids.device)[:, None], best, ids)
    chosen = logprobs.gather(1, ids)[:, 0].cpu().numpy()
    if not np.isfinite(chosen).all():
        raise FloatingPointError("the model's logits are not finite; load sound weights")
    return ids[:, 0].to(torch.int32).cpu().numpy(), chosen
