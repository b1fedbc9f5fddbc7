"""Protocols side by side: the paper's baselines and RollArt, and no training to overlap with."""

from collections.abc import Sequence
from functools import partial

from rollart.paper.arms import ASYNC, BLOCKING, H20, H800, Arm, Cluster, arm, domains_of
from rollart.paper.effort import Effort
from rollart.paper.parameters import JUDGE_GPUS, NO_TRAINING, ONE_CLUSTER, TRAINER_GPUS, WITH_SWE
from rollart.paper.rows import Kind, Part, Row, Seen, within

BASELINES = ("sync", "sync_plus", "one_off", "areal")
ROLLART = "rollart"
GPUS = 128
IN_ONE_CLUSTER = {"mode": "blocking", "push": ONE_CLUSTER, "pull": ONE_CLUSTER}
PAPER_32B = {"sync_plus": 2.05, "one_off": 1.35, "areal": 1.31}

ASSUMED = (
    "baselines: 32 of 128 H800 train, weights move within one cluster and stop the rollout, Sync "
    f"keeps {JUDGE_GPUS} GPUs for the judge; RollArt: 32 H800 train, 64 H800 and 32 H20 roll out, "
    "weights asynchronous over the slow link; the judge is serverless but for Sync"
)


WHY = {
    "e-sync-plus": (
        "Lockstep turns wait for the longest answer of each turn, and long maths answers stand "
        "beside a hundred short turns of FrozenLake: with the inferred lengths that costs the 8B "
        "more than the paper measured."
    ),
    "e-one-off": (
        "The gain of overlap is greatest where rollout and training take equally long, and where "
        "the row misses they are nearer to that than in the paper."
    ),
    "e-areal": (
        "One-off has one batch under way and waits for its last trajectory; with the inferred "
        "lengths of maths answers that tail is most of its step. AReaL has two batches under way, "
        "hides the tail whole, and is paced by training alone. In the paper One-off can have no "
        "such tail."
    ),
    "e-rollart-areal": (
        "Both are paced by training. RollArt's weights cross the slow link between two train "
        "steps, since an update comes before each; AReaL's stay within a cluster. What affinity "
        "and background pulls save is generation's time, of which there is enough. Nor is training "
        "the only cause: where generation paces both, RollArt's 64 H800 and 32 H20 generate about "
        "as much as AReaL's 96 H800, for a sixth less money, and not more."
    ),
    "e-rollart-sync": (
        "The same tail that Sync and One-off wait for is hidden by RollArt: with the inferred "
        "lengths it is longer than the paper's seems to be."
    ),
    "e-32b-step": (
        "RollArt's step is train step and push over the slow link, one after the other, and "
        "AReaL's is the train step alone; see e-rollart-areal."
    ),
}
"""What the model shows, by row."""


def end_rows(effort: Effort) -> list[Row]:
    """Throughput ratios from Sync to RollArt, by model, and step times of the 32B."""
    steps = [
        ("e-sync-plus", ("sync_plus", "sync"), "1.40-2.40", (1.3, 2.5)),
        ("e-one-off", ("one_off", "sync_plus"), "1.31-1.47", (1.25, 1.6)),
        ("e-areal", ("areal", "one_off"), "1.03-1.06", (1.0, 1.1)),
        ("e-rollart-areal", (ROLLART, "areal"), "1.22-1.36", (1.1, 1.45)),
        ("e-rollart-sync", (ROLLART, "sync"), "2.65-4.58", (2.3, 5.0)),
    ]
    return [
        *(_ratio_row(effort, *step) for step in steps),
        _step_times(effort),
        _no_training(effort),
    ]


def _ratio_row(
    effort: Effort, row: str, protocols: tuple[str, str], paper: str, within: tuple[float, float]
) -> Row:
    (over, under), (low, high) = protocols, within
    models = effort.models
    return Row(
        id=row,
        kind=Kind.END_TO_END,
        what=f"throughput, {over} over {under}",
        paper=paper,
        band=f"{low:g}-{high:g}",
        parts=tuple(Part(label=model, paper=paper, low=low, high=high) for model in models),
        arms=tuple(protocol_arm(each, model, effort) for model in models for each in (over, under)),
        value=partial(_ratios, over, under, models),
        seeds=effort.seeds,
        assumed=ASSUMED,
        why=WHY[row],
    )


def _ratios(over: str, under: str, models: Sequence[str], seen: Seen) -> Sequence[float]:
    return [
        seen[_name(over, model)].throughput / seen[_name(under, model)].throughput
        for model in models
    ]


def _step_times(effort: Effort) -> Row:
    names = (ROLLART, *PAPER_32B)
    return Row(
        id="e-32b-step",
        kind=Kind.END_TO_END,
        what="32B step time: Sync+, One-off and AReaL over RollArt",
        paper="2.05/1.35/1.31",
        band="15 % each",
        parts=tuple(within(name, paper, 0.15) for name, paper in PAPER_32B.items()),
        arms=tuple(protocol_arm(name, WITH_SWE, effort) for name in names),
        value=lambda seen: [
            seen[_name(name, WITH_SWE)].step_s / seen[_name(ROLLART, WITH_SWE)].step_s
            for name in PAPER_32B
        ],
        seeds=effort.seeds,
        assumed=ASSUMED,
        why=WHY["e-32b-step"],
    )


def _no_training(effort: Effort) -> Row:
    model = effort.models[0]
    arms = [protocol_arm(name, model, effort, trains=False) for name in ("one_off", "sync_plus")]
    return Row(
        id="control-no-training",
        of="e-one-off",
        kind=Kind.CONTROL,
        what="next to no training time: One-off over Sync+",
        paper="little gain",
        band="at most 1.08",
        parts=(Part(label=model, paper="little gain", low=0.0, high=1.08),),
        arms=tuple(arms),
        value=lambda seen: [seen[arms[0].name].throughput / seen[arms[1].name].throughput],
        seeds=effort.seeds,
    )


def _name(protocol: str, model: str, *more: str) -> str:
    return " ".join((protocol, model, *more))


def protocol_arm(
    protocol: str,
    model: str,
    effort: Effort,
    *,
    trains: bool = True,
    blocks: bool = False,
    warm: int = 0,
) -> Arm:
    """A protocol on the GPUs that the paper gave it.

    Args:
        trains: or takes next to no time to.
        blocks: whether RollArt's weights, too, stop the rollout, over the slow link.
        warm: steps that do not count, at least.
    """
    effort = effort.no_smaller(2)  # than what Sync leaves beside the judge
    scale = effort.scale
    mixed = protocol == ROLLART
    judge = JUDGE_GPUS if protocol == "sync" else 0
    engines = {H800: 64, H20: 32} if mixed else {H800: GPUS - TRAINER_GPUS - judge}
    skip = max(effort.warm, warm)
    more = [
        *([] if trains else ["without training"]),
        *(["with blocking weights"] if blocks else []),
        *([f"after {skip}"] if skip > effort.warm else []),
    ]
    weights = BLOCKING if blocks else ASYNC if mixed else IN_ONE_CLUSTER
    cluster = Cluster(
        model=model,
        engines={hardware: gpus // scale for hardware, gpus in engines.items()},
        trainer=TRAINER_GPUS // scale,
        training={} if trains else NO_TRAINING,
        judge=judge // scale,
        weights=weights,
    )
    return arm(
        _name(protocol, model, *more),
        cluster,
        domains=domains_of(model),
        groups=effort.groups,
        steps=skip + effort.counted,
        skip=skip,
        protocol=protocol,
        affinity=mixed,
    )
