"""What goes wrong between the weight store and the engines that read it.

Invariant: a version that was lost stays lost; what is published later is sound.
"""

import asyncio
import math
from collections import defaultdict, deque

from rollart.core.errors import RollartError, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.runtimes.sim.chaos.driver import Placed


class WeightTrouble:
    """Asked at each pull and each publication."""

    def __init__(self) -> None:
        self._on_one: defaultdict[str, deque[Placed]] = defaultdict(deque)
        self._on_all: dict[Placed, float] = {}
        self._lost: list[tuple[int, Placed]] = []
        self._published = -1

    def fail_on(self, engine: str, placed: Placed) -> None:
        """The next pulls of this engine fail, as many as the fault says."""
        self._on_one[engine].append(placed)

    def fail_on_all(self, placed: Placed) -> None:
        """From the first pull that meets it, every pull fails while the fault lasts."""
        self._on_all[placed] = math.inf

    def lose_store(self, placed: Placed) -> None:
        """What is published now is lost; in one variant nothing can be published any more."""
        self._lost.append((self._published, placed))

    async def pull(self, engine: str, version: PolicyVersion) -> None:
        """Raises what a pull of `version` meets now; some hang first.

        Raises:
            WeightsMissing: the store has lost it.
            RuntimeError: the pull fails.
        """
        for newest, placed in self._lost:
            if version.number <= newest:
                placed.felt += 1
                raise WeightsMissing(f"weights {version} are in no store: it was lost")
        now = asyncio.get_running_loop().time()
        for placed, until in self._on_all.items():
            self._on_all[placed] = min(until, now + placed.fault.lasts_s)
            if now < self._on_all[placed]:
                placed.felt += 1
                raise RuntimeError(f"the pull of {version} failed, as on every engine")
        waiting = self._on_one[engine]
        if waiting:
            placed = waiting[0]
            placed.felt += 1
            placed.left -= 1
            if placed.left <= 0:
                waiting.popleft()
            if placed.fault.pick % 3 == 0:
                await asyncio.sleep(placed.fault.lasts_s)
            raise RuntimeError(f"the pull of {version} failed on {engine}")

    def publish(self) -> None:
        """Raises `RollartError` if the store is gone."""
        for _, placed in self._lost:
            if placed.fault.pick % 2:
                placed.felt += 1
                raise RollartError("the weight store is gone; start it again")

    def published(self, version: PolicyVersion) -> None:
        self._published = version.number
