"""Twice the GPUs, without affinity: who can use them?"""

from collections.abc import Sequence

from rollart.paper.arms import DOMAINS, H800, Arm, Cluster, arm
from rollart.paper.effort import Effort
from rollart.paper.parameters import ONE_CLUSTER, TRAINER_SHARE
from rollart.paper.protocols import IN_ONE_CLUSTER, ROLLART
from rollart.paper.rows import Kind, Part, Row, Seen

MODEL = "Qwen3-14B"
SIZES = (64, 128)
BASELINES = ("sync_plus", "one_off", "areal")


def end_rows(effort: Effort) -> list[Row]:
    """14B on 64 and on 128 H800."""
    ratios = tuple(
        Part(label=f"over {name}, {gpus} H800", paper="1.33-2.08", low=1.2, high=2.2)
        for name in BASELINES
        for gpus in SIZES
    )
    flatten = Part(
        label="RollArt's gain from twice the GPUs over the baselines' mean gain",
        paper="baselines flatten",
        low=1.0,
    )
    return [
        Row(
            id="e-scaling",
            kind=Kind.END_TO_END,
            what="14B, 64 to 128 H800, no affinity: throughput of RollArt over baselines",
            paper="1.33-2.08, baselines flatten",
            band="1.2-2.2 each, RollArt gains at least as much",
            parts=(*ratios, flatten),
            arms=tuple(
                _arm(name, gpus, effort) for name in (ROLLART, *BASELINES) for gpus in SIZES
            ),
            value=_values,
            seeds=effort.seeds,
            assumed="a quarter of the GPUs trains; weights within one cluster",
            why=(
                "Without affinity and with weights within one cluster AReaL and RollArt differ by "
                "aborts only, and both are paced by training at either size. Sync+ pays for the "
                "tail of each batch, which more GPUs do not shorten."
            ),
        )
    ]


def _name(protocol: str, gpus: int) -> str:
    return f"scaling {protocol} {gpus}"


def _arm(protocol: str, gpus: int, effort: Effort) -> Arm:
    trainer = gpus // TRAINER_SHARE
    moves = {"mode": "async", "push": ONE_CLUSTER, "pull": ONE_CLUSTER}
    return arm(
        _name(protocol, gpus),
        Cluster(
            model=MODEL,
            engines={H800: (gpus - trainer) // effort.scale},
            trainer=trainer // effort.scale,
            weights=moves if protocol == ROLLART else IN_ONE_CLUSTER,
        ),
        domains=DOMAINS,
        groups=effort.groups,
        steps=effort.steps,
        skip=effort.warm,
        protocol=protocol,
    )


def _values(seen: Seen) -> Sequence[float]:
    def speed(protocol: str, gpus: int) -> float:
        return seen[_name(protocol, gpus)].throughput

    def gain(protocol: str) -> float:
        return speed(protocol, SIZES[1]) / speed(protocol, SIZES[0])

    others = sum(gain(name) for name in BASELINES) / len(BASELINES)
    ratios = [speed(ROLLART, gpus) / speed(name, gpus) for name in BASELINES for gpus in SIZES]
    return [*ratios, gain(ROLLART) / others]
