"""A request as a replayed engine holds it, and what the record knows of its tokens.

Ids are unknown: blocks have a length and no content.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollart.core.events import TurnEnded
from rollart.core.ports import DeltaSink
from rollart.core.tokens import LengthOnly
from rollart.core.types import GenerateRequest, RequestCost, StopReason, TokenDelta
from rollart.runtimes.sim.replay.record import Story

_MISMATCH = re.compile(r"returned (\d+) ids and (\d+) log-probs")


@dataclass(slots=True, eq=False)
class Running:
    """`serial` counts the dispatches of the turn; `finish` is what will end it, if anything."""

    request: GenerateRequest
    sink: DeltaSink
    trajectory: str
    turn: int
    serial: int
    finish: Any = None

    def send(
        self,
        ids: int,
        *,
        version: int = -1,
        logprobs: int | None = None,
        finish: StopReason | None = None,
        cost: RequestCost | None = None,
        refused: str | None = None,
    ) -> None:
        """So many tokens come, or what else a delta may bring."""
        self.sink(
            TokenDelta(
                request_id=self.request.id,
                ids=LengthOnly(ids),
                logprobs=LengthOnly(ids if logprobs is None else logprobs),
                version=version,
                finish=finish,
                cost=cost,
                refused=refused,
            )
        )

    def stream(self, versions: Sequence[tuple[int, int]]) -> None:
        """Tokens come, in runs of one version."""
        for version, count in versions:
            self.send(count, version=version)

    def end_turn(self, turn: TurnEnded, leave: Callable[[], object]) -> None:
        """All of the turn's tokens come; `leave` is called before the last."""
        self.stream(turn.versions[:-1])
        version, count = turn.versions[-1] if turn.versions else (-1, 0)
        leave()
        self.send(count, version=version, finish=StopReason(turn.stop), cost=turn.cost)


def running_of(run_id: str, request: GenerateRequest, sink: DeltaSink) -> Running:
    """Whose turn a request is, by its name."""
    name, _, rest = request.id.removeprefix(f"{run_id}/").rpartition("/t")
    turn, _, serial = rest.partition("#")
    return Running(request, sink, name, int(turn), int(serial))


def mismatch(story: Story) -> tuple[int, int] | None:
    """Ids and log-probs of the malformed answer that ended a trajectory, if one did."""
    found = _MISMATCH.search(story.ended.detail) if story.ended is not None else None
    return (int(found.group(1)), int(found.group(2))) if found is not None else None
