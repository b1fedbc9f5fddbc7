"""A run's events as a real run would emit them, made up but consistent."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from rollart.core.events import (
    SCHEMA,
    Admitted,
    Baseline,
    BatchTaken,
    CreditsReturned,
    DeviceBusy,
    Disposed,
    EngineAcknowledged,
    EngineUp,
    EnvironmentReset,
    Evaluated,
    Event,
    GapMeasured,
    GroupReady,
    LedgerClosed,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RunEnded,
    RunStarted,
    Stamped,
    StepTrained,
    TrajectoryEnded,
    TrajectoryStarted,
    TurnEnded,
)
from rollart.core.types import Disposition, RequestCost, TrainStats

SyntheticRun = Callable[..., list[Stamped]]

GROUPS, MEMBERS, TURNS = 4, 2, 3


@pytest.fixture
def synthetic_run() -> SyntheticRun:
    """`synthetic_run(steps=20, alpha=1, ends=True)` gives a run's stamped events.

    Groups are of the `domains` in turn.
    """
    return lambda steps=20, alpha=1, ends=True, domains=("FrozenLake",): _Writer(
        steps, alpha, domains
    ).write(ends)


def stats(version: int, tokens: int, gap: float | None = 2e-6) -> TrainStats:
    return TrainStats(
        version=version,
        loss=0.1,
        grad_norm=0.5,
        trained_tokens=tokens,
        input_tokens=tokens * 3,
        optimizer_steps=1,
        learning_rate=1e-4,
        entropy=0.9,
        clip_fraction=0.01,
        approx_kl=0.002,
        ratio_max=1.3,
        same_version_gap=gap,
        seconds=0.8,
    )


@dataclass
class _Writer:
    steps: int
    alpha: int
    domains: tuple[str, ...]

    def __post_init__(self) -> None:
        self.random = Random(7)
        self.now = 0.0
        self.out: list[Stamped] = []
        self.group = 0
        self.started = 0
        self.in_batch: list[tuple[str, str, int]] = []
        self.counts = {d.value: 0 for d in Disposition}

    def emit(self, event: Event) -> None:
        self.out.append(Stamped(time=self.now, seq=len(self.out), incarnation=0, event=event))

    def write(self, ends: bool) -> list[Stamped]:
        self.emit(
            RunStarted(
                schema=SCHEMA,
                run="synthetic",
                runtime="local",
                protocol="rollart",
                alpha=self.alpha,
                seed=3,
                steps=self.steps,
                batch_groups=GROUPS,
                group_size=MEMBERS,
                domains=self.domains,
                config="schema = 1\n",
            )
        )
        for engine in ("engine-0", "engine-1"):
            self.emit(EngineUp(engine=engine, hardware="cpu"))
        for name, success in (("best fixed sequence", 0.27), ("right if free, else down", 0.62)):
            for domain in self.domains:
                self.emit(Baseline(domain=domain, name=name, success=success, tasks=256))
        # Engines get the first weights, and are measured, before the first batch is asked for.
        for phase in (Phase.PUBLISH, Phase.UPDATE, Phase.RESUME):
            self.phase(0, phase, 0.05)
        self.evaluate("before", 0, 0.11, 0.02)
        for step in range(self.steps):
            self.step(step)
        if ends:
            self.evaluate("after", self.steps, 0.87, 0.9)
            self.close_ledger(self.steps)
            self.emit(
                RunEnded(
                    reason="all steps are done", ok=True, steps=self.steps, seconds=self.now + 1.0
                )
            )
        return self.out

    def evaluate(self, when: str, version: int, sampled: float, greedy: float) -> None:
        for domain, mode, success in (
            (domain, mode, success)
            for domain in self.domains
            for mode, success in (("sampled", sampled), ("greedy", greedy))
        ):
            self.now += 2.0
            self.emit(
                Evaluated(
                    domain=domain,
                    when=when,
                    mode=mode,
                    version=version,
                    tasks=256,
                    scored=255,
                    success=success,
                    score=success,
                    seconds=2.0,
                )
            )

    def close_ledger(self, step: int) -> None:
        self.emit(
            LedgerClosed(
                step=step,
                started=self.started,
                dispositions=tuple(self.counts.items()),
                buffered=0,
                in_flight=0,
                balanced=True,
            )
        )

    def phase(self, step: int, phase: Phase, seconds: float) -> None:
        self.emit(PhaseBegan(step=step, phase=phase))
        self.now += seconds
        self.emit(PhaseEnded(step=step, phase=phase, seconds=seconds, ok=True))

    def busy(self, device: str, work: str, begin: float, end: float) -> None:
        self.emit(DeviceBusy(device=device, hardware="cpu", work=work, begin=begin, end=end))

    @property
    def domain(self) -> str:
        """Of the group that is written."""
        return self.domains[self.group % len(self.domains)]

    def rollout(self, step: int) -> None:
        for _ in range(GROUPS):
            self.group += 1
            self.emit(
                Admitted(
                    group=self.group,
                    domain=self.domain,
                    task=f"map{self.group}",
                    requeued=False,
                    outstanding=GROUPS,
                    capacity=GROUPS * (self.alpha + 1),
                )
            )
            for member in range(MEMBERS):
                self.trajectory(
                    f"{self.domain}/map{self.group}/g{self.group}.{member}.0", member, step
                )
            self.emit(
                GroupReady(
                    group=self.group, domain=self.domain, members=MEMBERS, start_version=step
                )
            )

    def trajectory(self, name: str, member: int, version: int) -> None:
        self.started += 1
        self.emit(
            TrajectoryStarted(
                trajectory=name,
                purpose="train",
                domain=self.domain,
                task=f"map{self.group}",
                group=self.group,
                member=member,
                attempt=0,
            )
        )
        self.emit(EnvironmentReset(trajectory=name, seconds=0.01, ok=True))
        for turn in range(TURNS):
            self.emit(
                TurnEnded(
                    trajectory=name,
                    turn=turn,
                    engine=f"engine-{member}",
                    prompt_tokens=60 + 20 * turn,
                    sampled_tokens=5,
                    cost=RequestCost(
                        cached_tokens=40,
                        prefill_tokens=20,
                        decode_tokens=5,
                        queued_s=0.01,
                        prefill_s=0.02,
                        decode_s=0.05,
                    ),
                    proxy_queued_s=0.01,
                    env_s=0.01,
                    first_version=version,
                    last_version=version,
                    versions=((version, 5),),
                    stop="stop",
                    interruptions=int(self.random.random() < 0.1),
                )
            )
        # Never both members, so that every group is ready in the end.
        failed = member == 1 and self.random.random() < 0.2
        solved = float(self.random.random() < 0.11 + 0.76 * (version + 1) / self.steps)
        self.emit(
            TrajectoryEnded(
                trajectory=name,
                purpose="train",
                domain=self.domain,
                status="failed" if failed else "finished",
                failure="env_timeout" if failed else "",
                detail="",
                turns=TURNS,
                prompt_tokens=100,
                sampled_tokens=15,
                start_version=version,
                score=None if failed else solved - 0.05,
                success=None if failed else solved,
                elapsed_s=0.4,
                reset_s=0.01,
                reward_s=0.0,
            )
        )
        if failed:
            self.dispose(name, Disposition.FAILED, "env_timeout", version, self.domain)
        else:
            self.in_batch.append((name, self.domain, version))

    def dispose(
        self, name: str, disposition: Disposition, reason: str, version: int, domain: str
    ) -> None:
        self.counts[disposition.value] += 1
        self.emit(
            Disposed(
                trajectory=name,
                domain=domain,
                group=self.group,
                disposition=disposition,
                reason=reason,
                start_version=version,
                elapsed_s=0.4,
                censored=False,
            )
        )

    def step(self, step: int) -> None:
        began = self.now
        self.rollout(step)
        wait = 0.9 + 0.4 * self.random.random() if self.alpha == 0 or step == 0 else 0.25
        self.phase(step, Phase.GET_BATCH, wait)
        success = 0.11 + 0.76 * (step + 1) / self.steps + self.random.uniform(-0.08, 0.08)
        self.emit(
            BatchTaken(
                step=step,
                groups=GROUPS,
                trajectories=GROUPS * MEMBERS,
                tokens=1000,
                start_lag_max=min(self.alpha, step),
                score_mean=success - 0.05,
                success_mean=success,
            )
        )
        if self.alpha:
            self.sync(step)
        if self.alpha == 0 or step == 0:
            for engine in ("engine-0", "engine-1"):
                self.busy(engine, "decode", began, began + wait)
        self.train(step)
        if self.alpha == 0:
            self.sync(step)

    def sync(self, step: int) -> None:
        for phase, seconds in (
            (Phase.ABORT_STALE, 0.01),
            (Phase.SUSPEND, 0.03),
            (Phase.UPDATE, 0.08),
            (Phase.RESUME, 0.01),
        ):
            self.phase(step, phase, seconds)
        for engine in ("engine-0", "engine-1"):
            self.busy(engine, "update", self.now - 0.1, self.now - 0.02)
            self.emit(EngineAcknowledged(engine=engine, version=step, seconds=0.08))
        self.emit(CreditsReturned(groups=GROUPS, outstanding=0, capacity=GROUPS * (self.alpha + 1)))
        self.phase(step, Phase.RECOMPUTE, 0.05)

    def train(self, step: int) -> None:
        began = self.now
        self.phase(step, Phase.TRAIN_STEP, 0.8)
        self.busy("trainer", "train", began, self.now)
        if self.alpha:
            # Rollout of the next batch goes on during the train step and a little longer.
            self.busy("engine-0", "decode", began, self.now + 0.2)
            self.busy("engine-1", "prefill", began, began + 0.3)
            self.busy("engine-1", "decode", began + 0.3, self.now - 0.1)
        for name, domain, version in self.in_batch:
            self.dispose(name, Disposition.TRAINED, "", version, domain)
        self.in_batch.clear()
        tokens = 100 if step % 2 else 300
        self.emit(
            StepTrained(
                step=step,
                stats=stats(step + 1, tokens),
                token_lag_max=min(self.alpha + 1, step) if self.alpha else 0,
                token_lag_mean=0.5 if self.alpha and step % 2 else 0.0,
                tokens=tokens,
            )
        )
        self.emit(GapMeasured(version=step, tokens=50, maximum=1e-6 * (step + 1), mean=1e-7))
        self.phase(step, Phase.PUBLISH, 0.05)
        self.close_ledger(step)
