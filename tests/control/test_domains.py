"""Many domains in one run: shares, sizes, and one that fails or starves beside a sound one."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rollart.core.errors import EnvironmentFailed, FailureKind
from rollart.core.events import (
    Admitted,
    DomainClosed,
    StepTrained,
    TrajectoryEnded,
    Warned,
)
from rollart.core.identity import TrajectoryId
from rollart.core.ports import Environment, Environments, Rendered, Renderer, TaskSource
from rollart.core.types import Message, Task
from rollart.testing.harness import ScriptedRun, run_scripted, scripted_job
from rollart.testing.parts import (
    CountedTasks,
    PlainRenderer,
    ScriptedEnvironments,
    ScriptedLauncher,
)
from rollart.testing.promises import broken_promises
from rollart.testing.script import Script

QUICK = Script(seed=1, turns=(1, 3))


def domain(tag: str, **more: Any) -> dict[str, Any]:
    return {"tag": tag, "environment": "none:None", "max_turns": 8, **more}


def kept(run: ScriptedRun) -> ScriptedRun:
    assert broken_promises(run) == []
    return run


def trained(run: ScriptedRun) -> Counter[str]:
    return Counter(
        g.task.domain for t in run.launcher.trainers for _, b in t.batches for g in b.groups
    )


class BadSource(CountedTasks):
    async def next(self) -> Task | None:
        if self.snapshot() >= 3:
            raise OSError("the data set is gone")
        return await super().next()


class SlowSource(CountedTasks):
    async def next(self) -> Task | None:
        await asyncio.sleep(45.0)
        return await super().next()


class NeverOpens(ScriptedEnvironments):
    async def open(self, trajectory: TrajectoryId) -> Environment:
        await asyncio.sleep(1.0)
        raise EnvironmentFailed(FailureKind.ENV_OPEN, "no simulator licence")


class MazeIsBroken(ScriptedLauncher):
    """The maze's parts are replaced by broken ones."""

    source: type[CountedTasks] = CountedTasks
    worlds: type[ScriptedEnvironments] = ScriptedEnvironments

    async def tasks(self, domain: str) -> TaskSource:
        return self.source(domain, None) if domain == "maze" else await super().tasks(domain)

    async def environments(self, domain: str) -> Environments:
        if domain != "maze":
            return await super().environments(domain)
        self.environments_of[domain] = self.worlds(self.script)
        return self.environments_of[domain]


def broken(
    source: type[CountedTasks] = CountedTasks,
    worlds: type[ScriptedEnvironments] = ScriptedEnvironments,
) -> type[ScriptedLauncher]:
    return type("Launcher", (MazeIsBroken,), {"source": source, "worlds": worlds})


BOTH = [domain("lake"), domain("maze")]


class TestSharesAndSizes:
    def test_each_domain_has_its_share_of_groups_and_its_own_group_size(self) -> None:
        job = scripted_job(
            run__steps=12, domains=[domain("lake", weight=3.0, group_size=3), domain("maze")]
        )
        run = kept(run_scripted(job, QUICK))
        shares = trained(run)
        assert shares["lake"] / shares.total() == pytest.approx(0.75, abs=0.1)
        sizes = {
            (g.task.domain, len(g.members))
            for _, b in run.launcher.trainers[0].batches
            for g in b.groups
        }
        assert sizes == {("lake", 3), ("maze", 4)}

    def test_a_domain_that_is_slow_keeps_its_share_of_what_is_trained(self) -> None:
        job = scripted_job(run__steps=30, rollout__batch_groups=8, domains=BOTH)
        slow = Script(seed=1, turns=(1, 3), step_s=(0.1, 0.1), reset_s=(0.1, 0.1))

        class SlowMaze(ScriptedEnvironments):
            def __init__(self, script: Script, places: int | None = None) -> None:
                super().__init__(Script(seed=1, turns=(1, 3), step_s=(0.3, 0.3)), places)

        run = kept(run_scripted(job, slow, launcher=broken(worlds=SlowMaze)))
        shares = trained(run)
        assert shares["maze"] / shares.total() == pytest.approx(0.5, abs=0.06)


class TestOneFails:
    def test_a_domain_whose_tasks_fail_closes_says_so_and_the_other_goes_on(self) -> None:
        run = kept(run_scripted(scripted_job(domains=BOTH), QUICK, launcher=broken(BadSource)))
        assert run.result.ok
        closed = run.events.of(DomainClosed)
        assert [(c.domain, c.reason) for c in closed] == [
            ("maze", "its tasks failed: the data set is gone")
        ]
        assert len(run.events.of(StepTrained)) == 5

    def test_a_domain_whose_environments_all_fail_closes_and_the_other_goes_on(self) -> None:
        job = scripted_job(domains=BOTH, faults__max_dead_groups=3, run__steps=10)
        run = kept(run_scripted(job, QUICK, launcher=broken(worlds=NeverOpens)))
        assert run.result.ok
        assert trained(run) == {"lake": 40}
        (closed,) = run.events.of(DomainClosed)
        assert closed.domain == "maze"
        assert "3 groups in a row could not be trained (3 incomplete)" in closed.reason

    def test_when_none_is_left_the_run_ends_with_every_reason(self) -> None:
        job = scripted_job(domains=[domain("maze")], faults__max_dead_groups=3)
        run = kept(run_scripted(job, QUICK, launcher=broken(worlds=NeverOpens)))
        assert not run.result.ok
        assert "no domain is left (maze: 3 groups in a row" in run.result.reason

    def test_a_domain_that_hangs_in_every_reset_does_not_hold_the_others_credits(self) -> None:
        class HangsInReset(ScriptedEnvironments):
            async def open(self, trajectory: TrajectoryId) -> Environment:
                await asyncio.get_running_loop().create_future()
                raise AssertionError

        job = scripted_job(
            domains=BOTH,
            run__steps=10,
            timeouts={
                "env_reset_s": 400.0,
                "episode_s": 500.0,
                "stall_s": 50.0,
                "env_step_s": 2.0,
            },
        )
        run = kept(run_scripted(job, QUICK, launcher=broken(worlds=HangsInReset)))
        assert run.result.ok, run.result.reason
        steps = [time for time, event in run.events.events if isinstance(event, StepTrained)]
        assert steps[-1] < 120.0
        assert trained(run) == {"lake": 40}
        (closed,) = run.events.of(DomainClosed)
        assert closed.domain == "maze"
        assert closed.reason.startswith("nothing ended well for 50 s and the others wait for it")

    @pytest.mark.parametrize("protocol", ["rollart", "sync_plus", "sync"])
    def test_a_domain_whose_resets_all_time_out_does_not_pace_the_others(
        self, protocol: str
    ) -> None:
        class TimesOut(ScriptedEnvironments):
            async def open(self, trajectory: TrajectoryId) -> Environment:
                await asyncio.sleep(60.0)
                raise EnvironmentFailed(FailureKind.ENV_TIMEOUT, "reset took over 60 s")

        job = scripted_job(
            domains=BOTH,
            run__steps=20,
            protocol__name=protocol,
            timeouts={"env_reset_s": 60.0, "stall_s": 120.0},
        )
        run = kept(run_scripted(job, QUICK, launcher=broken(worlds=TimesOut)))
        assert run.result.ok, run.result.reason
        steps = [time for time, event in run.events.events if isinstance(event, StepTrained)]
        assert steps[-1] < 400.0
        assert [event.domain for event in run.events.of(DomainClosed)] == ["maze"]

    def test_a_template_that_refuses_one_conversation_costs_one_trajectory(self) -> None:
        class Picky(PlainRenderer):
            refused = 0

            async def open(self, messages: Sequence[Message]) -> Rendered:
                if not self.refused:
                    self.refused += 1
                    raise ValueError("roles must alternate")
                return await super().open(messages)

        class Launches(ScriptedLauncher):
            async def renderer(self) -> Renderer:
                return Picky()

        run = kept(run_scripted(scripted_job(), QUICK, launcher=Launches))
        assert run.result.ok, run.result.reason
        failed = [e for e in run.events.of(TrajectoryEnded) if e.failure]
        assert [(e.failure, e.detail) for e in failed] == [("render", "roles must alternate")]


class TestOneStarves:
    def test_a_source_that_is_slow_holds_up_its_own_domain_only_and_says_so(self) -> None:
        run = kept(
            run_scripted(
                scripted_job(domains=BOTH, run__steps=30), QUICK, launcher=broken(SlowSource)
            )
        )
        assert run.result.ok
        assert trained(run)["lake"] > 100
        alone = run_scripted(scripted_job(domains=BOTH[:1], run__steps=30), QUICK)
        ends = [events.events[-1][0] for events in (run.events, alone.events)]
        assert ends[0] < 1.5 * ends[1]
        assert any("domain maze starves" in w.message for w in run.events.of(Warned))
        assert not run.events.of(DomainClosed)

    @pytest.mark.parametrize("protocol", ["sync", "sync_plus", "rollart"])
    def test_a_source_that_gives_nothing_at_all_stops_nobody(self, protocol: str) -> None:
        class Nothing(CountedTasks):
            async def next(self) -> Task | None:
                return await asyncio.get_running_loop().create_future()

        job = scripted_job(domains=BOTH, run__steps=20, protocol__name=protocol)
        run = kept(run_scripted(job, QUICK, launcher=broken(Nothing)))
        assert run.result.ok, run.result.reason
        assert trained(run) == {"lake": 80}
        assert "lake" not in [event.domain for event in run.events.of(DomainClosed)]

    def test_where_all_sources_are_slow_the_run_is_as_slow_and_goes_on(self) -> None:
        run = run_scripted(
            scripted_job(domains=BOTH, run__steps=5, timeouts__stall_s=500.0),
            QUICK,
            launcher=type("All", (ScriptedLauncher,), {"tasks": _slow_tasks}),
        )
        assert run.result.ok
        assert run.events.events[-1][0] > 300.0
        assert len(run.events.of(Admitted)) >= 20


async def _slow_tasks(self: ScriptedLauncher, domain: str) -> TaskSource:
    return SlowSource(domain, None)
