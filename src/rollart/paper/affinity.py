"""R1, hardware affinity: which GPUs suit which domain, and what it is worth to a whole job."""

from collections.abc import Mapping, Sequence
from functools import partial

from rollart.paper.arms import (
    ASYNC,
    AT_ONCE,
    H20,
    H800,
    MATH,
    Arm,
    Cluster,
    arm,
    domains_of,
    rollout_only,
)
from rollart.paper.effort import Effort
from rollart.paper.parameters import NO_TRAINING, TRAINER_GPUS
from rollart.paper.rows import Kind, Part, Row, Seen

LAKE = "FrozenLake"
BATCHES = (64, 128, 192)
TWO_H800, SIX_H20 = {H800: 2}, {H20: 6}
"""Of about the same price."""
HITS = (0.0, 0.5, 0.8, 0.9, 1.0)
MIXED = {H800: 64, H20: 24}

PACED_BY_TRAINING = (
    "Training paces the run more than generation: the trainer goes from a train step over the push "
    "of its weights to the next one, and both are nearly the whole step (train + push below). "
    "So a better place for a domain frees generating GPUs, and the step stays about as long."
)


def micro_rows(effort: Effort) -> list[Row]:
    """FrozenLake and GEM-math on each kind of GPU, and what the prefix cache does to it."""
    seeds = effort.seeds
    return [
        Row(
            id="m-r1-lake",
            kind=Kind.MICRO,
            what="FrozenLake rollout time, 2 H800 over 6 H20 (8B, batch 64-192)",
            paper="as low as .53",
            band="minimum .45-.60",
            parts=(
                Part(label="minimum", paper=".53", low=0.45, high=0.60),
                *(Part(label=f"batch {batch}") for batch in BATCHES),
            ),
            arms=tuple(
                _rollout(LAKE, engines, batch, effort)
                for batch in BATCHES
                for engines in (TWO_H800, SIX_H20)
            ),
            value=_lake,
            seeds=seeds,
        ),
        Row(
            id="m-r1-math",
            kind=Kind.MICRO,
            what="GEM-math rollout time, 6 H20 over 2 H800 (8B, batch 64-192)",
            paper=".49-.79",
            band=".45-.85",
            parts=tuple(
                Part(label=f"batch {batch}", paper=".49-.79", low=0.45, high=0.85)
                for batch in BATCHES
            ),
            arms=tuple(
                _rollout(MATH, engines, batch, effort)
                for batch in BATCHES
                for engines in (TWO_H800, SIX_H20)
            ),
            value=_math,
            seeds=seeds,
        ),
        Row(
            id="sweep-prefix",
            of="m-r1-lake",
            kind=Kind.SWEEP,
            what="the same by prefix-cache hit rate (batch 64)",
            paper="",
            band="",
            parts=tuple(Part(label=f"hit {hit:g}") for hit in HITS),
            arms=tuple(
                _rollout(LAKE, engines, BATCHES[0], effort, hit=hit)
                for hit in HITS
                for engines in (TWO_H800, SIX_H20)
            ),
            value=_sweep,
            seeds=seeds,
        ),
    ]


def _name(tag: str, engines: dict[str, int], batch: int, hit: float | None) -> str:
    gpus = "+".join(f"{count}x{name}" for name, count in engines.items())
    return f"rollout {tag} {gpus} batch={batch}" + ("" if hit is None else f" hit={hit:g}")


def _rollout(
    tag: str, engines: dict[str, int], batch: int, effort: Effort, hit: float | None = None
) -> Arm:
    keys = {} if hit is None else {"prefix_hit": hit}
    return rollout_only(
        _name(tag, engines, batch, hit),
        engines,
        domains={tag: keys},
        batch=batch,
        rollouts=effort.rollouts,
    )


def _ratio(seen: Seen, tag: str, batch: int, hit: float | None = None) -> float:
    """Rollout time on the H800s over that on the H20s."""
    over, under = (seen[_name(tag, gpus, batch, hit)] for gpus in (TWO_H800, SIX_H20))
    return over.rollout_s / under.rollout_s


def _lake(seen: Seen) -> Sequence[float]:
    ratios = [_ratio(seen, LAKE, batch) for batch in BATCHES]
    return [min(ratios), *ratios]


def _math(seen: Seen) -> Sequence[float]:
    return [1 / _ratio(seen, MATH, batch) for batch in BATCHES]


def _sweep(seen: Seen) -> Sequence[float]:
    return [_ratio(seen, LAKE, BATCHES[0], hit) for hit in HITS]


# -- end to end ------------------------------------------------------------------------------------


def end_rows(effort: Effort) -> list[Row]:
    """A mixed cluster against as costly ones of one kind; and no gain where the kinds are equal."""
    models, seeds = effort.models, effort.seeds
    mixed = [_whole("64xH800+24xH20", MIXED, model, effort) for model in models]
    compute = [_whole("72xH800", {H800: 72}, model, effort) for model in models]
    bandwidth = [_whole("208xH20", {H20: 208}, model, effort) for model in models]
    only_model = models[:1]
    split = [
        _whole("64+24 alike", MIXED, model, effort, hardware={H20: H800}, paced=True)
        for model in only_model
    ]
    whole = [_whole("88xH800", {H800: 88}, model, effort, paced=True) for model in only_model]
    assumed = (
        "FrozenLake, WebShop and SWE-bench on H800, GEM-math and GEM-game on H20, as declared; "
        "rollart with alpha = 1, weights over the slow link, a serverless judge"
    )
    return [
        Row(
            id="e-r1-h800",
            kind=Kind.END_TO_END,
            what="R1: throughput on 64 H800 + 24 H20 over 72 H800 (32 H800 train)",
            paper="1.12-1.37",
            band="1.05-1.45",
            parts=_parts(models, "1.12-1.37", 1.05, 1.45),
            arms=(*mixed, *compute),
            value=partial(_gains, mixed, compute),
            seeds=seeds,
            assumed=assumed,
            why=PACED_BY_TRAINING,
        ),
        Row(
            id="e-r1-h20",
            kind=Kind.END_TO_END,
            what="R1: throughput on 64 H800 + 24 H20 over 208 H20 (32 H800 train)",
            paper="1.30-1.68",
            band="1.2-1.8",
            parts=_parts(models, "1.30-1.68", 1.2, 1.8),
            arms=(*mixed, *bandwidth),
            value=partial(_gains, mixed, bandwidth),
            seeds=seeds,
            assumed=assumed,
            why=PACED_BY_TRAINING,
        ),
        Row(
            id="control-one-class",
            of="e-r1-h800",
            kind=Kind.CONTROL,
            what=(
                "one GPU class, paced by generation: 88 H800 divided 64 to 24 by affinity, over "
                "88 undivided"
            ),
            paper="no gain",
            band="at most 1.05",
            parts=_parts(only_model, "no gain", 0.0, 1.05),
            arms=(*split, *whole),
            value=partial(_gains, split, whole),
            seeds=seeds,
        ),
    ]


def _parts(models: Sequence[str], paper: str, low: float, high: float) -> tuple[Part, ...]:
    return tuple(Part(label=model, paper=paper, low=low, high=high) for model in models)


def _whole(
    name: str,
    engines: Mapping[str, int],
    model: str,
    effort: Effort,
    *,
    hardware: Mapping[str, str] | None = None,
    paced: bool = False,
) -> Arm:
    """A job on so many GPUs; with two classes, domains go where they are said to.

    Args:
        hardware: the GPU of a class whose name is none.
        paced: by generation: training and weights take next to no time.
    """
    effort = effort.no_smaller(2)  # 24 H20 for a 32B on four
    scale = effort.scale
    cluster = Cluster(
        model=model,
        engines={each: gpus // scale for each, gpus in engines.items()},
        hardware=hardware or {},
        trainer=TRAINER_GPUS // scale,
        training=NO_TRAINING if paced else {},
        weights=AT_ONCE if paced else ASYNC,
    )
    return arm(
        f"r1 {name} {model}" + (" paced by generation" if paced else ""),
        cluster,
        domains=domains_of(model),
        groups=effort.groups,
        steps=effort.steps,
        skip=effort.warm,
        protocol="rollart",
        affinity=len(engines) > 1,
    )


def _gains(over: Sequence[Arm], under: Sequence[Arm], seen: Seen) -> Sequence[float]:
    return [
        seen[one.name].throughput / seen[other.name].throughput
        for one, other in zip(over, under, strict=True)
    ]
