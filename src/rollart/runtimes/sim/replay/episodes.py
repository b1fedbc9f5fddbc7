"""Environments, rewards and the renderer of a replay: one trajectory's life outside control.

Invariant: each answers as the record says, when the conductor says; none decides anything. What
the record has nothing of never answers, unless nothing else explains what came next.
"""

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from rollart.core.errors import EnvironmentFailed, FailureKind
from rollart.core.events import (
    EnvironmentReset,
    Event,
    TrajectoryEnded,
    TurnEnded,
)
from rollart.core.identity import TrajectoryId
from rollart.core.ports import (
    Environment,
    Rendered,
)
from rollart.core.tokens import LengthOnly, TokenBlock
from rollart.core.types import (
    Message,
    Observation,
    StepResult,
    Task,
    Trajectory,
    Verdict,
)
from rollart.runtimes.sim.replay.causes import when
from rollart.runtimes.sim.replay.comparing import EPSILON_S, Ask, Cause, Comparing
from rollart.runtimes.sim.replay.record import Story


class ReplayEnvironment:
    """One trajectory's environment. A message says which turn it belongs to, and nothing else.

    With `unknown_ends`, one of which nothing more is recorded had ended, and waited: for its reward
    or, in lockstep, the others. Else its next request, or that it was dropped, would be recorded.
    """

    def __init__(self, conductor: Comparing, name: str, *, unknown_ends: bool) -> None:
        self._unknown_ends = unknown_ends
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
        if reset is not None and not reset.ok:
            fail_as_recorded(self._story)
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
            fail_as_recorded(story)
        success = story.ended.success if story.ended is not None else None
        after = story.after(turn)
        messages = (Message(role="user", content=f"{self._name}\n{turn + 1}"),)
        return StepResult(
            observation=Observation(messages=messages),
            done=after.done or (self._unknown_ends and not after.known and not story.ended_itself),
            metrics=() if success is None else (("success", success),),
        )

    def kill(self) -> None:
        return


def fail_as_recorded(story: Story) -> NoReturn:
    raise EnvironmentFailed(*(story.failure() or (FailureKind.CONTROL, "it is not recorded")))


class ReplayEnvironments:
    """Opens an environment when its reset is known to have begun."""

    def __init__(self, conductor: Comparing, *, unknown_ends: bool) -> None:
        self._conductor = conductor
        self._unknown_ends = unknown_ends

    async def open(self, trajectory: TrajectoryId) -> Environment:
        name = str(trajectory)
        story = self._conductor.record.stories[name]
        ask = Ask(what=f"an environment for {name}", about=name)
        if story.reset is not None:
            ask.due = story.reset_time - story.reset.seconds
            ask.causes = lambda event: when(isinstance(event, EnvironmentReset))
        elif story.failure() is not None:
            ask.causes = lambda event: (
                Cause.ERROR if isinstance(event, TrajectoryEnded) else Cause.NO
            )

        def opened() -> Environment:
            if story.reset is None and story.failure() is not None:
                fail_as_recorded(story)
            return ReplayEnvironment(self._conductor, name, unknown_ends=self._unknown_ends)

        return await self._conductor.ask(ask, opened)

    async def close(self) -> None:
        return


class ReplayReward:
    """Gives the recorded score, or the recorded reason for none."""

    def __init__(self, conductor: Comparing) -> None:
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
            if ended is None:
                return Verdict(score=None, reason="it is not recorded")
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

    def __init__(self, conductor: Comparing, *, context: int, lockstep: bool) -> None:
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
        waits_for_others = self._lockstep and story.disposed is not None
        await self._conductor.ask(
            Ask(
                what=f"{name} to go on",
                about=name,
                last=1 if story.ended_itself or waits_for_others else None,
            )
        )

    async def _until(self, name: str, time: float) -> None:
        """Rendering took until then; in lockstep, some of it was a wait for the others."""
        if not self._lockstep and time > self._conductor.now + EPSILON_S:
            await self._conductor.ask(Ask(what=f"{name} to be rendered", about=name, due=time))

    async def parse(self, sampled: TokenBlock) -> Message:
        return Message(role="assistant", content="")
