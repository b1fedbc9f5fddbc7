"""Small valid records, for tests that need one and do not care which."""

import numpy as np

from rollart.core import events
from rollart.core.events import Event, Phase
from rollart.core.identity import TrajectoryId
from rollart.core.tokens import VersionRuns
from rollart.core.types import (
    NO_COST,
    Disposition,
    Group,
    Piece,
    Segment,
    Status,
    Task,
    TrainBatch,
    TrainStats,
    Trajectory,
    Turn,
    Verdict,
)


def sample_trajectory(
    *,
    score: float | None = 1.0,
    group: int = 0,
    member: int = 0,
    attempt: int = 0,
    version: int = 0,
    prompt: int = 5,
    sampled: int = 4,
    domain: str = "lake",
    key: str = "task-0",
) -> Trajectory:
    """One turn: `prompt` observed ids, then `sampled` ids with log-prob -1, all by `version`."""
    pieces = (
        Piece(ids=np.arange(1, prompt + 1, dtype=np.int32)),
        Piece(
            ids=np.arange(member + 1, member + 1 + sampled, dtype=np.int32),
            logprobs=np.full(sampled, -1.0, np.float32),
            versions=VersionRuns(((version, sampled),)),
        ),
    )
    turn = Turn(segment=0, start=prompt, end=prompt + sampled, observation="where", action="there")
    return Trajectory(
        id=TrajectoryId(
            run="run", domain=domain, task=key, group=group, member=member, attempt=attempt
        ),
        policy="agent",
        task=Task(domain=domain, key=key),
        segments=(Segment(pieces=pieces),),
        turns=(turn,),
        start_version=version,
        status=Status.FINISHED,
        verdict=None if score is None else Verdict(score=score),
    )


def sample_group(number: int = 0, *, members: int = 2, start: int = 0, key: str = "") -> Group:
    """A ready group whose members score 0, 1, 2, …"""
    key = key or f"task-{number}"
    trajectories = tuple(
        sample_trajectory(score=float(m), group=number, member=m, version=start, key=key)
        for m in range(members)
    )
    return Group(
        id=number, task=Task(domain="lake", key=key), members=trajectories, start_version=start
    )


def sample_batch(version: int = 0, *, groups: int = 2, members: int = 2) -> TrainBatch:
    """A batch of groups with different scores, all sampled by `version`."""
    return TrainBatch(
        step=version,
        groups=tuple(sample_group(g, members=members, start=version) for g in range(groups)),
    )


def sample_stats(version: int = 1) -> TrainStats:
    """What a trainer may say after a step."""
    return TrainStats(
        version=version,
        loss=0.1,
        grad_norm=0.5,
        trained_tokens=16,
        input_tokens=36,
        optimizer_steps=1,
        learning_rate=1e-3,
        entropy=1.0,
        clip_fraction=0.0,
        approx_kl=0.0,
        ratio_max=1.0,
    )


def every_event() -> list[Event]:
    """One event of every kind of the schema, as a run may emit them."""
    name = "lake/task-0/g0.0.0"
    return [
        events.RunStarted(
            schema=events.SCHEMA,
            run="run",
            runtime="sim",
            protocol="rollart",
            alpha=1,
            seed=0,
            steps=1,
            batch_groups=1,
            group_size=2,
            domains=("lake",),
            config="schema = 1",
        ),
        events.WorkerBound(
            worker="engine-0",
            role="actor_gen",
            pool="virtual",
            hardware="virtual",
            slots=(0,),
            wanted="virtual",
            reason="as wanted",
        ),
        events.DomainClosed(domain="lake", reason="its source failed"),
        events.TaskDrawn(domain="lake", task="task-0"),
        events.SourceEnded(domain="lake"),
        events.EngineUp(engine="engine-0", hardware="virtual"),
        events.EngineDown(engine="engine-0", reason="killed", moved_requests=1),
        events.EngineAcknowledged(engine="engine-0", version=0, seconds=0.1),
        events.Committed(version=0),
        events.Admitted(
            group=0, domain="lake", task="task-0", requeued=False, outstanding=1, capacity=2
        ),
        events.CreditsReturned(groups=1, outstanding=0, capacity=2),
        events.TrajectoryStarted(
            trajectory=name,
            purpose="train",
            domain="lake",
            task="task-0",
            group=0,
            member=0,
            attempt=0,
        ),
        events.EnvironmentReset(trajectory=name, seconds=0.1, ok=True),
        events.TurnEnded(
            trajectory=name,
            turn=0,
            engine="engine-0",
            prompt_tokens=5,
            sampled_tokens=4,
            cost=NO_COST,
            proxy_queued_s=0.0,
            env_s=0.1,
            first_version=0,
            last_version=0,
            versions=((0, 4),),
            stop="stop",
            interruptions=0,
        ),
        events.RequestDropped(
            request=f"{name}/t1#1", engine="engine-0", prompt_tokens=12, sampled_tokens=3
        ),
        events.TrajectoryEnded(
            trajectory=name,
            purpose="train",
            domain="lake",
            status="finished",
            failure="",
            detail="",
            turns=1,
            prompt_tokens=5,
            sampled_tokens=4,
            start_version=0,
            score=1.0,
            success=1.0,
            elapsed_s=1.0,
            reset_s=0.1,
            reward_s=0.1,
        ),
        events.Disposed(
            trajectory=name,
            domain="lake",
            group=0,
            disposition=Disposition.TRAINED,
            reason="",
            start_version=0,
            elapsed_s=1.0,
            censored=False,
        ),
        events.GroupReady(group=0, domain="lake", members=2, start_version=0),
        events.LateResult(what="tokens", identity=name),
        events.Answered(loop_pass=7, who=(name, "engine-0 pause")),
        events.PhaseBegan(step=0, phase=Phase.GET_BATCH),
        events.PhaseEnded(step=0, phase=Phase.GET_BATCH, seconds=1.0, ok=True),
        events.DeviceBusy(device="engine-0", hardware="virtual", work="decode", begin=0.0, end=1.0),
        events.DeviceReserved(device="judge-0", hardware="virtual", begin=0.0, end=None),
        events.RewardCalled(
            trajectory=name, url="fc://judge", served_by="fc://judge", begin=3.0, end=3.5
        ),
        events.FunctionInstance(url="local://judge:score", instance="a", begin=3.0, end=33.0),
        events.PlatformDown(url="fc://judge", reason="unavailable: gone"),
        events.PlatformUp(url="fc://judge", down_s=12.0),
        events.BatchTaken(
            step=0,
            groups=1,
            trajectories=2,
            tokens=18,
            start_lag_max=0,
            score_mean=0.5,
            success_mean=None,
        ),
        events.StepTrained(
            step=0, stats=sample_stats(), token_lag_max=0, token_lag_mean=0.0, tokens=18
        ),
        events.LedgerClosed(
            step=1,
            started=2,
            dispositions=(("trained", 2),),
            buffered=0,
            in_flight=0,
            balanced=True,
        ),
        events.Evaluated(
            domain="lake",
            when="before",
            mode="greedy",
            version=0,
            tasks=1,
            scored=1,
            success=1.0,
            score=1.0,
            seconds=1.0,
        ),
        events.GapMeasured(version=0, tokens=4, maximum=0.0, mean=0.0),
        events.Baseline(domain="lake", name="blind", success=0.4, tasks=8),
        events.Warned(message="nothing to worry about"),
        events.RunEnded(reason="all steps are done", ok=True, steps=1, seconds=2.0),
    ]
