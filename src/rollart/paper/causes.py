"""What a miss is put down to, put to the test: arms like the row's, with that cause taken away.

Invariant: a cause is taken away whole and never by degrees, so that nothing here can be tuned. A
row that lies within its band without it is explained by it; one that does not, not by it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollart.core.jobfile import Table
from rollart.paper import pd, rewards
from rollart.paper.affinity import MIXED
from rollart.paper.arms import ASYNC, AT_ONCE, BLOCKING, DOMAINS, H20, H800, Arm, Cluster, arm
from rollart.paper.effort import Effort, halved
from rollart.paper.measure import REWARD_POOL
from rollart.paper.parameters import NO_TRAINING, TRAINER_GPUS
from rollart.paper.protocols import IN_ONE_CLUSTER
from rollart.paper.rows import Kind, Part, Row, Seen

MODEL = "Qwen3-8B"
COMPUTE, BANDWIDTH = {H800: 72}, {H20: 208}
ROLLART, BASELINE = {H800: 64, H20: 32}, {H800: 96}
ALPHAS = (1, 2, 4)
MORE = 8
"""Times the batch of R3: enough that decoding is not paced by the reading of weights."""

ALIKE: Mapping[str, Table] = {
    "WebShop": {"turns": 17},
    "FrozenLake": {"turns": 60},
    "GEM-math": {"turns": 2, "answer_tokens": 4000},
    "GEM-game": {"answer_tokens": 4000},
}
"""Each domain's trajectories of about its mean length, without a tail."""


def cause_rows(effort: Effort) -> list[Row]:
    """One for each cause that a row's text names and that can be taken away."""
    small = halved(effort)
    return [
        *_without_training(small),
        *_without_tails(small),
        *_rewards(small),
        *_prefixes(small),
    ]


def _without_training(effort: Effort) -> list[Row]:
    """Next to no training time and weights that are there at once: generation paces the run."""
    mixed, compute, bandwidth = (
        _arm(f"{name} paced by generation", gpus, effort)
        for name, gpus in (("64+24", MIXED), ("72 H800", COMPUTE), ("208 H20", BANDWIDTH))
    )
    rollart = _arm("rollart paced by generation", ROLLART, effort)
    areal = _arm("areal paced by generation", BASELINE, effort, protocol="areal")
    alphas = [
        _arm(f"alpha={alpha} paced by generation", ROLLART, effort, alpha=alpha) for alpha in ALPHAS
    ]
    beside, stopped = (
        _arm(f"{name} weights, paced by generation", ROLLART, effort, weights=weights)
        for name, weights in (("asynchronous", ASYNC), ("blocking", BLOCKING))
    )
    return [
        _cause(
            "e-r1-h800",
            "training",
            "throughput on 64 H800 + 24 H20 over 72 H800, next to no training time",
            Part(label=MODEL, low=1.05, high=1.45),
            arms=(mixed, compute),
            value=partial(_throughputs, mixed, compute),
        ),
        _cause(
            "e-r1-h20",
            "training",
            "throughput on 64 H800 + 24 H20 over 208 H20, next to no training time",
            Part(label=MODEL, low=1.2, high=1.8),
            arms=(mixed, bandwidth),
            value=partial(_throughputs, mixed, bandwidth),
        ),
        _cause(
            "e-rollart-areal",
            "training",
            "throughput, rollart over areal, next to no training time nor time for weights",
            Part(label=MODEL, low=1.1, high=1.45),
            arms=(rollart, areal),
            value=partial(_throughputs, rollart, areal),
        ),
        _cause(
            "e-alpha",
            "training",
            "step time by alpha, next to no training time",
            Part(label="gain at alpha 2", low=1.05, high=1.25),
            Part(label="gain at alpha 4", low=1.05, high=1.25),
            arms=tuple(alphas),
            value=partial(_steps, alphas),
        ),
        _cause(
            "e-weights",
            "training",
            "step time, blocking over asynchronous weights, next to no training time",
            Part(label=MODEL, low=1.05, high=1.2),
            arms=(beside, stopped),
            value=partial(_steps, [stopped, beside]),
        ),
    ]


def _without_tails(effort: Effort) -> list[Row]:
    """Trajectories of a domain that are all about as long."""
    sync, sync_plus, one_off, areal = (
        _arm(
            f"{name}, lengths alike",
            BASELINE,
            effort,
            protocol=name,
            domains=ALIKE,
            training={},
            weights=IN_ONE_CLUSTER,
        )
        for name in ("sync", "sync_plus", "one_off", "areal")
    )
    return [
        _cause(
            "e-sync-plus",
            "tails",
            "throughput, sync_plus over sync, lengths alike",
            Part(label=MODEL, low=1.3, high=2.5),
            arms=(sync_plus, sync),
            value=partial(_throughputs, sync_plus, sync),
        ),
        _cause(
            "e-areal",
            "tails",
            "throughput, areal over one_off, lengths alike",
            Part(label=MODEL, low=1.0, high=1.1),
            arms=(areal, one_off),
            value=partial(_throughputs, areal, one_off),
        ),
    ]


def _rewards(effort: Effort) -> list[Row]:
    """More work for the GPUs; and instances that go as soon as they are idle."""
    kept = rewards.judged(f"r3 dedicated, {MORE} times the batch", effort, judge=8, times=MORE)
    comes = rewards.judged(f"r3 serverless, {MORE} times the batch", effort, times=MORE)
    gone = rewards.judged("r3 serverless, no instance kept", effort, keep_s=0.0)
    return [
        _cause(
            "e-r3",
            "chains",
            f"R3: rollout speed with {MORE} times the batch, which no single chain paces",
            Part(label="rollout speed", low=1.8, high=2.2),
            arms=(kept, comes),
            value=lambda seen: [seen[kept.name].rollout_s / seen[comes.name].rollout_s],
        ),
        _cause(
            "e-r3",
            "keeping",
            "R3: use of reward GPUs where no idle instance is kept",
            Part(label="serverless use %", low=80.0, high=100.0),
            arms=(gone,),
            value=lambda seen: [100 * seen[gone.name].use(REWARD_POOL)],
        ),
    ]


def _prefixes(effort: Effort) -> list[Row]:
    """A batch whose prefixes fit on one node; and a baseline without slow prefill."""
    batch, few, many = 32, (1, 3), (2, 2)
    apart, both = (made(pd.DENSE, few, effort, batch) for made in (pd.divided, pd.together))
    divided, alike = pd.divided(pd.DENSE, many, effort), pd.alike(pd.DENSE, effort)
    return [
        _cause(
            "e-pd-dense",
            "prefixes",
            f"PD over co-located, 1P3D with a batch of {batch}, whose prefixes fit on one node",
            Part(label="1P3D", low=1.0),
            arms=(apart, both),
            value=lambda seen: [seen[both.name].rollout_s / seen[apart.name].rollout_s],
        ),
        _cause(
            "e-pd-dense",
            "slow-prefill",
            "2P2D over four nodes of H800 that do both, so that no prefill is slow",
            Part(label="2P2D", low=1.0, high=1.1),
            arms=(divided, alike),
            value=lambda seen: [seen[alike.name].rollout_s / seen[divided.name].rollout_s],
        ),
    ]


def _cause(
    of: str,
    cause: str,
    what: str,
    *parts: Part,
    arms: tuple[Arm, ...],
    value: Callable[[Seen], Sequence[float]],
) -> Row:
    return Row(
        id=f"cause-{of.removeprefix('e-')}-{cause}",
        of=of,
        kind=Kind.CAUSE,
        what=what,
        paper="",
        band="that of its row",
        parts=parts,
        arms=arms,
        value=value,
        seeds=1,
        assumed="half of the GPUs and of the batch, one seed",
    )


def _arm(
    name: str,
    engines: Mapping[str, int],
    effort: Effort,
    *,
    protocol: str = "rollart",
    alpha: int = 1,
    domains: Sequence[str] | Mapping[str, Table] = DOMAINS,
    training: Mapping[str, Any] = NO_TRAINING,
    weights: Mapping[str, Any] = AT_ONCE,
) -> Arm:
    """Batches begun all at once at the start are over before anything counts."""
    skip = max(effort.warm, alpha + 1)
    return arm(
        f"cause {name}",
        Cluster(
            model=MODEL,
            engines={hardware: gpus // effort.scale for hardware, gpus in engines.items()},
            trainer=TRAINER_GPUS // effort.scale,
            training=training,
            weights=weights,
        ),
        domains=domains,
        groups=effort.groups,
        steps=skip + effort.counted,
        skip=skip,
        protocol=protocol,
        alpha=alpha,
        affinity=len(engines) > 1,
    )


def _throughputs(over: Arm, under: Arm, seen: Seen) -> Sequence[float]:
    return [seen[over.name].throughput / seen[under.name].throughput]


def _steps(arms: Sequence[Arm], seen: Seen) -> Sequence[float]:
    """Step time of the first over each of the others'."""
    first, *others = (seen[each.name].step_s for each in arms)
    return [first / each for each in others]
