"""EnvManager: one trajectory from reset to verdict, under one deadline, with everything let go."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rollart.control.env_manager import EnvManager, EpisodeSettings
from rollart.control.flight import Flight
from rollart.core.errors import FailureKind
from rollart.core.events import EnvironmentReset, TrajectoryEnded, TrajectoryStarted, TurnEnded
from rollart.core.identity import PolicyVersion
from rollart.core.ports import Binding, DeltaSink, Engine, Rendered, Renderer
from rollart.core.tokens import TokenBlock
from rollart.core.types import (
    GenerateRequest,
    Message,
    Status,
    StopReason,
    Task,
    TokenDelta,
    Trajectory,
)
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.engine import ScriptedEngine
from rollart.testing.parts import (
    PlainRenderer,
    ScriptedEnvironments,
    ScriptedLauncher,
    ScriptedReward,
)
from rollart.testing.rig import ProxyRig, identity, proxy_rig
from rollart.testing.script import Script

STEADY = Script(
    turns=(3, 3),
    tokens_per_turn=(4, 4),
    token_s=(0.1, 0.1),
    reset_s=(0.5, 0.5),
    step_s=(0.2, 0.2),
    reward_s=(0.3, 0.3),
)
SETTINGS = EpisodeSettings(
    max_turns=8,
    max_tokens=16,
    temperature=1.0,
    env_reset_s=4.0,
    env_step_s=2.0,
    reward_s=2.0,
    episode_s=60.0,
)


@dataclass(kw_only=True)
class Stage:
    """A manager and what is behind it."""

    rig: ProxyRig
    manager: EnvManager
    environments: ScriptedEnvironments
    reward: ScriptedReward
    began: float

    async def play(self, member: int = 0, key: str = "task-0") -> Trajectory:
        return await self.manager.rollout(self.flight(member, key))

    def flight(self, member: int = 0, key: str = "task-0") -> Flight:
        ident = replace(identity(member), task=key)
        task = Task(domain="lake", key=key)
        return Flight(id=ident, task=task, started_at=asyncio.get_running_loop().time())

    @property
    def took(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    def is_clean(self) -> bool:
        """Nothing of any episode is left anywhere."""
        engine = self.rig.engines[0]
        return not (self.environments.open_now or self.reward.running or engine.live_requests)


@asynccontextmanager
async def stage(
    script: Script = STEADY,
    settings: EpisodeSettings = SETTINGS,
    *,
    context: int = 1024,
    renderer: Renderer | None = None,
    kind: type[ScriptedEngine] = ScriptedEngine,
) -> AsyncGenerator[Stage]:
    class Launches(ScriptedLauncher):
        async def engine(self, binding: Binding) -> Engine:
            self.engines.append(kind(binding.worker, script))
            return self.engines[-1]

    async with proxy_rig(launcher=Launches(script), context=context) as rig:
        environments, reward = ScriptedEnvironments(script), ScriptedReward(script)
        manager = EnvManager(
            environments=environments,
            reward=reward,
            renderer=renderer or PlainRenderer(script.observation_tokens),
            proxy=rig.proxy,
            settings=settings,
            events=rig.events,
        )
        yield Stage(
            rig=rig,
            manager=manager,
            environments=environments,
            reward=reward,
            began=asyncio.get_running_loop().time(),
        )
        assert not environments.open_now
        assert not reward.running


def test_an_episode_becomes_turns_segments_times_and_a_verdict() -> None:
    async def main() -> None:
        async with stage() as s:
            t = await s.play()
            assert (t.status, len(t.turns), t.sampled_tokens, t.tokens) == ("finished", 3, 12, 27)
            assert t.score is not None
            assert t.start_version == 0
            assert (t.reset_s, t.reward_s) == (pytest.approx(0.5), pytest.approx(0.3))
            assert [turn.env_s for turn in t.turns] == pytest.approx([0.2] * 3)
            assert [(turn.start, turn.end) for turn in t.turns] == [(5, 9), (14, 18), (23, 27)]
            assert [turn.reward for turn in t.turns] == [0.0, 0.0, 1.0]
            assert s.took == pytest.approx(0.5 + 3 * (4 * 0.1 + 0.2) + 0.3)
            counts = [
                len(s.rig.events.of(kind))
                for kind in (TrajectoryStarted, EnvironmentReset, TurnEnded, TrajectoryEnded)
            ]
            assert counts == [1, 1, 3, 1]
            assert s.is_clean()

    run_virtual(main)


def test_the_loss_mask_is_1_exactly_on_the_ids_that_the_engine_returned() -> None:
    async def main() -> None:
        async with stage() as s:
            t = await s.play()
            (segment,) = t.segments
            mask = segment.loss_mask()
            assert mask.tolist() == ([False] * 5 + [True] * 4) * 3
            seeds = [d.request.seed for d in s.rig.engines[0].log.dispatches]
            assert segment.ids()[mask].tolist() == [
                (x + i) % 97 for x in seeds for i in range(1, 5)
            ]
            assert len(segment.logprobs()) == len(segment.versions()) == len(mask) == 27

    run_virtual(main)


def test_what_the_engine_is_asked_is_the_whole_sequence_with_its_own_ids_in_it() -> None:
    async def main() -> None:
        async with stage() as s:
            t = await s.play()
            last = s.rig.engines[0].log.dispatches[-1].request
            asked = np.concatenate([np.asarray(block) for block in last.prompt])
            assert asked.tolist() == t.segments[0].ids()[: len(asked)].tolist()
            assert last.prompt_tokens == 23

    run_virtual(main)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (replace(STEADY, reset_fails_for=("task-0",)), FailureKind.ENV_RESET),
        (replace(STEADY, step_fails=1.0), FailureKind.ENV_STEP),
        (replace(STEADY, step_hangs_for=("task-0",)), FailureKind.ENV_TIMEOUT),
        (replace(STEADY, reset_s=(100.0, 100.0)), FailureKind.ENV_TIMEOUT),
        (replace(STEADY, reward_hangs_for=("task-0",)), FailureKind.REWARD_TIMEOUT),
        (replace(STEADY, reward_refuses_for=("task-0",)), FailureKind.REWARD_ERROR),
    ],
)
def test_each_failure_has_its_kind_and_leaves_nothing_behind(
    script: Script, kind: FailureKind
) -> None:
    async def main() -> None:
        async with stage(script) as s:
            t = await s.play()
            assert (t.status, t.failure) == (Status.FAILED, kind)
            assert t.detail
            assert t.score is None
            assert s.is_clean()
            assert s.took < 2.5 * SETTINGS.env_reset_s + 1.0

    run_virtual(main)


def test_reset_steps_and_reward_of_six_tenths_each_end_at_the_one_deadline() -> None:
    script = replace(
        STEADY, turns=(1, 1), reset_s=(6.0, 6.0), step_s=(6.0, 6.0), reward_s=(6.0, 6.0)
    )
    settings = replace(SETTINGS, episode_s=10.0, env_reset_s=9.0, env_step_s=9.0, reward_s=9.0)

    async def main() -> None:
        async with stage(script, settings) as s:
            t = await s.play()
            assert (t.status, t.failure) == (Status.FAILED, FailureKind.DEADLINE)
            assert "waiting for environment" in t.detail
            assert s.took == pytest.approx(10.0)

    run_virtual(main)


def test_an_environment_that_trickles_does_not_extend_its_deadline() -> None:
    settings = replace(SETTINGS, episode_s=5.0, max_turns=1000)
    script = replace(STEADY, turns=(1000, 1000))

    async def main() -> None:
        async with stage(script, settings) as s:
            t = await s.play()
            assert t.failure is FailureKind.DEADLINE
            assert s.took == pytest.approx(5.0)

    run_virtual(main)


def test_an_episode_that_fills_the_context_is_truncated_and_scored_and_others_go_on() -> None:
    async def main() -> None:
        async with stage(context=14) as s:
            full, other = await asyncio.gather(s.play(0), s.play(1))
            for t in (full, other):
                assert t.status is Status.TRUNCATED
                assert len(t.turns) == 1
                assert t.score is not None
                assert t.tokens == 14

    run_virtual(main)


def test_a_first_prompt_longer_than_the_context_samples_nothing_and_is_invalid() -> None:
    async def main() -> None:
        async with stage(context=5) as s:
            t = await s.play()
            assert (t.status, t.sampled_tokens, t.score) == (Status.INVALID, 0, None)
            assert "no token was sampled" in t.detail

    run_virtual(main)


def test_a_finished_episode_keeps_its_reward_although_its_render_would_exceed_the_context() -> None:
    async def main() -> None:
        async with stage(replace(STEADY, turns=(1, 1)), context=9) as s:
            t = await s.play()
            assert (t.status, t.tokens) == (Status.FINISHED, 9)
            assert t.score is not None

    run_virtual(main)


def test_the_turn_limit_truncates_and_the_trajectory_is_scored() -> None:
    async def main() -> None:
        async with stage(settings=replace(SETTINGS, max_turns=2)) as s:
            t = await s.play()
            assert (t.status, len(t.turns)) == (Status.TRUNCATED, 2)
            assert t.score is not None

    run_virtual(main)


class OneLogprobMore(ScriptedEngine):
    def add(self, request: GenerateRequest, sink: DeltaSink) -> None:
        def padded(delta: TokenDelta) -> None:
            sink(replace(delta, logprobs=np.zeros(2, np.float32)))

        super().add(request, padded)


def test_an_answer_of_two_lengths_makes_the_trajectory_invalid_never_padded() -> None:
    async def main() -> None:
        async with stage(kind=OneLogprobMore) as s:
            t = await s.play()
            assert (t.status, t.failure) == (Status.INVALID, FailureKind.TOKENS)
            assert "1 ids and 2 log-probs" in t.detail
            assert t.sampled_tokens == 0
            assert s.is_clean()

    run_virtual(main)


class Rewrites(PlainRenderer):
    """Its template rewrites history at the second turn."""

    async def extend(
        self, history: Sequence[Message], sampled: TokenBlock, messages: Sequence[Message]
    ) -> Rendered:
        if len(history) == 4:
            return Rendered(tokens=np.full(7, 3, np.int32), restarts=True)
        return await super().extend(history, sampled, messages)


def test_a_template_that_rewrites_history_begins_a_segment_and_loses_no_token() -> None:
    async def main() -> None:
        async with stage(renderer=Rewrites()) as s:
            t = await s.play()
            assert [len(segment) for segment in t.segments] == [18, 11]
            assert [segment.sampled_tokens for segment in t.segments] == [8, 4]
            assert [(turn.segment, turn.start, turn.end) for turn in t.turns] == [
                (0, 5, 9),
                (0, 14, 18),
                (1, 7, 11),
            ]
            assert s.rig.engines[0].log.dispatches[2].request.prompt_tokens == 7

    run_virtual(main)


@pytest.mark.parametrize("after", [0.2, 0.7, 1.0, 1.4, 2.5])
def test_whenever_it_is_cancelled_engine_environment_and_reward_have_let_go(after: float) -> None:
    async def main() -> None:
        async with stage() as s:
            playing = asyncio.get_running_loop().create_task(s.play())
            await asyncio.sleep(after)
            playing.cancel()
            await asyncio.wait([playing])
            assert playing.cancelled()
            assert s.is_clean()
            assert not s.rig.events.of(TrajectoryEnded)

    run_virtual(main)


def test_the_prefix_of_an_episode_is_released_at_the_engine_however_it_ends() -> None:
    async def main() -> None:
        async with stage() as s:
            await s.play()
            assert not s.rig.engines[0]._prefixes
        async with stage(replace(STEADY, step_fails=1.0)) as s:
            await s.play()
            assert not s.rig.engines[0]._prefixes

    run_virtual(main)


def test_it_asks_before_each_turn_whether_it_may_go_on() -> None:
    async def main() -> None:
        async with stage() as s:
            asked: list[float] = []

            def may() -> bool:
                asked.append(s.took)
                return len(asked) < 3

            t = await s.manager.rollout(s.flight(), may_go_on=may)
            assert len(asked) == 3
            assert (t.status, t.failure, len(t.turns)) == (Status.FAILED, FailureKind.CONTROL, 2)

    run_virtual(main)


def test_all_members_of_a_group_meet_the_same_world_under_their_own_seeds() -> None:
    async def main() -> None:
        async with stage() as s:
            one, other = await asyncio.gather(s.play(0), s.play(1))
            assert one.turns[0].observation == other.turns[0].observation
            seeds = {d.request.seed for d in s.rig.engines[0].log.dispatches}
            assert len(seeds) == 6

    run_virtual(main)


def test_a_token_counts_as_progress_before_its_turn_has_ended() -> None:
    async def main() -> None:
        script = replace(STEADY, tokens_per_turn=(16, 16), token_s=(1.0, 1.0))
        async with stage(script) as s:
            playing = asyncio.get_running_loop().create_task(s.play())
            await asyncio.sleep(10.0)
            assert s.manager.progress_at == pytest.approx(s.began + 9.5)
            assert not s.rig.events.of(TurnEnded)
            playing.cancel()
            await asyncio.wait([playing])

    run_virtual(main)


def test_tokens_of_one_turn_may_carry_two_versions_and_the_start_stays_the_first() -> None:
    async def main() -> None:
        script = replace(STEADY, turns=(1, 1), tokens_per_turn=(5, 5), token_s=(1.0, 1.0))
        async with stage(script) as s:
            playing = asyncio.get_running_loop().create_task(s.play())
            await asyncio.sleep(3.0)
            await s.rig.proxy.suspend()
            await s.rig.fleet.update(PolicyVersion("agent", 1))
            await s.rig.proxy.resume()
            t = await playing
            assert t.version_runs() == [(0, 2), (1, 3)]
            assert t.start_version == 0
            (ended,) = s.rig.events.of(TurnEnded)
            assert (ended.first_version, ended.last_version, ended.stop) == (0, 1, StopReason.STOP)

    run_virtual(main)
