"""The trainer in a child process: the control side.

Owns the version number as control sees it. Invariant: it is that of the last step that the child
acknowledged. Who waits on whom: callers wait for the child, under a deadline; one that passes ends
the child, since its state is unknown from then on.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollart.core.errors import TrainerLost
from rollart.core.identity import PolicyVersion
from rollart.core.types import LogprobGap, TrainBatch, TrainStats, Trajectory
from rollart.process.child import Child
from rollart.process.errors import CallTimeout, ChildDied, RemoteError
from rollart.runtimes.local.busy import Interval
from rollart.runtimes.local.codec import (
    Packed,
    pack_group,
    pack_trajectory,
    unpack_gap,
    unpack_stats,
)
from rollart.runtimes.local.remote import as_core_error, in_a_line

_CLOSE_GRACE_S = 2.0

OnBusy = Callable[[Interval], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLimits:
    """Seconds until an unanswered command counts as the trainer's death."""

    train_s: float
    publish_s: float


class LocalTrainer:
    """The `Trainer` port over one child that runs `trainer_child.entry`."""

    def __init__(
        self, child: Child, *, worker: str, policy: str, limits: TrainerLimits, on_busy: OnBusy
    ) -> None:
        self._child = child
        self._worker = worker
        self._version = PolicyVersion(policy, 0)
        self._limits = limits
        self._on_busy = on_busy
        child.on_event = self._on_event

    @property
    def version(self) -> PolicyVersion:
        return self._version

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    @property
    def child(self) -> Child:
        """The process, for whoever watches or replaces this handle."""
        return self._child

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        """Train once; afterwards `version` is one higher.

        Raises:
            TrainerLost: the child is gone, or did not answer in time and was killed.
            ConfigError, RollartError: it refused the batch; nothing was changed.
        """
        groups: list[Packed] = []
        for group in batch.groups:
            groups.append(pack_group(group))
            await asyncio.sleep(0)  # a large batch must not hold up the loop
        packed = await self._call(
            "train_step", (batch.step, groups, batch.progress), seconds=self._limits.train_s
        )
        stats = unpack_stats(packed)
        self._version = PolicyVersion(self._version.policy, stats.version)
        return stats

    async def publish(self) -> PolicyVersion:
        """Commit the present version to the weight store. Raises `TrainerLost`."""
        number = await self._call("publish", seconds=self._limits.publish_s)
        return PolicyVersion(self._version.policy, number)

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        """Compare the recorded log-probs with the trainer's own. Raises `TrainerLost`."""
        packed = [pack_trajectory(trajectory) for trajectory in trajectories]
        answer = await self._call("score", packed, temperature, seconds=self._limits.train_s)
        return unpack_gap(answer)

    async def save(self, directory: str) -> None:
        """Write the weights as a model directory. Raises `TrainerLost`."""
        await self._call("save", directory, seconds=self._limits.train_s)

    async def wait_dead(self) -> str:
        """Why the child ended, once it has."""
        return in_a_line(await asyncio.shield(self._child.died))

    async def close(self) -> None:
        """End the child, in order if it can, and wait until it is gone."""
        await self._child.close(_CLOSE_GRACE_S)

    async def _call(self, method: str, *args: Packed, seconds: float) -> Packed:
        try:
            return await self._child.call(method, *args, timeout=seconds)
        except RemoteError as error:
            raise as_core_error(error, self._worker) from error
        except ChildDied as error:
            raise TrainerLost(f"{self._worker}: {in_a_line(error.report)}") from error
        except CallTimeout as error:
            self._child.kill()
            raise TrainerLost(
                f"{self._worker}: no answer to {method} within {seconds:g} s; it was killed"
            ) from error

    def _on_event(self, intervals: list[Packed]) -> None:
        for work, begin, end in intervals:
            self._on_busy((work, begin, end))
