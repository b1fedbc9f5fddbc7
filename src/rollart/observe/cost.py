"""What the GPUs of a run cost, and what that buys.

Invariant: GPUs are those that its workers were bound to, as long as it lasts; without a price for
each of their classes there is none for the run. Prices are relative: an hour of an H20 is 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollart.observe.history import History
from rollart.observe.summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`gpus` by class, what an hour of them costs, and tokens trained on a second for each 1 of it.

    The second is of training, from the first get_batch to the end of the last train step.
    """

    gpus: tuple[tuple[str, int], ...]
    price: float | None
    trained_tokens_per_s: float | None

    @property
    def words(self) -> str:
        """The GPUs, as `32 H20, 96 H800`."""
        return ", ".join(f"{count} {name}" for name, count in self.gpus)


def cost_of(history: History, summary: RunSummary, prices: Mapping[str, float]) -> Cost:
    """The cost of a run, by the prices of GPU classes."""
    gpus = tuple(sorted(history.idle.gpus.items()))
    known = bool(gpus) and all(name in prices for name, _ in gpus)
    price = sum(count * prices[name] for name, count in gpus) if known else None
    bought = None
    if price and summary.train_s > 0:
        bought = summary.trained_tokens / summary.train_s / price
    return Cost(gpus=gpus, price=price, trained_tokens_per_s=bought)
