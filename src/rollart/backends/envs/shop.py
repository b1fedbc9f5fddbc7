"""A shop behind tools: what an order costs, whose prices only look-ups tell.

Owns the tasks, their split and the right answers. Invariant: an order belongs to the held-out or
to the training side by its own hash, whatever seed drew it, so no order is met on both.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rollart.backends.envs.tools import ToolEnvironment, ToolEpisode
from rollart.core.types import JsonValue, Task

ITEMS = ("apple", "bread", "candle", "fig", "honey", "jar", "lamp", "melon", "pear", "soap")
HIGHEST_PRICE = 9
HIGHEST_COUNT = 9
HELDOUT_BUCKETS = 4
BASELINE_TRAINING_TASKS = 500

Payload = dict[str, JsonValue]


class Shop(ToolEnvironment):
    """Say what an order costs: look prices up, multiply, add, answer with the number alone.

    Options: ``kinds``, how many different things an order holds (1 to 10; three need about six
    calls), and those of `ToolEnvironment`. A turn's reward is 0 except the last one's: 1 for the
    right sum, else 0. An order and its prices are the task, so that any two episodes of one task
    are the same.
    """

    def __init__(
        self,
        *,
        kinds: int = 2,
        instructions: str = "",
        declare: bool = True,
        most_calls: int = 8,
    ) -> None:
        """Take the domain's options; raises ValueError for an impossible order."""
        _check_kinds(kinds)
        super().__init__(instructions=instructions, declare=declare, most_calls=most_calls)

    def begin(self, task: Task, seed: int) -> ToolEpisode:
        """The order and prices in the payload; raises ValueError where it has none."""
        order, prices = _numbers(task, "order"), _numbers(task, "prices")

        def price(item: str) -> int:
            """What one piece of an item costs."""
            if item not in prices:
                raise ValueError(f"there is no {item!r}; there are: {', '.join(sorted(prices))}")
            return prices[item]

        def multiply(a: int, b: int) -> int:
            """The product of two numbers."""
            return a * b

        def add(numbers: list[int]) -> int:
            """The sum of numbers."""
            return sum(numbers)

        words = ", ".join(f"{count} {item}" for item, count in order.items())
        right = sum(count * prices[item] for item, count in order.items())
        return ToolEpisode(
            question=f"What does this order cost: {words}? Answer with the number only.",
            tools=(price, multiply, add),
            judge=lambda answer: float(answer == str(right)),
        )

    @staticmethod
    def train_tasks(seed: int, *, kinds: int = 2, **_options: object) -> Iterator[Payload]:
        """The endless training sequence of ``seed``; no held-out order is ever in it."""
        _check_kinds(kinds)
        rng = random.Random(f"shop-train:{seed}")
        while True:
            task = _draw(rng, kinds)
            if not is_heldout(task):
                yield task

    @staticmethod
    def heldout_tasks(
        count: int, seed: int, *, kinds: int = 2, **_options: object
    ) -> Sequence[Payload]:
        """``count`` distinct tasks of the held-out side; raises ValueError if there are fewer."""
        _check_kinds(kinds)
        rng = random.Random(f"shop-heldout:{seed}")
        found: dict[str, Payload] = {}
        for _ in range(200 * count):
            if len(found) == count:
                break
            task = _draw(rng, kinds)
            if is_heldout(task):
                found[json.dumps(task["order"], sort_keys=True)] = task
        if len(found) < count:
            raise ValueError(f"count = {count}: only {len(found)} distinct orders of {kinds} kinds")
        return list(found.values())

    @staticmethod
    def baselines(
        tasks: Sequence[Mapping[str, JsonValue]], *, kinds: int = 2, **_options: object
    ) -> Mapping[str, float]:
        """Success on ``tasks`` of the commonest sum, and of "every price is the mean price"."""
        training = Shop.train_tasks(0, kinds=kinds)
        seen = Counter(cost_of(next(training)) for _ in range(BASELINE_TRAINING_TASKS))
        commonest = seen.most_common(1)[0][0]
        mean = (1 + HIGHEST_PRICE) // 2
        number = max(len(tasks), 1)
        return {
            "always the commonest sum": sum(cost_of(task) == commonest for task in tasks) / number,
            "the mean price for every item": sum(
                cost_of(task) == mean * sum(_mapping(task, "order").values()) for task in tasks
            )
            / number,
        }


def cost_of(payload: Mapping[str, JsonValue]) -> int:
    """What the order of a task costs."""
    prices = _mapping(payload, "prices")
    return sum(count * prices[item] for item, count in _mapping(payload, "order").items())


def is_heldout(payload: Mapping[str, JsonValue]) -> bool:
    """Whether the order's hash puts the task on the held-out side: one in ``HELDOUT_BUCKETS``."""
    order = json.dumps(payload["order"], sort_keys=True)
    digest = hashlib.blake2b(order.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % HELDOUT_BUCKETS == 0


def _draw(rng: random.Random, kinds: int) -> Payload:
    return {
        "order": {item: rng.randint(1, HIGHEST_COUNT) for item in rng.sample(ITEMS, kinds)},
        "prices": {item: rng.randint(1, HIGHEST_PRICE) for item in ITEMS},
    }


def _check_kinds(kinds: int) -> None:
    if not 1 <= kinds <= len(ITEMS):
        raise ValueError(f"kinds = {kinds}: from 1 to {len(ITEMS)}, for example 2")


def _mapping(payload: Mapping[str, JsonValue], key: str) -> Mapping[str, int]:
    return cast("Mapping[str, int]", payload[key])


def _numbers(task: Task, key: str) -> dict[str, int]:
    found = task.payload.get(key)
    if not isinstance(found, Mapping) or not all(isinstance(n, int) for n in found.values()):
        raise ValueError(
            f"task {task.key!r} has {key} {found!r}: give whole numbers by item, "
            "for example {'order': {'fig': 2}, 'prices': {'fig': 3}}"
        )
    return dict(_mapping(task.payload, key))
