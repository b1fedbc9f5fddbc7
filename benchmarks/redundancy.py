"""Spare members and groups on a straggling domain: speed-up, waste, and bias in each mode.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python -m benchmarks.redundancy [--rounds 5] [--quick]

Half of the trajectories take three times as long and succeed in 60 %, the others in 20 %, so the
true mean reward is 0.400 and half of what is started is long. Two parts:

virtual     the real control plane over scripted parts under virtual time: the sweep. Engine and
            environments have no contention there, so a spare costs what the waste columns say and
            slows nobody down; train steps take as long as a short trajectory.
real        `benchmarks/parts/redundancy.toml` on the local runtime: engine, trainer and sleeping
            environments in children, as a confirmation. Bias figures are those of its report.

A ratio compares runs of one round (one seed), which differ in the setting alone.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.runs import Figures, figures_of, make_model, middle, spread, table, train
from benchmarks.parts.straggling import Straggling, StragglingLauncher
from rollart.core.events import Disposed, Stamped
from rollart.core.types import Disposition
from rollart.testing.harness import run_scripted, scripted_job
from rollart.testing.script import Script

LAW = Straggling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row: the `redundancy` section, under a protocol."""

    members: int = 0
    groups: int = 0
    mode: str = "race"
    protocol: str = "rollart"

    @property
    def label(self) -> tuple[str, str, str]:
        mode = self.mode if self.members or self.groups else "none"
        return mode, str(self.members), str(self.groups)

    @property
    def base(self) -> "Setting":
        return Setting(protocol=self.protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One virtual run; what the end of the run cut off has no part in it.

    `surplus` is the share of trajectories that left as such, `seconds` that of their time,
    `tokens` that of sampled tokens which were not trained. `kept_score` and `kept_long` are of
    what was trained, `finished_score` of all that finished, `estimate` is the report's.
    """

    rate: float
    surplus: float
    seconds: float
    tokens: float
    kept_score: float
    kept_long: float
    finished_score: float
    estimate: float


SPARES = [Setting(members=members) for members in (0, 1, 2, 4)]
SPARES += [Setting(groups=groups) for groups in (1, 2)]
SPARES += [Setting(members=2, groups=1), Setting(members=4, mode="adaptive")]
SPARES += [
    Setting(members=members, groups=groups, mode="unbiased")
    for members, groups in ((4, 0), (0, 2), (2, 1))
]
SPARE = ("mode", "spare members", "spare groups")
VIRTUAL = (
    *SPARE,
    "steps/s, ratio to none",
    "surplus trajectories",
    "of seconds",
    "tokens not trained",
    "reward: kept",
    "all finished",
    "the report's estimate",
    "long among kept",
)
REAL_COLUMNS = (
    *SPARE,
    "trained tokens/s",
    "ratio to none",
    "surplus trajectories",
    "reward: kept",
    "estimate for all started",
    "slow: kept",
    "slow: started",
    "engine busy",
    "trainer busy",
)
REAL = (
    Setting(),
    Setting(members=4),
    Setting(groups=1),
    Setting(members=4, mode="adaptive"),
    Setting(members=4, mode="unbiased"),
)


def play(setting: Setting, seed: int, steps: int) -> Kept:
    """One run under virtual time: 4 groups of 8 a step."""
    job = scripted_job(
        run__steps=steps,
        run__seed=seed,
        rollout__group_size=8,
        protocol__name=setting.protocol,
        redundancy__members=setting.members,
        redundancy__groups=setting.groups,
        redundancy__mode=setting.mode,
        timeouts__env_step_s=60.0,
    )
    pace = LAW.turns * LAW.step_s
    script = Script(
        seed=seed, tokens_per_turn=(1, 1), token_s=(0.05, 0.05), train_s=(pace, pace),
        publish_s=(0.0, 0.0), update_s=(0.0, 0.0),
    )  # fmt: skip
    run = run_scripted(job, script, launcher=lambda script: StragglingLauncher(script, LAW))
    draw = script.draw
    events = [
        Stamped(time=time, seq=seq, incarnation=0, event=event)
        for seq, (time, event) in enumerate(run.events.events)
    ]
    disposed = run.events.of(Disposed)
    left = [event for event in disposed if event.disposition is not Disposition.CANCELLED]
    kept = [event.trajectory for event in left if event.disposition is Disposition.TRAINED]
    finished = [event.trajectory for event in left if not event.censored]
    surplus = [event for event in left if event.disposition is Disposition.SURPLUS]
    figures = figures_of(events)
    bias = figures.summary.domains[0].bias
    return Kept(
        rate=figures.steps / figures.seconds,
        surplus=len(surplus) / len(left),
        seconds=sum(event.elapsed_s for event in surplus) / sum(event.elapsed_s for event in left),
        tokens=figures.lost_tokens,
        kept_score=_mean([LAW.score(draw, name) for name in kept]),
        kept_long=_mean([float(LAW.is_long(draw, name)) for name in kept]),
        finished_score=_mean([LAW.score(draw, name) for name in finished]),
        estimate=bias.reward_started if bias and bias.reward_started is not None else 0.0,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def virtual(rounds: int, steps: int) -> None:
    for protocol in ("sync_plus", "rollart"):
        settings = [
            Setting(members=one.members, groups=one.groups, mode=one.mode, protocol=protocol)
            for one in SPARES
        ]
        played = {one: [play(one, seed, steps) for seed in range(rounds)] for one in settings}
        print(
            f"\n### virtual time, {protocol}: {rounds} seeds, {steps} steps of 4 groups of 8; true "
            f"mean reward {LAW.mean_score:.3f}\n"
        )
        print(
            table(
                VIRTUAL,
                [_virtual_row(one, runs, played[one.base]) for one, runs in played.items()],
            ),
            flush=True,
        )


def _virtual_row(setting: Setting, runs: Sequence[Kept], base: Sequence[Kept]) -> Sequence[str]:
    return (
        *setting.label,
        spread([run.rate / other.rate for run, other in zip(runs, base, strict=True)]),
        f"{middle(run.surplus for run in runs):.0%}",
        f"{middle(run.seconds for run in runs):.0%}",
        f"{middle(run.tokens for run in runs):.0%}",
        spread([run.kept_score for run in runs], 3),
        f"{middle(run.finished_score for run in runs):.3f}",
        spread([run.estimate for run in runs], 3),
        f"{middle(run.kept_long for run in runs):.0%}",
    )


def real(rounds: int, steps: int) -> None:
    results: dict[Setting, list[Figures]] = {setting: [] for setting in REAL}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        model = make_model(out)
        for seed in range(rounds):
            shift = seed % len(REAL)
            for at, setting in enumerate((*REAL[shift:], *REAL[:shift])):
                given = [
                    f'model.path="{model}"',
                    f"run.seed={seed}",
                    f"run.steps={steps}",
                    f"redundancy.members={setting.members}",
                    f"redundancy.groups={setting.groups}",
                    f'redundancy.mode="{setting.mode}"',
                ]
                figures = train("redundancy.toml", out, f"run-{seed}-{at}", given)
                results[setting].append(figures)
    others = middle(run.others for runs in results.values() for run in runs)
    print(
        f"\n### real, rollart: {rounds} rounds, {steps} steps of 4 groups of 8; other programs had "
        f"{others:.0%} of the machine\n"
    )
    print(
        table(
            REAL_COLUMNS,
            [_real_row(setting, runs, results[Setting()]) for setting, runs in results.items()],
        ),
        flush=True,
    )


def _real_row(setting: Setting, runs: Sequence[Figures], base: Sequence[Figures]) -> Sequence[str]:
    biases = [run.summary.domains[0].bias for run in runs]
    left = [run.summary.ledger.started - run.count("cancelled") for run in runs]
    surplus = [run.count("surplus") / of for run, of in zip(runs, left, strict=True)]
    return (
        *setting.label,
        spread([run.rate for run in runs], 0),
        spread([run.rate / other.rate for run, other in zip(runs, base, strict=True)]),
        f"{middle(surplus):.0%}",
        spread([bias.reward_kept or 0.0 for bias in biases if bias], 3),
        f"{middle(bias.reward_started or 0.0 for bias in biases if bias):.3f}",
        f"{middle(bias.slow_kept or 0.0 for bias in biases if bias):.0%}",
        f"{middle(bias.slow_started or 0.0 for bias in biases if bias):.0%}",
        f"{middle(run.engine_busy for run in runs):.0%}",
        f"{middle(run.trainer_busy for run in runs):.0%}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--part", choices=("all", "virtual", "real"), default="all")
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    if chosen.part in ("all", "virtual"):
        virtual(rounds, 10 if chosen.quick else 40)
    if chosen.part in ("all", "real"):
        real(rounds, 4 if chosen.quick else 20)


if __name__ == "__main__":
    main()
