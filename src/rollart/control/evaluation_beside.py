"""Evaluation beside training: held-out tasks under the version that rollout goes on with.

Invariant: every sample of a round comes from one version, because the next update waits for the
round to end; training and rollout go on meanwhile. A round that fails is told and hurts no one.
Who waits: weight_sync, before it suspends, for `settled` (bounded by the round's deadline).
"""

import asyncio

from rollart.control.evaluation import Evaluator
from rollart.core.events import Warned
from rollart.core.ports import EventSink


class EvaluationBeside:
    """Starts a round after each `every` versions; never when `every` is 0.

    Args:
        round_s: seconds after which a round is given up, so that training goes on.
    """

    def __init__(
        self, evaluator: Evaluator, *, every: int, round_s: float, events: EventSink
    ) -> None:
        self._evaluator = evaluator
        self._every = every
        self._round_s = round_s
        self._events = events
        self._group: asyncio.TaskGroup | None = None
        self._round: asyncio.Task[None] | None = None
        self._begun_at = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def resumed(self, version: int) -> None:
        """Rollout goes on under `version`: begin a round if one is due."""
        due = self._every > 0 and version >= self._begun_at + self._every
        if due and self._group is not None:
            self._begun_at = version
            self._round = self._group.create_task(self._evaluate(version))

    async def _evaluate(self, version: int) -> None:
        try:
            async with asyncio.timeout(self._round_s):
                await self._evaluator.evaluate_beside(f"version {version}", version)
        except Exception as error:
            self._events.emit(
                Warned(message=f"the evaluation of version {version} was given up: {error!r}")
            )

    async def settled(self) -> None:
        """Returns when no round is under way."""
        if self._round is not None:
            await asyncio.wait([self._round])
            self._round = None

    def stop(self) -> None:
        if self._round is not None:
            self._round.cancel()
