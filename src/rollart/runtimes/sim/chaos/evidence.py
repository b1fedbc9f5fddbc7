"""What is known of a run from outside: its events, and what passed through its ports.

Invariant: nothing here comes from control's own objects, so checks over it share nothing with what
they judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollart.core.config import JobConfig
from rollart.core.events import Event
from rollart.core.tokens import VersionRuns
from rollart.core.types import GenerateRequest, TrainBatch

T = TypeVar("T")


class Dispatched(Protocol):
    """A request as an engine got it: when (loop time, s), and under which version of the engine.

    `sampled` are the versions that sampled its tokens since.
    """

    @property
    def at(self) -> float: ...
    @property
    def version(self) -> int: ...
    @property
    def request(self) -> GenerateRequest: ...
    @property
    def sampled(self) -> VersionRuns: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """What one engine was asked, in order; a replacement under the same name is another one."""

    id: str
    calls: Sequence[str]
    dispatches: Sequence[Dispatched]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One run.

    Attributes:
        steps: how many it says it did.
        events: (loop time in s, event), in order.
        batches: what the trainer trained, each with the version that was trained.
        engines: every engine there was, in order of launch.
    """

    job: JobConfig
    steps: int
    events: Sequence[tuple[float, Event]]
    batches: Sequence[tuple[int, TrainBatch]]
    engines: Sequence[EngineSeen]

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind, in order."""
        return [event for _, event in self.events if isinstance(event, kind)]


def group_of(trajectory: str) -> int:
    """The group's number in a training trajectory's name, as in `lake/task-3/g7.0.1`."""
    return int(trajectory.rsplit("/g", 1)[1].split(".", 1)[0])


def turn_of(request: str) -> str:
    """The turn that a request belongs to; what is sent again has another number behind the `#`."""
    return request.rpartition("#")[0]
