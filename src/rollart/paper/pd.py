"""Prefill and decode on GPUs of their own, against the same GPUs that do both."""

from collections.abc import Mapping, Sequence
from functools import partial

from rollart.core.jobfile import Table
from rollart.paper.arms import AT_ONCE_BETWEEN, H20, H800, SWE, Arm, Cluster, arm
from rollart.paper.effort import Effort
from rollart.paper.parameters import GROUP, NO_TRAINING, ONE_CLUSTER, TENSOR_PARALLEL, WITH_SWE
from rollart.paper.rows import Kind, Part, Row, Seen

SHAPES = ((1, 3), (2, 2), (3, 1))
"""Nodes that prefill and nodes that decode."""
NODE = 8
BATCH = 128
DIVIDED, TOGETHER = "divided", "together"
DENSE, EXPERTS = WITH_SWE, "Qwen3-30B-A3B"


def end_rows(effort: Effort) -> list[Row]:
    """A dense model and one with experts, on four nodes."""
    return [
        _row("e-pd-dense", DENSE, "1.03-1.05", (1.0, 1.1), effort),
        _row("e-pd-moe", EXPERTS, "1.11-1.21", (1.05, 1.3), effort),
    ]


def _row(row: str, model: str, paper: str, within: tuple[float, float], effort: Effort) -> Row:
    low, high = within
    judged = SHAPES[:2]
    return Row(
        id=row,
        kind=Kind.END_TO_END,
        what=f"PD over co-located: rollout speed, SWE-bench, batch 128, {model}",
        paper=f"{paper} (1P3D, 2P2D)",
        band=f"{low:g}-{high:g}, 3P1D worst",
        parts=(
            *(Part(label=_label(shape), paper=paper, low=low, high=high) for shape in judged),
            Part(label="3P1D", paper="worst"),
            Part(label="best shape over 3P1D", paper="3P1D worst", low=1.0),
        ),
        arms=tuple(made(model, shape, effort) for shape in SHAPES for made in (divided, together)),
        value=partial(_gains, model),
        seeds=effort.seeds,
        assumed=(
            "prefill nodes of 8 H800 and decode nodes of 8 H20; co-located means the same GPUs; "
            "KV goes over InfiniBand; nothing is trained beside it"
        ),
        why=(
            "What decides is where prefixes fit. Prefill nodes that cannot hold those of all 128 "
            "sessions drop them and compute them anew at each turn; with one such node for the "
            "dense model that is most of the work. Co-located, requests go to the engine with the "
            "fewest, H20 as well as H800, and an H20 takes five times as long for a prefill; a "
            "baseline that is that slow leaves more to gain than the paper's."
        ),
    )


def _label(shape: tuple[int, int]) -> str:
    return f"{shape[0]}P{shape[1]}D"


def _name(model: str, shape: tuple[int, int], how: str, batch: int = BATCH) -> str:
    size = "" if batch == BATCH else f" batch={batch}"
    return f"pd {model} {_label(shape)} {how}{size}"


def divided(model: str, shape: tuple[int, int], effort: Effort, batch: int = BATCH) -> Arm:
    """Nodes that prefill and nodes that decode."""
    tp = TENSOR_PARALLEL[model]
    sides = zip(("prefill", "decode"), (H800, H20), shape, strict=True)
    section: Table = {
        side: {"hardware": hardware, "gpus": tp, "count": nodes * NODE // tp}
        for side, hardware, nodes in sides
    }
    cluster = _cluster(model, {}, {"group": {**section, "link": ONE_CLUSTER}})
    return _arm(_name(model, shape, DIVIDED, batch), cluster, effort, batch)


def together(model: str, shape: tuple[int, int], effort: Effort, batch: int = BATCH) -> Arm:
    """The same GPUs, each of which does both."""
    engines = {H800: shape[0] * NODE, H20: shape[1] * NODE}
    return _arm(_name(model, shape, TOGETHER, batch), _cluster(model, engines), effort, batch)


def alike(model: str, effort: Effort) -> Arm:
    """As many nodes, all of them of H800, each of which does both."""
    cluster = _cluster(model, {H800: 4 * NODE})
    return _arm(f"pd {model} 4 nodes of H800", cluster, effort, BATCH)


def _cluster(
    model: str, engines: Mapping[str, int], groups: Mapping[str, Table] | None = None
) -> Cluster:
    return Cluster(
        model=model,
        engines=engines,
        groups=groups or {},
        trainer=64,
        training=NO_TRAINING,
        weights=AT_ONCE_BETWEEN,
    )


def _arm(name: str, cluster: Cluster, effort: Effort, batch: int) -> Arm:
    return arm(
        name,
        cluster,
        domains=(SWE,),
        groups=batch // GROUP,
        steps=effort.rollouts,
        protocol="sync_plus",
    )


def _gains(model: str, seen: Seen) -> Sequence[float]:
    speeds = [1 / seen[_name(model, shape, DIVIDED)].rollout_s for shape in SHAPES]
    gains = [
        seen[_name(model, shape, TOGETHER)].rollout_s * speed
        for shape, speed in zip(SHAPES, speeds, strict=True)
    ]
    return [*gains, max(speeds) / speeds[2]]
