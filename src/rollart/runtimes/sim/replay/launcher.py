"""The launcher of a replay: every part plays the same record.

Invariant: what was launched by a run comes up, or fails to, as it did.
"""

from collections.abc import Mapping, Sequence

from rollart.control.protocols import protocol_policy
from rollart.core.config import JobConfig
from rollart.core.errors import RollartError
from rollart.core.events import (
    EngineUp,
    Event,
    Warned,
)
from rollart.core.ports import (
    Binding,
    ClassPath,
    Engine,
    Environments,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.types import (
    Task,
)
from rollart.runtimes.sim.replay.answered_engine import AnsweredEngine
from rollart.runtimes.sim.replay.answering import Answering
from rollart.runtimes.sim.replay.causes import when
from rollart.runtimes.sim.replay.comparing import Ask, Cause
from rollart.runtimes.sim.replay.conductor import Conductor
from rollart.runtimes.sim.replay.engine import ReplayEngine
from rollart.runtimes.sim.replay.episodes import ReplayEnvironments, ReplayRenderer, ReplayReward
from rollart.runtimes.sim.replay.tasks import ReplayTasks
from rollart.runtimes.sim.replay.trainer import ReplayTrainer

NOT_RESTARTED = "did not restart: "


class ReplayLauncher:
    """Launches the parts of one replay, by causes or by passes as it is conducted."""

    def __init__(self, conductor: Answering | Conductor, job: JobConfig) -> None:
        self._conductor = conductor
        self._job = job
        self._engines: dict[str, ReplayEngine | AnsweredEngine] = {}
        self._lockstep = protocol_policy(job.protocol.name, job.alpha).lockstep
        conductor.before_timer = self._show_life

    def _show_life(self, time: float) -> None:
        """Engines that were at work until `time` yielded tokens until then."""
        for engine in self._engines.values():
            if not engine.silent and not self._stalls(time):
                engine.show_life()

    def _stalls(self, time: float) -> bool:
        """Whether the run ended because nothing came for `stall_s`, and `time` lies within."""
        end = self._conductor.record.stalled_at
        return end is not None and time > end - self._job.timeouts.stall_s

    async def engine(self, binding: Binding) -> Engine:
        conductor, name = self._conductor, binding.worker
        place = conductor.place - 1
        head = f"engine {name} {NOT_RESTARTED}"
        up = conductor.record.next_of(EngineUp, place, lambda event: event.engine == name)
        refused = conductor.record.next_of(
            Warned, place, lambda event: event.message.startswith(head)
        )
        fails = refused is not None and (up is None or refused[0].seq < up[0].seq)
        first = name not in self._engines

        def causes(event: Event) -> Cause:
            if fails and refused is not None:
                return Cause.ERROR if event is refused[1] else Cause.NO
            if not isinstance(event, EngineUp):
                return Cause.NO
            return when(event.engine == name or first)

        def launched() -> Engine:
            if fails and refused is not None:
                raise RollartError(refused[1].message.removeprefix(head))
            engine = self._engines[name] = self._engine(binding)
            return engine

        return await conductor.ask(Ask(what=f"{name} to come up", causes=causes), launched)

    def _engine(self, binding: Binding) -> ReplayEngine | AnsweredEngine:
        engine_s = self._job.timeouts.engine_s
        if isinstance(self._conductor, Answering):
            return AnsweredEngine(self._conductor, binding, engine_s=engine_s)
        return ReplayEngine(self._conductor, binding, engine_s=engine_s)

    async def trainer(self, binding: Binding) -> Trainer:
        return ReplayTrainer(self._conductor)

    async def environments(self, domain: str) -> Environments:
        unknown_ends = self._lockstep or isinstance(self._conductor, Answering)
        return ReplayEnvironments(self._conductor, unknown_ends=unknown_ends)

    async def tasks(self, domain: str) -> TaskSource:
        return ReplayTasks(self._conductor, domain)

    async def heldout(self, domain: str, count: int) -> tuple[Task, ...]:
        return self._conductor.record.heldout(domain)

    async def baselines(
        self, domain: str, heldout: Sequence[Task]
    ) -> tuple[tuple[str, float], ...]:
        return ()

    async def reward(self, domain: str) -> Reward:
        return ReplayReward(self._conductor)

    async def renderer(self) -> Renderer:
        return ReplayRenderer(
            self._conductor,
            context=self._job.model.context,
            lockstep=self._lockstep,
        )

    async def worker(
        self, binding: Binding, kind: ClassPath, options: Mapping[str, object]
    ) -> WorkerHandle:
        raise RollartError(f"a replay runs no user's class, and {kind} is one")

    async def close(self) -> None:
        return
