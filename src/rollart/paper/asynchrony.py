"""R2, trajectory-level rollout against lockstep turns; and how far the staleness bound helps."""

from collections.abc import Sequence
from itertools import pairwise

from rollart.paper.arms import DOMAINS, H20, H800, Arm, Cluster, arm, rollout_only
from rollart.paper.effort import Effort
from rollart.paper.parameters import Fitted, frozen
from rollart.paper.rows import Kind, Part, Row, Seen, within

PAPER = {1: 1.23, 3: 1.51, 5: 1.69, 7: 2.18, 10: 2.27}
MEAN_S = 10.0
ENGINES = {H800: 16}
LOCKSTEP, FREE = "sync", "sync_plus"


def micro_rows(effort: Effort, fitted: Fitted | None = None) -> list[Row]:
    """Step times normal with mean 10 s and five sigmas, and with none."""
    found = fitted or frozen().fitted
    seeds = effort.cheap_seeds
    return [
        Row(
            id="m-r2",
            kind=Kind.MICRO,
            what="R2: rollout speed, trajectory-level over batch-level; step times N(10 s, sigma)",
            paper="/".join(f"{value:g}" for value in PAPER.values()),
            band="10 % each",
            parts=tuple(within(f"sigma {sigma}", paper, 0.10) for sigma, paper in PAPER.items()),
            arms=_arms(tuple(PAPER), found, effort),
            value=lambda seen: _speeds(seen, tuple(PAPER)),
            seeds=seeds,
            assumed=(
                f"{found.r2_batch} trajectories of {found.r2_turns} turns and "
                f"{found.r2_answer_tokens} tokens an answer (fitted), on 16 H800"
            ),
            why=(
                "The paper's five numbers jump between sigma 5 and 7. Waiting for the slowest of "
                "normal times grows smoothly, so a batch and turns that fit both ends are a little "
                "high in the middle."
            ),
        ),
        Row(
            id="control-sigma-0",
            of="m-r2",
            kind=Kind.CONTROL,
            what="the same with step times that are all alike",
            paper="near 1",
            band=".95-1.10",
            parts=(Part(label="sigma 0", paper="near 1", low=0.95, high=1.10),),
            arms=_arms((0,), found, effort),
            value=lambda seen: _speeds(seen, (0,)),
            seeds=seeds,
        ),
    ]


def _name(sigma: int, protocol: str) -> str:
    return f"r2 sigma={sigma} {protocol}"


def _arms(sigmas: Sequence[int], fitted: Fitted, effort: Effort) -> tuple[Arm, ...]:
    return tuple(
        rollout_only(
            _name(sigma, protocol),
            ENGINES,
            domains={"Latency": _latency(sigma, fitted)},
            batch=fitted.r2_batch,
            rollouts=1,
            protocol=protocol,
        )
        for sigma in sigmas
        for protocol in (LOCKSTEP, FREE)
    )


def _latency(sigma: int, fitted: Fitted) -> dict[str, object]:
    return {
        "turns": fitted.r2_turns,
        "first_tokens": 600,
        "observation_tokens": 150,
        "answer_tokens": fitted.r2_answer_tokens,
        "prefix_hit": 1.0,
        "step_s": {"normal": {"mean": MEAN_S, "sigma": float(sigma)}},
    }


def _speeds(seen: Seen, sigmas: Sequence[int]) -> Sequence[float]:
    return [
        seen[_name(sigma, LOCKSTEP)].rollout_s / seen[_name(sigma, FREE)].rollout_s
        for sigma in sigmas
    ]


# -- end to end ------------------------------------------------------------------------------------


def end_rows(effort: Effort) -> list[Row]:
    """Step time by the staleness bound, on the paper's cluster."""
    alphas = effort.alphas
    return [
        Row(
            id="e-alpha",
            kind=Kind.END_TO_END,
            what=f"step time by alpha = {', '.join(map(str, alphas))} (8B)",
            paper="gain at most 1.22, plateaus",
            band="monotone, best 1.05-1.25",
            parts=(
                Part(label="best gain", paper="at most 1.22", low=1.05, high=1.25),
                # A step slower by 2 % is within what seeds differ by.
                Part(label="least gain from one alpha to the next", paper="monotone", low=0.98),
                *(Part(label=f"gain at alpha {alpha}") for alpha in alphas[1:]),
            ),
            arms=tuple(_by_alpha(alpha, effort) for alpha in alphas),
            value=lambda seen: _alpha_gains(seen, alphas),
            seeds=effort.seeds,
            assumed="8B on 64 H800 + 32 H20, 32 H800 train",
            why=(
                "Training paces the run with alpha = 1 already, so there is no wait left for a "
                "greater one to take away. Steps even grow a little: the longer trajectories that "
                "are waited for no more come in later batches, which then have more tokens."
            ),
        )
    ]


def _by_alpha(alpha: int, effort: Effort) -> Arm:
    """The batches begun at the start, all at once, are over before anything counts."""
    warm = max(effort.warm, alpha + 1)
    return arm(
        f"alpha={alpha}",
        Cluster(
            model="Qwen3-8B",
            engines={H800: 64 // effort.scale, H20: 32 // effort.scale},
            trainer=32 // effort.scale,
        ),
        domains=DOMAINS,
        groups=effort.groups,
        steps=warm + effort.counted,
        skip=warm,
        protocol="rollart",
        alpha=alpha,
        affinity=True,
    )


def _alpha_gains(seen: Seen, alphas: Sequence[int]) -> Sequence[float]:
    steps = [seen[f"alpha={alpha}"].step_s for alpha in alphas]
    gains = [steps[0] / step for step in steps]
    onwards = [before / after for before, after in pairwise(steps)]
    return [max(gains), min(onwards), *gains[1:]]
