"""Weights that are pushed and pulled beside the rollout, against weights that stop it."""

from collections.abc import Sequence
from functools import partial

from rollart.paper.arms import H20, Arm, Cluster, arm
from rollart.paper.effort import Effort
from rollart.paper.parameters import MODELS
from rollart.paper.protocols import ROLLART, protocol_arm
from rollart.paper.rows import Kind, Part, Row, Seen

PAPER = {
    "Qwen3-8B": (32.4, 6.2, 1.4, 38.6),
    "Qwen3-14B": (67.8, 16.3, 5.1, 84.1),
    "Qwen3-32B": (127.3, 29.7, 9.6, 157.0),
}
"""Seconds: push, pull in all, what of the pull is exposed, and the blocking way."""


def micro_rows(effort: Effort) -> list[Row]:
    """How long weights travel, and how much of it the rollout notices."""
    parts: list[Part] = []
    for model, (push, pull, exposed, naive) in PAPER.items():
        parts += [
            Part(label=f"{model} exposed over pull", paper=f"{exposed / pull:.2f}", high=1 / 3),
            Part(label=f"{model} push s", paper=f"{push:g}"),
            Part(label=f"{model} pull s", paper=f"{pull:g}"),
            Part(label=f"{model} exposed s", paper=f"{exposed:g}"),
            Part(label=f"{model} naive s", paper=f"{naive:g}"),
        ]
    return [
        Row(
            id="m-weights",
            kind=Kind.MICRO,
            what="weights: push, accumulated pull, exposed part of it, blocking transfer (s)",
            paper="exposed .23-.32 of the pull",
            band="exposed at most 1/3 of pull",
            parts=tuple(parts),
            arms=tuple(_small(model, mode) for model in MODELS for mode in ("async", "blocking")),
            value=_times,
            seeds=1,
            assumed="link rates and the rate of loading into GPUs, in the catalogue (fitted)",
        )
    ]


def _small(model: str, mode: str) -> Arm:
    """A short job, whose engines generate while weights travel."""
    return arm(
        f"weights {mode} {model} small",
        Cluster(
            model=model,
            engines={H20: 16},
            trainer=16,
            weights={"mode": mode},
        ),
        domains=("GEM-game",),
        groups=8,
        steps=4,
        skip=1,
        protocol="rollart",
    )


def _times(seen: Seen) -> Sequence[float]:
    values: list[float] = []
    for model in MODELS:
        beside = seen[f"weights async {model} small"]
        stopped = seen[f"weights blocking {model} small"]
        # The blocking way is the push, and then what each engine pulls and loads.
        pull = stopped.update_s - beside.push_s - beside.update_s
        values += [
            beside.update_s / pull,
            beside.push_s,
            pull,
            beside.update_s,
            stopped.update_s,
        ]
    return values


WARM = 2
"""Steps that must not count: the first has no new weights to wait for."""

# -- end to end ------------------------------------------------------------------------------------


def end_rows(effort: Effort) -> list[Row]:
    """The same job with both ways of moving weights."""
    beside = [protocol_arm(ROLLART, model, effort, warm=WARM) for model in effort.models]
    stopped = [
        protocol_arm(ROLLART, model, effort, warm=WARM, blocks=True) for model in effort.models
    ]
    return [
        Row(
            id="e-weights",
            kind=Kind.END_TO_END,
            what="step time, blocking over asynchronous weights",
            paper="1.10-1.16",
            band="1.05-1.2",
            parts=tuple(
                Part(label=model, paper="1.10-1.16", low=1.05, high=1.2) for model in effort.models
            ),
            arms=(*beside, *stopped),
            value=partial(_gains, beside, stopped),
            seeds=effort.seeds,
            assumed="rollart with alpha = 1 on 64 H800 + 32 H20, 32 H800 train",
            why=(
                "Training paces the run: the push stands between two train steps whether rollout "
                "goes on beside it or not. Rollout that is not stopped gains generation's time, of "
                "which there is enough, and the step gains only the pull, at most."
            ),
        )
    ]


def _gains(beside: Sequence[Arm], stopped: Sequence[Arm], seen: Seen) -> Sequence[float]:
    return [
        seen[slow.name].step_s / seen[fast.name].step_s
        for fast, slow in zip(beside, stopped, strict=True)
    ]
