"""Two hardware classes, two domains: routing by affinity, by load alone, and the wrong way round.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python -m benchmarks.affinity [--rounds 5] [--quick]

The hardware is an emulation: two engines of the local runtime that sleep in proportion to the
tokens they compute, "H800" five times as long for a sampled token, "H20" five times as long for a
prompt token (`benchmarks/parts/pace.py`). The rest of the run is real. The three routings differ
in `rollout.affinity` alone; "by load" has none, so that a new trajectory goes to the engine with
the fewest requests, whatever its domain, and stays there. A ratio compares runs of one round.
"""

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.pace import DECODE_S, PREFILL_S, SLOW
from benchmarks.parts.runs import (
    FIRST_STEPS,
    Figures,
    make_model,
    middle,
    spread,
    table,
    train,
)
from rollart.core.events import Stamped, TurnEnded
from rollart.observe.eventlog import EVENTS_FILE, read_events

ROUTINGS = {
    "by load": "{}",
    "affinity": '{ Reader = "H800", Writer = "H20" }',
    "inverted": '{ Reader = "H20", Writer = "H800" }',
}
BASE = "by load"
COLUMNS = (
    "routing",
    "trained tokens/s",
    f"ratio to {BASE}",
    "busy: H800 / H20 / trainer",
    "Reader's turns on H800",
    "Writer's turns on H800",
    "token lag max",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """One run, and the share of each domain's turns that the H800 engine served."""

    figures: Figures
    on_h800: Mapping[str, float]

    def busy(self, device: str) -> float:
        return next(one.busy for one in self.figures.summary.devices if one.device == device)


def measure(rounds: int, steps: int) -> dict[str, list[Routed]]:
    results: dict[str, list[Routed]] = {name: [] for name in ROUTINGS}
    names = tuple(ROUTINGS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        model = make_model(out)
        for seed in range(rounds):
            shift = seed % len(names)
            for name in (*names[shift:], *names[:shift]):
                given = [
                    f'model.path="{model}"',
                    f"rollout.affinity={ROUTINGS[name]}",
                    f"run.seed={seed}",
                    f"run.steps={steps}",
                ]
                run = f"{name.replace(' ', '-')}-{seed}"
                figures = train("affinity.toml", out, run, given)
                turns = read_events(out / run / EVENTS_FILE, only=(TurnEnded,))
                results[name].append(Routed(figures=figures, on_h800=on_h800(turns)))
    return results


def on_h800(turns: Iterable[Stamped]) -> Mapping[str, float]:
    """Shares of turns by domain; the first engine is the H800."""
    served: dict[str, list[bool]] = {"Reader": [], "Writer": []}
    for stamped in turns:
        if isinstance(stamped.event, TurnEnded):
            domain = stamped.event.trajectory.partition("/")[0]
            served[domain].append(stamped.event.engine == "engine-0")
    return {domain: sum(there) / max(1, len(there)) for domain, there in served.items()}


def row(name: str, results: Mapping[str, Sequence[Routed]]) -> Sequence[str]:
    runs = results[name]
    pairs = zip(runs, results[BASE], strict=True)
    busy = (middle(run.busy(of) for run in runs) for of in ("engine-0", "engine-1", "trainer"))
    return (
        name,
        spread([run.figures.rate for run in runs], 0),
        spread([run.figures.rate / base.figures.rate for run, base in pairs]),
        " / ".join(f"{share:.0%}" for share in busy),
        *(f"{middle(run.on_h800[tag] for run in runs):.0%}" for tag in ("Reader", "Writer")),
        str(max(run.figures.summary.token_lag_max or 0 for run in runs)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one step a run: does it work at all?")
    chosen = parser.parse_args()
    rounds, steps = (1, 1) if chosen.quick else (chosen.rounds, 4)
    results = measure(rounds, FIRST_STEPS + steps)
    prompt, sampled = PREFILL_S * 1e6, DECODE_S * 1e6
    print(
        f"{rounds} rounds; sleeps: {prompt:.0f} us a prompt token, {sampled:.0f} us a sampled one, "
        f"{SLOW:g} times that in the phase in which a class is slow; other programs had "
        f"{middle(run.figures.others for runs in results.values() for run in runs):.0%} of the "
        "machine\n"
    )
    print(
        table(
            COLUMNS,
            [row(name, results) for name in results],
        )
    )


if __name__ == "__main__":
    main()
