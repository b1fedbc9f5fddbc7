"""The other parts of a replay: trainer, environments, rewards, renderer, tasks and launcher.

Invariant: each answers as the record says, when the conductor says; none decides anything. What
the record has nothing of never answers, unless nothing else explains what came next.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

from rollart.control.protocols import protocol_policy
from rollart.control.task_queue import PATIENCE_S, STARVED_S, next_domain
from rollart.core.config import JobConfig
from rollart.core.errors import EnvironmentFailed, FailureKind, RollartError
from rollart.core.events import (
    Admitted,
    CreditsReturned,
    DomainClosed,
    EngineUp,
    EnvironmentReset,
    Event,
    GapMeasured,
    Phase,
    PhaseEnded,
    RunEnded,
    StepTrained,
    TrajectoryEnded,
    TurnEnded,
    Warned,
)
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import (
    Binding,
    Engine,
    Environment,
    Environments,
    Rendered,
    Renderer,
    Reward,
    TaskSource,
    Trainer,
    WorkerHandle,
)
from rollart.core.tokens import LengthOnly, TokenBlock
from rollart.core.types import (
    LogprobGap,
    Message,
    Observation,
    StepResult,
    Task,
    TrainBatch,
    TrainStats,
    Trajectory,
    Verdict,
)
from rollart.runtimes.sim.replay.conductor import EPSILON_S, Ask, Cause, Conductor
from rollart.runtimes.sim.replay.engine import ReplayEngine
from rollart.runtimes.sim.replay.record import NOT_SAVED, TRAINER_DIED, Story

SOURCE_FAILED = "its tasks failed: "
NOT_RESTARTED = "did not restart: "
STALE_AT_TURN = "stale at a turn"


class ReplayEnvironment:
    """One trajectory's environment. A message says which turn it belongs to, and nothing else.

    In lockstep, one of which nothing more is recorded had ended, and waited for the others: else
    it would have been asked for another turn with them.
    """

    def __init__(self, conductor: Conductor, name: str, *, lockstep: bool) -> None:
        self._lockstep = lockstep
        self._conductor = conductor
        self._name = name
        self._story = conductor.record.stories[name]
        self._turn = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        ask = Ask(what=f"{self._name} to be reset", about=self._name, causes=self._resets)
        return await self._conductor.ask(ask, self._first)

    def _resets(self, event: Event) -> Cause:
        if not isinstance(event, EnvironmentReset):
            return Cause.NO
        if event.ok:
            return Cause.ANSWER
        return Cause.ERROR if self._story.failure() is not None else Cause.NO

    def _first(self) -> Observation:
        reset = self._story.reset
        if reset is None or not reset.ok:
            _fail(self._story)
        return Observation(messages=(Message(role="user", content=f"{self._name}\n0"),))

    async def step(self, action: Message) -> StepResult:
        turn, self._turn = self._turn, self._turn + 1
        story = self._story
        failed = story.ended is not None and story.ended.turns <= turn
        cut = turn == story.cut_in_step

        def causes(event: Event) -> Cause:
            if not isinstance(event, TurnEnded) or event.turn != turn or cut:
                return Cause.NO
            if failed:
                return Cause.ERROR if story.failure() is not None else Cause.NO
            return Cause.ANSWER

        ask = Ask(
            what=f"{self._name} to end turn {turn}",
            about=self._name,
            causes=causes,
            last=0 if cut else None,
            may_last=lambda event: isinstance(event, TurnEnded) and event.trajectory == self._name,
        )
        return await self._conductor.ask(ask, partial(self._stepped, turn, failed=failed))

    def _stepped(self, turn: int, *, failed: bool) -> StepResult:
        story = self._story
        if failed:
            _fail(story)
        success = story.ended.success if story.ended is not None else None
        messages = (Message(role="user", content=f"{self._name}\n{turn + 1}"),)
        return StepResult(
            observation=Observation(messages=messages),
            done=story.after(turn).done or (self._lockstep and not story.after(turn).known),
            metrics=() if success is None else (("success", success),),
        )

    def kill(self) -> None:
        return


def _fail(story: Story) -> NoReturn:
    raise EnvironmentFailed(*(story.failure() or (FailureKind.CONTROL, "it is not recorded")))


class ReplayEnvironments:
    """Opens an environment when its reset is known to have begun."""

    def __init__(self, conductor: Conductor, *, lockstep: bool) -> None:
        self._conductor = conductor
        self._lockstep = lockstep

    async def open(self, trajectory: TrajectoryId) -> Environment:
        name = str(trajectory)
        story = self._conductor.record.stories[name]
        ask = Ask(what=f"an environment for {name}", about=name)
        if story.reset is not None:
            ask.due = story.reset_time - story.reset.seconds
            ask.causes = lambda event: _when(isinstance(event, EnvironmentReset))
        elif story.failure() is not None:
            ask.causes = lambda event: (
                Cause.ERROR if isinstance(event, TrajectoryEnded) else Cause.NO
            )

        def opened() -> Environment:
            if story.reset is None:
                _fail(story)
            return ReplayEnvironment(self._conductor, name, lockstep=self._lockstep)

        return await self._conductor.ask(ask, opened)

    async def close(self) -> None:
        return


class ReplayReward:
    """Gives the recorded score, or the recorded reason for none."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    async def score(self, trajectory: Trajectory) -> Verdict:
        name = str(trajectory.id)
        ended = self._conductor.record.stories[name].ended

        def causes(event: Event) -> Cause:
            if ended is None or not isinstance(event, TrajectoryEnded):
                return Cause.NO
            if ended.failure == FailureKind.DEADLINE:
                return Cause.NO
            return Cause.ANSWER if ended.score is not None else Cause.ERROR

        def verdict() -> Verdict:
            assert ended is not None
            if ended.score is not None:
                return Verdict(score=ended.score)
            kind = FailureKind(ended.failure) if ended.failure else None
            return Verdict(score=None, reason=ended.detail, failure=kind)

        ask = Ask(what=f"a verdict on {name}", about=name, causes=causes)
        return await self._conductor.ask(ask, verdict)

    async def close(self) -> None:
        return


class ReplayRenderer:
    """Gives blocks of the recorded lengths, when the next tokens were asked for.

    Args:
        context: tokens that a sequence may hold.
        lockstep: whether trajectories wait for each other between an answer and its step.
    """

    def __init__(self, conductor: Conductor, *, context: int, lockstep: bool) -> None:
        self._conductor = conductor
        self._context = context
        self._lockstep = lockstep

    def _whose(self, message: Message) -> tuple[str, int]:
        name, _, turn = message.content.rpartition("\n")
        return name, int(turn)

    async def open(self, messages: Sequence[Message]) -> Rendered:
        name, _ = self._whose(messages[-1])
        story = self._conductor.record.stories[name]
        if story.prompt(0) is None and story.ended is None:
            await self._unknown(name, story)
        await self._until(name, story.asked_at(0))
        return Rendered(tokens=LengthOnly(story.opening(self._context)))

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        name, following = self._whose(messages[-1])
        story = self._conductor.record.stories[name]
        after = story.after(following - 1)
        if not after.known:
            await self._unknown(name, story)
        await self._until(name, story.asked_at(following))
        return Rendered(tokens=LengthOnly(after.tokens), restarts=after.restarts)

    async def _unknown(self, name: str, story: Story) -> None:
        """The record has nothing of it afterwards: it stood here, or was judged, when it ended.

        Or it ended its group itself, by asking whether it might go on.
        """
        ended_it = story.disposed is not None and story.disposed.reason == STALE_AT_TURN
        waits_for_others = self._lockstep and story.disposed is not None
        await self._conductor.ask(
            Ask(
                what=f"{name} to go on",
                about=name,
                last=1 if ended_it or waits_for_others else None,
            )
        )

    async def _until(self, name: str, time: float) -> None:
        """Rendering took until then; in lockstep, some of it was a wait for the others."""
        if not self._lockstep and time > self._conductor.now + EPSILON_S:
            await self._conductor.ask(Ask(what=f"{name} to be rendered", about=name, due=time))

    async def parse(self, sampled: TokenBlock) -> Message:
        return Message(role="assistant", content="")


class ReplayTasks:
    """Gives a domain's tasks as they were admitted.

    A task was drawn some time before it was admitted. If nothing held it back, the source was as
    slow as the admission; otherwise it is drawn soon, before control would take notice.
    """

    def __init__(
        self, conductor: Conductor, domain: str, weights: Mapping[str, float]
    ) -> None:
        self._conductor = conductor
        self._domain = domain
        self._weights = weights
        admissions = conductor.record.admissions(domain)
        self._keys = [event.task for _, event in admissions]
        self._times = [time for time, _ in admissions]
        self._at = 0

    async def next(self) -> Task | None:
        at, self._at = self._at, self._at + 1
        ask = Ask(what=f"a task of {self._domain}")
        if at >= len(self._keys):
            return await self._ended(ask)
        if self._conductor.at_once(self._times[at]):
            return Task(domain=self._domain, key=self._keys[at])
        ask.causes = self._admits
        ask.due = self._conductor.now + (STARVED_S if self._has_credits() else PATIENCE_S) / 2
        await self._conductor.ask(ask)
        return Task(domain=self._domain, key=self._keys[at])

    def _admits(self, event: Event) -> Cause:
        mine = isinstance(event, Admitted) and event.domain == self._domain
        return Cause.ANSWER if mine and not event.requeued else Cause.NO

    def _has_credits(self) -> bool:
        """Whether a group may be admitted, by what was last said of credits."""
        for stamped in reversed(self._conductor.outcome.events):
            if isinstance(stamped.event, Admitted | CreditsReturned):
                return stamped.event.outstanding < stamped.event.capacity
        return True

    async def _ended(self, ask: Ask) -> None:
        """No more are recorded: the source failed, has ended, or was not asked in time."""
        record = self._conductor.record
        closed = record.next_of(
            DomainClosed,
            self._conductor.place - 1,
            lambda event: event.domain == self._domain and event.reason.startswith(SOURCE_FAILED),
        )
        if closed is not None:
            ask.causes = lambda event: Cause.ERROR if event is closed[1] else Cause.NO

            def fail() -> NoReturn:
                raise RollartError(closed[1].reason.removeprefix(SOURCE_FAILED))

            return await self._conductor.ask(ask, fail)
        if self._has_ended():
            return None
        ask.last = 2
        ask.may_last = lambda event: isinstance(event, Admitted | PhaseEnded)
        ask.due = self._conductor.now + STARVED_S / 2
        await self._conductor.ask(ask)
        if self._has_credits():
            return None
        return Task(domain=self._domain, key="a task that was never admitted")

    def _has_ended(self) -> bool:
        """Whether the source had no more, or it does not matter.

        Nothing new was admitted any more, or another domain's when it was this one's turn.
        """
        record, place = self._conductor.record, self._conductor.place
        if record.next_of(Admitted, place - 1, lambda event: not event.requeued) is None:
            return True
        drawn = dict.fromkeys(self._weights, 0)
        for at, event in record.of(Admitted):
            if event.requeued:
                continue
            both = [domain for domain in drawn if domain in (event.domain, self._domain)]
            turn = next_domain(drawn, self._weights, both)
            if at >= place and turn != event.domain:
                return True
            drawn[event.domain] += 1
        return False

    def snapshot(self) -> int:
        return self._at

    def restore(self, position: int) -> None:
        self._at = position


class ReplayTrainer:
    """Counts versions, and says of each step what was said of it."""

    def __init__(self, conductor: Conductor, policy: str = "agent") -> None:
        self._conductor = conductor
        self._version = PolicyVersion(policy, 0)

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        trained = self._conductor.record.next_of(
            StepTrained, self._conductor.place - 1, lambda event: event.step == batch.step
        )
        await self._phase(Phase.TRAIN_STEP)
        assert trained is not None, "a train step that ended well has its statistics"
        self._version = self._version.next()
        return trained[1].stats

    async def publish(self) -> PolicyVersion:
        await self._phase(Phase.PUBLISH)
        return self._version

    async def _phase(self, phase: Phase) -> None:
        ended = self._conductor.record.next_of(
            PhaseEnded, self._conductor.place - 1, lambda event: event.phase is phase
        )
        ok = ended is not None and ended[1].ok

        def causes(event: Event) -> Cause:
            if ended is None or event is not ended[1]:
                return Cause.NO
            return Cause.ANSWER if ok else Cause.ERROR if self._failed() else Cause.NO

        ask = Ask(what=f"the trainer's {phase}", causes=causes)
        await self._conductor.ask(ask, lambda: None if ok else self._fail())

    def _failed(self) -> bool:
        """Whether the run ended by an error of the trainer's own."""
        record = self._conductor.record
        reason = record.reason()
        ended_well = record.end is None or record.end.ok
        return not ended_well and not record.stopped() and not reason.startswith(TRAINER_DIED)

    def _fail(self) -> NoReturn:
        raise RollartError(self._conductor.record.reason())

    async def score(self, trajectories: Sequence[Trajectory], temperature: float) -> LogprobGap:
        record = self._conductor.record
        gap = record.next_of(GapMeasured, self._conductor.place - 1)
        if gap is None:
            ask = Ask(what="a comparison", last=2 if self._failed() else None)
            await self._conductor.ask(ask, self._fail)
        assert gap is not None, "the comparison is recorded"
        ask = Ask(what="a comparison", causes=lambda event: _when(event is gap[1]))
        await self._conductor.ask(ask)
        return LogprobGap(tokens=gap[1].tokens, maximum=gap[1].maximum, mean=gap[1].mean)

    async def save(self, directory: str) -> None:
        told = self._conductor.record.next_of(
            Warned, self._conductor.place - 1, lambda event: event.message.startswith(NOT_SAVED)
        )

        def saved() -> None:
            if told is not None:
                raise RollartError(told[1].message.removeprefix(NOT_SAVED))

        def causes(event: Event) -> Cause:
            if told is not None:
                return Cause.ERROR if event is told[1] else Cause.NO
            return _when(isinstance(event, RunEnded))

        await self._conductor.ask(Ask(what="the weights to be saved", causes=causes), saved)

    async def wait_dead(self) -> str:
        record = self._conductor.record
        reason = record.reason()
        dies = reason.startswith(TRAINER_DIED)
        ask = Ask(
            what="the trainer to die",
            last=2 if dies else None,
            may_last=lambda event: record.ends_from_outside(self._conductor.place),
        )
        return await self._conductor.ask(ask, lambda: reason.removeprefix(TRAINER_DIED))

    async def close(self) -> None:
        return


def _when(holds: bool) -> Cause:
    return Cause.ANSWER if holds else Cause.NO


class ReplayLauncher:
    """Launches the parts of one replay."""

    def __init__(self, conductor: Conductor, job: JobConfig) -> None:
        self._conductor = conductor
        self._job = job
        self._engines: dict[str, ReplayEngine] = {}
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
            return _when(event.engine == name or first)

        def launched() -> Engine:
            if fails and refused is not None:
                raise RollartError(refused[1].message.removeprefix(head))
            engine = self._engines[name] = ReplayEngine(
                conductor, binding, engine_s=self._job.timeouts.engine_s
            )
            return engine

        return await conductor.ask(Ask(what=f"{name} to come up", causes=causes), launched)

    async def trainer(self, binding: Binding) -> Trainer:
        return ReplayTrainer(self._conductor)

    async def environments(self, domain: str) -> Environments:
        return ReplayEnvironments(self._conductor, lockstep=self._lockstep)

    async def tasks(self, domain: str) -> TaskSource:
        weights = {config.tag: config.weight for config in self._job.domains}
        return ReplayTasks(self._conductor, domain, weights)

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
        self, binding: Binding, path: str, options: Mapping[str, object]
    ) -> WorkerHandle:
        raise RollartError(f"a replay runs no user's class, and {path} is one")

    async def close(self) -> None:
        return
