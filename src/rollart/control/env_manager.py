"""EnvManager: the life of one trajectory, from reset to verdict.

Invariant: every wait is under the episode's one deadline and its own; whatever happens, the
environment is let go, the engine's KV is released and exactly one `Trajectory` or a cancellation
comes out. Sampled ids are appended as they came; only what the environment says is encoded.
Who waits: a group's member task, for `rollout`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from operator import attrgetter

from rollart.control.barrier import FREE, Pace
from rollart.control.deadline import Deadlines
from rollart.control.flight import OTHERS, Flight
from rollart.control.llm_proxy import Answer, GenerateCall, LLMProxy, StartSink
from rollart.core.errors import EnvironmentFailed, FailureKind, TokenMismatch, TrajectoryFailure
from rollart.core.events import EnvironmentReset, TrajectoryEnded, TrajectoryStarted, TurnEnded
from rollart.core.identity import environment_seed, request_seeds
from rollart.core.ports import (
    Environment,
    Environments,
    EventSink,
    Renderer,
    Reward,
    TranscriptSink,
)
from rollart.core.tokens import TokenBlock
from rollart.core.types import (
    Message,
    Observation,
    Piece,
    Segment,
    Status,
    StepResult,
    StopReason,
    Trajectory,
    Turn,
    Verdict,
)

_content = attrgetter("content")

Generate = Callable[[GenerateCall, StartSink], Awaitable[Answer]]
"""How one turn is sampled: `LLMProxy.generate`, or what a user's ActorGen puts around it."""

BACKSTOP = 2.5
"""An environment enforces its own deadlines from when an operation starts; waiting behind others
in its process and being rebuilt after another's hang may add to that. This many times the deadline
after asking, control gives up by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """Limits of one domain's episodes; times in seconds."""

    max_turns: int
    max_tokens: int
    temperature: float
    env_reset_s: float
    env_step_s: float
    reward_s: float
    episode_s: float
    policy: str = "agent"
    run_seed: int = 0


@dataclass(slots=True)
class _Episode:
    """The trajectory as it grows. `length` counts the tokens of the open segment's `pieces`.

    `prompt` has their ids: the next request's prompt. `name` and `session` are the identity's, made
    once, and `seeds` gives each turn's.
    """

    name: str
    session: str
    seeds: Callable[[int], int]
    deadlines: Deadlines = field(default_factory=Deadlines)
    prompt: list[TokenBlock] = field(default_factory=list[TokenBlock])
    pieces: list[Piece] = field(default_factory=list[Piece])
    length: int = 0
    segments: list[Segment] = field(default_factory=list[Segment])
    attachments: tuple[str, ...] = ()
    history: list[Message] = field(default_factory=list[Message])
    turns: list[Turn] = field(default_factory=list[Turn])
    metrics: tuple[tuple[str, float], ...] = ()
    reset_s: float = 0.0
    reward_s: float = 0.0

    def append(self, piece: Piece, tokens: int) -> None:
        """A piece of so many tokens."""
        self.pieces.append(piece)
        self.prompt.append(piece.ids)
        self.length += tokens

    def observe(self, tokens: TokenBlock, *, restarts: bool) -> None:
        if restarts:
            self.close_segment()
        if length := len(tokens):
            self.append(Piece(ids=tokens), length)

    def close_segment(self) -> None:
        """Keep it, if a token was sampled in it."""
        if any(piece.sampled for piece in self.pieces):
            self.segments.append(Segment(pieces=tuple(self.pieces), attachments=self.attachments))
        self.pieces = []
        self.prompt = []
        self.length = 0


class EnvManager:
    """Rolls out trajectories of one domain."""

    def __init__(
        self,
        *,
        environments: Environments,
        reward: Reward,
        renderer: Renderer,
        proxy: LLMProxy,
        settings: EpisodeSettings,
        events: EventSink,
        generate: Generate | None = None,
        transcripts: TranscriptSink = lambda trajectory: None,
    ) -> None:
        self._environments = environments
        self._reward = reward
        self._renderer = renderer
        self._proxy = proxy
        self._settings = settings
        self._events = events
        self._generate = generate or proxy.generate
        self._transcripts = transcripts
        self._loop = asyncio.get_running_loop()
        self._moved_at = 0.0
        self._sound_at = 0.0

    @property
    def progress_at(self) -> float:
        """Loop time (s) at which a token came or a reset, a turn or a trajectory ended, somehow."""
        return max(self._moved_at, self._proxy.progress_at)

    @property
    def sound_at(self) -> float:
        """The same of what did not end in a failure."""
        return max(self._sound_at, self._proxy.progress_at)

    async def rollout(
        self,
        flight: Flight,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        pace: Pace = FREE,
        temperature: float | None = None,
    ) -> Trajectory:
        """Roll one trajectory out and have it scored.

        Args:
            flight: its record among the live objects; updated as it goes.
            may_go_on: asked before each turn; who answers False has cancelled the task.
            pace: awaited before each generation, each step and the verdict.
            temperature: instead of the domain's.

        Raises:
            asyncio.CancelledError: it was cancelled; engine and environment have let go.
        """
        ident = flight.id
        episode = _Episode(
            name=str(ident),
            session=ident.session,
            seeds=request_seeds(ident, run_seed=self._settings.run_seed),
        )
        self._events.emit(
            TrajectoryStarted(
                trajectory=episode.name,
                purpose=ident.purpose.value,
                domain=ident.domain,
                task=ident.task,
                group=ident.group,
                member=ident.member,
                attempt=ident.attempt,
            )
        )
        status, failure, detail, verdict = Status.FAILED, None, "", None
        deadline = episode.deadlines.after(self._settings.episode_s)
        try:
            with deadline:
                status = await self._play(flight, episode, may_go_on, pace, temperature)
                episode.close_segment()
                if not episode.segments:
                    status, detail = Status.INVALID, "no token was sampled"
                else:
                    flight.waits_for = OTHERS
                    await pace.verdict()
                    flight.waits_for = "reward"
                    verdict = await self._score(flight, episode, status)
        except TimeoutError:
            if not deadline.expired:
                raise
            status, failure, detail = (
                Status.FAILED,
                FailureKind.DEADLINE,
                f"episode exceeded {self._settings.episode_s:g} s, waiting for {flight.waits_for}",
            )
        except TrajectoryFailure as error:
            status, failure, detail = Status.FAILED, error.kind, error.detail
        except TokenMismatch as error:
            status, failure, detail = Status.INVALID, FailureKind.TOKENS, str(error)
        finally:
            self._proxy.release(ident)
        if verdict is not None and verdict.score is None:
            status = Status.FAILED
            failure = verdict.failure or FailureKind.REWARD_NO_VERDICT
            detail = verdict.reason
        episode.close_segment()
        trajectory = self._trajectory(
            flight, episode, status, failure=failure, detail=detail, verdict=verdict
        )
        self._report(trajectory)
        self._transcripts(trajectory)
        return trajectory

    # -- playing -------------------------------------------------------------------------------

    async def _play(
        self,
        flight: Flight,
        episode: _Episode,
        may_go_on: Callable[[], bool],
        pace: Pace,
        temperature: float | None,
    ) -> Status:
        settings = self._settings
        environment = await episode.deadlines.within(
            BACKSTOP * settings.env_reset_s,
            self._environments.open(flight.id),
            lambda: EnvironmentFailed(FailureKind.ENV_OPEN, "no environment came free in time"),
        )
        try:
            observation = await self._reset(environment, flight, episode)
            for _ in range(settings.max_turns):
                if not may_go_on():
                    await asyncio.sleep(0)
                    raise TrajectoryFailure(FailureKind.CONTROL, "stopped without a cancellation")
                if pace is not FREE:
                    flight.waits_for = OTHERS
                    await pace.turn()
                done = await self._turn(
                    flight, episode, environment, observation, pace, temperature
                )
                if done is None:
                    return Status.TRUNCATED
                if done.done:
                    return Status.FINISHED
                observation = done.observation
            return Status.TRUNCATED
        finally:
            environment.kill()

    async def _reset(
        self, environment: Environment, flight: Flight, episode: _Episode
    ) -> Observation:
        began = self._loop.time()
        ok = False
        seed = environment_seed(flight.id, run_seed=self._settings.run_seed)
        try:
            observation = await episode.deadlines.within(
                BACKSTOP * self._settings.env_reset_s,
                environment.reset(flight.task, seed),
                lambda: EnvironmentFailed(FailureKind.ENV_TIMEOUT, "reset did not return"),
            )
            ok = True
        finally:
            self._moved(sound=ok)
            episode.reset_s = self._moved_at - began
            self._events.emit(
                EnvironmentReset(trajectory=episode.name, seconds=episode.reset_s, ok=ok)
            )
        try:
            rendered = await self._renderer.open(observation.messages)
        except Exception as error:
            raise _not_rendered(error) from error
        episode.history.extend(observation.messages)
        episode.attachments += observation.attachments
        episode.observe(rendered.tokens, restarts=True)
        return observation

    async def _turn(  # noqa: PLR0917
        self,
        flight: Flight,
        episode: _Episode,
        environment: Environment,
        observation: Observation,
        pace: Pace,
        temperature: float | None,
    ) -> StepResult | None:
        """One exchange; None when the context is full before anything could be sampled."""
        index, start = len(episode.turns), episode.length
        answer = await self._ask(flight, episode, index, temperature)
        completion = answer.completion
        if completion.stop is StopReason.CONTEXT:
            return None
        try:
            message = await self._renderer.parse(completion.ids)
        except Exception as error:
            raise _not_rendered(error) from error
        episode.history.append(message)
        if pace is not FREE:
            flight.waits_for = OTHERS
            await pace.turn()
        flight.waits_for = "environment"
        began = self._loop.time()

        def ended(reward: float | None) -> Turn:
            return Turn(
                segment=len(episode.segments),
                start=start,
                end=start + len(completion.ids),
                observation="\n".join(map(_content, observation.messages)),
                action=message.content,
                tool_calls=message.tool_calls,
                stop=completion.stop,
                engine=completion.engine,
                reward=reward,
                cost=completion.cost,
                proxy_queued_s=answer.queued_s,
                env_s=self._loop.time() - began,
            )

        try:
            result = await episode.deadlines.within(
                BACKSTOP * self._settings.env_step_s,
                environment.step(message),
                lambda: EnvironmentFailed(FailureKind.ENV_TIMEOUT, f"step {index} did not return"),
            )
        except BaseException:
            # The tokens were sampled all the same: the log must show what they cost.
            self._turn_ended(episode.name, ended(None), index, answer)
            raise
        turn = ended(result.reward)
        episode.turns.append(turn)
        episode.metrics = result.metrics or episode.metrics
        self._turn_ended(episode.name, turn, index, answer)
        if not result.done:
            await self._observed(episode, completion.ids, result.observation)
        return result

    async def _ask(
        self, flight: Flight, episode: _Episode, index: int, temperature: float | None
    ) -> Answer:
        """What the agent says next; it is part of the episode."""
        settings = self._settings
        flight.waits_for = "engine"
        answer = await self._generate(
            GenerateCall(
                trajectory=flight.id,
                turn=index,
                prompt=tuple(episode.prompt),
                prompt_tokens=episode.length,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature if temperature is None else temperature,
                seed=episode.seeds(index),
                session=episode.session,
            ),
            flight.begin,
        )
        said = answer.completion
        if said.stop is not StopReason.CONTEXT:
            piece = Piece(ids=said.ids, logprobs=said.logprobs, versions=said.versions)
            episode.append(piece, len(said.versions))
        return answer

    async def _observed(
        self, episode: _Episode, sampled: TokenBlock, observation: Observation
    ) -> None:
        """What the environment answered is part of the episode."""
        try:
            rendered = await self._renderer.extend(episode.history, sampled, observation.messages)
        except Exception as error:
            raise _not_rendered(error) from error
        episode.observe(rendered.tokens, restarts=rendered.restarts)
        episode.history.extend(observation.messages)
        episode.attachments += observation.attachments

    async def _score(self, flight: Flight, episode: _Episode, status: Status) -> Verdict:
        began = self._loop.time()
        seconds = BACKSTOP * self._settings.reward_s
        verdict = await episode.deadlines.within(
            seconds,
            self._reward.score(self._trajectory(flight, episode, status)),
            lambda: TrajectoryFailure(FailureKind.REWARD_TIMEOUT, f"no verdict in {seconds:g} s"),
        )
        episode.reward_s = self._loop.time() - began
        return verdict

    # -- records -------------------------------------------------------------------------------

    def _trajectory(
        self,
        flight: Flight,
        episode: _Episode,
        status: Status,
        *,
        failure: FailureKind | None = None,
        detail: str = "",
        verdict: Verdict | None = None,
    ) -> Trajectory:
        return Trajectory(
            id=flight.id,
            policy=self._settings.policy,
            task=flight.task,
            segments=tuple(episode.segments),
            turns=tuple(episode.turns),
            start_version=flight.start_version,
            status=status,
            failure=failure,
            detail=detail,
            verdict=verdict,
            metrics=episode.metrics,
            started_at=flight.started_at,
            ended_at=self._loop.time(),
            reset_s=episode.reset_s,
            reward_s=episode.reward_s,
        )

    def _turn_ended(self, name: str, turn: Turn, index: int, answer: Answer) -> None:
        versions = answer.completion.versions.runs
        self._moved(sound=True)
        self._events.emit(
            TurnEnded(
                trajectory=name,
                turn=index,
                engine=turn.engine,
                prompt_tokens=turn.start,
                sampled_tokens=turn.end - turn.start,
                cost=turn.cost,
                proxy_queued_s=turn.proxy_queued_s,
                env_s=turn.env_s,
                first_version=versions[0][0] if versions else -1,
                last_version=versions[-1][0] if versions else -1,
                versions=versions,
                stop=str(turn.stop),
                interruptions=answer.interruptions,
                asked_at=answer.asked_at,
                answered_at=answer.answered_at,
            )
        )

    def _moved(self, *, sound: bool) -> None:
        self._moved_at = self._loop.time()
        if sound:
            self._sound_at = self._moved_at

    def _report(self, trajectory: Trajectory) -> None:
        self._moved(sound=trajectory.score is not None)
        sampled_tokens = trajectory.sampled_tokens
        self._events.emit(
            TrajectoryEnded(
                trajectory=str(trajectory.id),
                purpose=trajectory.id.purpose.value,
                domain=trajectory.id.domain,
                status=trajectory.status.value,
                failure=trajectory.failure.value if trajectory.failure is not None else "",
                detail=trajectory.detail,
                turns=len(trajectory.turns),
                prompt_tokens=trajectory.tokens - sampled_tokens,
                sampled_tokens=sampled_tokens,
                start_version=trajectory.start_version,
                score=trajectory.score,
                success=trajectory.metric("success"),
                elapsed_s=trajectory.ended_at - trajectory.started_at,
                reset_s=trajectory.reset_s,
                reward_s=trajectory.reward_s,
            )
        )


def _not_rendered(error: Exception) -> TrajectoryFailure:
    """What a renderer refuses costs this trajectory, and no other."""
    return TrajectoryFailure(FailureKind.RENDER, str(error) or repr(error))
