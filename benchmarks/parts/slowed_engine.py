"""An engine that emulates a hardware class: it sleeps in proportion to the tokens it computes.

Nothing else about it is emulated: it is the local runtime's engine process, with the same model,
commands and frames, and the sleep comes after the step's real computing.
"""

import time
from dataclasses import replace
from typing import Any

import msgspec

from benchmarks.parts.pace import Pace, SlowedConfig
from rollart.backends.engines.hf_batcher import BusyInterval, HFBatcher
from rollart.core.types import TokenDelta
from rollart.process.serve import ChildPort
from rollart.runtimes.local.engine_child import serve


class SlowedBatcher(HFBatcher):
    """Sleeps after each step, and counts that as busy."""

    pace: Pace

    def step(self) -> list[TokenDelta]:
        before = self._prefilled()
        deltas = super().step()
        ended = sum(delta.cost.prefill_tokens for delta in deltas if delta.cost is not None)
        prefilled = self._prefilled() + ended - before
        self._sleep(prefilled * self.pace.prefill_s + len(deltas) * self.pace.decode_s)
        return deltas

    def rebuild_kv(self) -> int:
        tokens = super().rebuild_kv()
        self._sleep(tokens * self.pace.prefill_s)
        return tokens

    def _prefilled(self) -> int:
        """Prompt tokens computed for the requests that now run."""
        return sum(row.prefill_tokens for row in self._running.values())

    def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        time.sleep(seconds)
        if self._busy:
            last: BusyInterval = self._busy.pop()
            self._busy.append(replace(last, end=time.monotonic()))


def entry(port: ChildPort, config: Any) -> None:
    """As `engine_child.entry`, with the batcher slowed down."""
    settings = msgspec.convert(config, SlowedConfig)
    SlowedBatcher.pace = settings.pace
    serve(port, settings.engine, SlowedBatcher)
