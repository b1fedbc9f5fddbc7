"""New weights for a live model: copied in place, all of them or none.

Invariant: everything is checked before anything is written.
"""

from collections import Counter
from collections.abc import Iterable

import torch

from rollart.core.errors import RollartError


class WeightsRejected(RollartError):
    """New weights do not fit the model. Nothing was written: the old version is whole."""


@torch.no_grad()
def load_in_place(
    model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], what: str
) -> None:
    """Copy `tensors` (name, tensor) into the parameters and saved buffers of `model`.

    Each must come exactly once, in shape and dtype. Of tied ones any name will do, and several if
    their contents agree.

    Raises:
        WeightsRejected: names every misfit (at most eight), with `what` it was that did not fit.
    """
    pairs = list(tensors)
    state = model.state_dict(keep_vars=True)
    aliases: dict[int, list[str]] = {}
    for name, own in state.items():
        aliases.setdefault(id(own), []).append(name)
    times, given = Counter(name for name, _ in pairs), dict(pairs)
    problems = [f"unexpected {name}" for name in given if name not in state]
    problems += [f"{name} given {count} times" for name, count in times.items() if count > 1]
    for names in aliases.values():
        sent = [name for name in names if name in given]
        if not sent:
            problems.append(f"missing {' or '.join(names)}")
        problems += [_misfit(name, given[name], state[name]) for name in sent]
        if not any(problems):
            problems += [
                f"{name} is tied to {sent[0]} and differs from it"
                for name in sent[1:]
                if not torch.equal(given[name], given[sent[0]])
            ]
    problems = [problem for problem in problems if problem]
    if problems:
        raise WeightsRejected(
            f"{what} does not fit, the old weights stay: {'; '.join(problems[:8])}; "
            "send every tensor of this model's state dict once"
        )
    for name, new in given.items():
        state[name].copy_(new)


def _misfit(name: str, new: torch.Tensor, own: torch.Tensor) -> str:
    if new.shape == own.shape and new.dtype == own.dtype:
        return ""
    return f"{name} is {new.dtype} {tuple(new.shape)}, not {own.dtype} {tuple(own.shape)}"
