"""The same job under the five protocols: trained tokens/s as ratios to sync_plus, and why.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python -m benchmarks.protocols [--rounds 5] [--quick]

Real runs of `benchmarks/parts/protocols.toml`, one `--set protocol.name=` apart: engine, trainer
and environments in children of their own, a model of 0.6M parameters, environments that sleep.
Within a round the protocols take turns, in an order that rotates, and a ratio compares runs of one
round. Three latencies, whose mean is the time of a turn at the engine in a run before the first
round: long-tailed (lognormal, sigma 1), equal (sigma 0, the negative control), and long-tailed with
1 reset in 50 taking 20 times as long.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.parts.runs import FIRST_STEPS, Figures, make_model, middle, spread, table, train

PROTOCOLS = ("sync", "sync_plus", "one_off", "areal", "rollart")
BASE = "sync_plus"
LATENCIES = {"long-tailed": (1.0, 0.0), "equal": (0.0, 0.0), "slow resets": (1.0, 0.02)}
"""Sigma of every latency, and the share of resets that are slow."""

STEPS = {"sync": 3, "sync_plus": 6, "one_off": 9, "areal": 9, "rollart": 9}
"""Steps measured, so that runs take about equally long."""

SPEED = (
    "protocol",
    "trained tokens/s",
    f"ratio to {BASE}",
    "token lag mean / max",
    "stale",
    "turns of two versions",
    "tokens lost",
)
PHASES = (
    "get_batch",
    "train_step",
    "publish",
    "abort_stale",
    "suspend",
    "update",
    "resume",
    "recompute",
)

Results = Mapping[str, Sequence[Figures]]


def settings(protocol: str, latency: str, seed: int, mean_s: float, steps: int) -> list[str]:
    sigma, slow = LATENCIES[latency]
    return [
        f"domains.Sleeper.options.mean_s={mean_s}",
        f'protocol.name="{protocol}"',
        f"run.seed={seed}",
        f"run.steps={FIRST_STEPS + steps}",
        f"domains.Sleeper.options.sigma={sigma}",
        f"domains.Sleeper.options.slow_resets={slow}",
    ]


class Bench:
    """Runs in one folder, of one model, at one mean latency (s)."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._model = make_model(out)
        self.mean_s = 0.1

    def train(self, name: str, protocol: str, latency: str, seed: int, steps: int) -> Figures:
        given = settings(protocol, latency, seed, self.mean_s, steps)
        return train("protocols.toml", self._out, name, [f'model.path="{self._model}"', *given])

    def calibrate(self, steps: int) -> None:
        """The mean latency becomes the time of a turn at the engine."""
        self.mean_s = round(self.train("calibration", BASE, "long-tailed", 0, steps).turn_s, 3)

    def measure(
        self, latency: str, protocols: Sequence[str], rounds: int, steps: Mapping[str, int]
    ) -> Results:
        results: dict[str, list[Figures]] = {protocol: [] for protocol in protocols}
        for seed in range(rounds):
            shift = seed % len(protocols)
            for protocol in (*protocols[shift:], *protocols[:shift]):
                name = f"{latency.replace(' ', '-')}-{protocol}-{seed}"
                run = self.train(name, protocol, latency, seed, steps[protocol])
                results[protocol].append(run)
        return results


def show(latency: str, results: Results) -> None:
    rounds = len(results[BASE])
    sigma, slow = LATENCIES[latency]
    turn, env = (
        middle(getattr(run, what) for run in results[BASE]) for what in ("turn_s", "env_s")
    )
    others = middle(run.others for runs in results.values() for run in runs)
    print(
        f"\n### {latency} (sigma {sigma:g}, slow resets {slow:.0%}): {rounds} rounds; under {BASE} "
        f"a turn takes {turn:.2f} s at the engine and {env:.2f} s in the environment; other "
        f"programs had {others:.0%} of the machine\n"
    )
    print(
        table(
            SPEED,
            [speed_row(protocol, results) for protocol in results],
        )
    )
    print("\nSeconds a step (medians), and shares of the time that are busy\n")
    print(
        table(
            ("protocol", "step", *PHASES, "engine", "trainer", "both"),
            [time_row(protocol, runs) for protocol, runs in results.items()],
        ),
        flush=True,
    )


def speed_row(protocol: str, results: Results) -> Sequence[str]:
    runs = results[protocol]
    ratios = [run.rate / base.rate for run, base in zip(runs, results[BASE], strict=True)]
    lag = middle(run.summary.token_lag_mean or 0.0 for run in runs)
    most = max(run.summary.token_lag_max or 0 for run in runs)
    return (
        protocol,
        spread([run.rate for run in runs], 0),
        spread(ratios),
        f"{lag:.2f} / {most}",
        f"{middle(run.count('stale') for run in runs):.0f}",
        f"{middle(run.mixed for run in runs):.1%}",
        f"{middle(run.lost_tokens for run in runs):.0%}",
    )


def time_row(protocol: str, runs: Sequence[Figures]) -> Sequence[str]:
    shares = ("engine_busy", "trainer_busy", "both_busy")
    return (
        protocol,
        f"{middle(run.step_s for run in runs):.2f}",
        *(f"{middle(run.phases[phase] for run in runs):.2f}" for phase in PHASES),
        *(f"{middle(getattr(run, share) for run in runs):.0%}" for share in shares),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one step a run: does it work at all?")
    parser.add_argument("--latencies", nargs="+", choices=tuple(LATENCIES), default=[*LATENCIES])
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=[*PROTOCOLS])
    chosen = parser.parse_args()
    protocols = [name for name in PROTOCOLS if name in {*chosen.protocols, BASE}]
    rounds = 1 if chosen.quick else chosen.rounds
    steps = dict.fromkeys(protocols, 1) if chosen.quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.calibrate(steps[BASE])
        for latency in chosen.latencies:
            show(latency, bench.measure(latency, protocols, rounds, steps))


if __name__ == "__main__":
    main()
