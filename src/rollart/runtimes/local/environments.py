"""Environments of one domain in killable children: the control side.

Owns a bounded number of hosts (one child each, several places a child) and who has which place.
Invariants: a place is given to the next episode only when the child no longer works for the last
one; when a child is lost, exactly the episode it was working for fails, and every other one is
rebuilt in a new child by replay at its next operation, in its own caller's task. Who waits on whom:
`open` waits for a free place, an operation for those before it in the same child, each of which
ends by its own deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollart.core.errors import ConfigError, EnvironmentFailed, FailureKind
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment
from rollart.core.types import Message, Observation, StepResult, Task
from rollart.process.child import Child
from rollart.process.errors import ProcessError
from rollart.runtimes.local.codec import (
    Packed,
    pack_message,
    pack_task,
    unpack_observation,
    unpack_step_result,
)
from rollart.runtimes.local.env_host import RESET, STEP
from rollart.runtimes.local.lane import Job, Lane, LaneLost, wait_until_gone
from rollart.runtimes.local.remote import in_a_line

LOSSES_BORNE = 20
"""How often one operation may lose its child to others before its episode fails."""

_CLOSE_S = 5.0
_DONE = 2  # place of `done` in a packed step result

ForkHost = Callable[[str], Awaitable[Child]]
"""Forks a child that runs `env_host.entry`, under the given name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """How many environments, how packed, and how long an operation may take (seconds)."""

    places: int
    per_process: int
    replayable: bool
    reset_s: float
    step_s: float


class LocalEnvironments:
    """The `Environments` port for one domain.

    Raises:
        ConfigError: several environments a process, and the class does not promise replay.
    """

    def __init__(self, domain: str, fork: ForkHost, limits: EnvironmentLimits) -> None:
        if limits.per_process > 1 and not limits.replayable:
            raise ConfigError(
                f"domains[{domain}].envs_per_process = {limits.per_process}: the environment does "
                "not declare `replayable = True`, so it cannot be rebuilt when a neighbour's step "
                "kills their process; use envs_per_process = 1"
            )
        hosts = -(-limits.places // limits.per_process)
        self._hosts = [_Host(f"{domain}-env-{number}", fork) for number in range(hosts)]
        # A stack: the place used last is used next, so few children do the work of few episodes.
        self._free = [
            (host, place) for host in reversed(self._hosts) for place in range(limits.per_process)
        ]
        self._available = asyncio.Semaphore(len(self._free))
        self._limits = limits
        self._closed = False

    @property
    def processes(self) -> int:
        """Children that live now."""
        return sum(host.lane is not None and host.lane.lost is None for host in self._hosts)

    async def open(self, trajectory: TrajectoryId) -> Environment:
        """A place for one episode, when there is one.

        Raises `EnvironmentFailed` (ENV_OPEN) when its child cannot be started.
        """
        await self._available.acquire()
        if self._closed:
            self._available.release()  # for the next one who waits
            raise EnvironmentFailed(FailureKind.ENV_OPEN, "the environments are closed")
        host, place = self._free.pop()
        episode = Episode(
            host, place, self._limits, str(trajectory), lambda: self._give_back(host, place)
        )
        try:
            await host.running()
        except BaseException:
            episode.kill()
            raise
        return episode

    async def close(self) -> None:
        """Kill every child and wait until they are gone, 5 s at most; `open` fails from now on."""
        self._closed = True
        self._available.release()
        lanes = [lane for host in self._hosts if (lane := host.close()) is not None]
        await wait_until_gone(lanes, _CLOSE_S)

    def _give_back(self, host: "_Host", place: int) -> None:
        self._free.append((host, place))
        self._available.release()


class _Host:
    """A child's name and its present lane; a lost child is replaced at the next need."""

    def __init__(self, name: str, fork: ForkHost) -> None:
        self.lane: Lane | None = None
        self._name = name
        self._fork = fork
        self._forking = asyncio.Lock()
        self._closed = False

    async def running(self) -> Lane:
        """The lane of a live child, forked if need be. Raises `EnvironmentFailed` (ENV_OPEN)."""
        if self.lane is not None and self.lane.lost is None:
            return self.lane
        async with self._forking:
            if self.lane is None or self.lane.lost is not None:
                try:
                    self.lane = await self._forked()
                except ProcessError as error:
                    raise EnvironmentFailed(
                        FailureKind.ENV_OPEN, f"{self._name} cannot be started: {in_a_line(error)}"
                    ) from error
            return self.lane

    def close(self) -> Lane | None:
        """Fork no more; returns the present lane."""
        self._closed = True
        return self.lane

    async def _forked(self) -> Lane:
        if self._closed:
            raise ProcessError("the environments are closed")
        lane = Lane(await self._fork(self._name))
        if self._closed:  # meanwhile
            lane.kill("it was closed")
        return lane


class Episode:
    """The `Environment` port: one episode at one place. One operation at a time."""

    def __init__(
        self,
        host: _Host,
        place: int,
        limits: EnvironmentLimits,
        name: str,
        on_free: Callable[[], None],
    ) -> None:
        self._host = host
        self._place = place
        self._limits = limits
        self._name = name
        self._on_free: Callable[[], None] | None = on_free
        self._killed = False
        self._lane: Lane | None = None  # where the episode's state is
        self._job: Job | None = None
        self._begun: tuple[Packed, int] | None = None
        self._actions: list[Packed] = []

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin the episode. Raises `EnvironmentFailed`, with a kind."""
        self._begun = (pack_task(task), seed)
        self._actions = []
        return unpack_observation(await self._operate(RESET, *self._begun))

    async def step(self, action: Message) -> StepResult:
        """Act with the agent's message. Raises `EnvironmentFailed`, with a kind."""
        packed = pack_message(action)
        result = await self._operate(STEP, packed)
        self._actions.append(packed)
        return unpack_step_result(result)

    def kill(self) -> None:
        """Let go; the place is free once the child no longer works for this episode."""
        if self._killed:
            return
        self._killed = True
        free, self._on_free = self._on_free, None
        if free is None:
            return
        if self._job is None or self._job.over:
            free()
        else:
            self._job.on_over = free
            if not self._job.answer.done():
                self._job.answer.set_exception(
                    EnvironmentFailed(FailureKind.ENV_DIED, f"{self._name} was killed")
                )

    async def _operate(self, operation: int, *args: Packed) -> Packed:
        """Run one operation, in as many children as it takes."""
        reason = ""
        for _ in range(LOSSES_BORNE):
            lane = await self._host.running()
            try:
                if operation == STEP and lane is not self._lane:
                    await self._rebuild(lane)
                self._lane = lane
                return await self._ask(lane, operation, *args)
            except LaneLost as lost:
                reason = lost.reason
                if lost.culprit:
                    kind = FailureKind.ENV_TIMEOUT if lost.overran else FailureKind.ENV_DIED
                    raise EnvironmentFailed(kind, self._tell(operation, reason)) from None
        raise EnvironmentFailed(
            FailureKind.ENV_DIED,
            f"{self._name} lost its process {LOSSES_BORNE} times in one operation, last: {reason}",
        )

    async def _rebuild(self, lane: Lane) -> None:
        """Replay the episode so far in a new child; what it returns is compared and discarded."""
        if self._begun is None:
            raise EnvironmentFailed(FailureKind.ENV_STEP, "step before reset: reset it first")
        if not self._limits.replayable:
            reason = None if self._lane is None else self._lane.lost
            raise EnvironmentFailed(FailureKind.ENV_DIED, f"{self._name}: {reason}")
        try:
            await self._ask(lane, RESET, *self._begun)
            for number, action in enumerate(self._actions):
                result = await self._ask(lane, STEP, action)
                if result[_DONE]:
                    raise EnvironmentFailed(
                        FailureKind.ENV_DIED,
                        f"the replay was over after action {number + 1}, the episode was not",
                    )
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                FailureKind.ENV_DIED,
                f"{self._name} could not be rebuilt ({error.detail}); an environment whose "
                "episodes differ under the same task, seed and actions must not declare "
                "replayable = True",
            ) from error

    async def _ask(self, lane: Lane, operation: int, *args: Packed) -> Packed:
        if self._killed:  # the place may be another episode's by now
            raise EnvironmentFailed(FailureKind.ENV_DIED, f"{self._name} was killed")
        if self._job is not None and not self._job.over:
            raise EnvironmentFailed(
                FailureKind.ENV_STEP, f"{self._name}: an operation is running; one at a time"
            )
        limit_s = self._limits.reset_s if operation == RESET else self._limits.step_s
        self._job = lane.submit(self._place, operation, *args, limit_s=limit_s)
        answer = await self._job.answer
        if answer[0]:
            return answer[1]
        raise EnvironmentFailed(FailureKind(answer[1]), self._tell(operation, answer[2]))

    def _tell(self, operation: int, reason: str) -> str:
        what = "reset" if operation == RESET else f"step {len(self._actions) + 1}"
        return f"{self._name} {what}: {reason}"
