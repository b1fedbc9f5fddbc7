"""Spare groups and spare members: how much sooner a batch is full."""

from collections.abc import Sequence

from rollart.paper.arms import H800, Arm, rollout_only
from rollart.paper.effort import Effort
from rollart.paper.parameters import GROUP, Fitted, frozen
from rollart.paper.rows import Kind, Row, Seen, within

NEEDED = 32
PAPER = {
    (8, 32): 1.0,
    (8, 34): 1.16,
    (8, 36): 1.30,
    (10, 32): 1.11,
    (10, 34): 1.38,
    (10, 36): 1.52,
    (12, 32): 1.24,
    (12, 34): 1.51,
    (12, 36): 1.62,
}
"""Speed-up by (members a group, groups), of which 8 and 32 are needed."""
ENGINES = {H800: 32}
TURNS = 2
MEAN_S = 10.0


def micro_rows(effort: Effort, fitted: Fitted | None = None) -> list[Row]:
    """Rollout time of 32 groups of 8 with more started than are needed."""
    found = fitted or frozen().fitted
    return [
        Row(
            id="m-redundancy",
            kind=Kind.MICRO,
            what="redundant environments: speed of a rollout of 32 groups of 8",
            paper="1/1.16/1.30, 1.11/1.38/1.52, 1.24/1.51/1.62",
            band="6 % each",
            parts=tuple(
                within(f"{groups} groups of {members}", paper, 0.06)
                for (members, groups), paper in PAPER.items()
            ),
            arms=tuple(_arm(members, groups, found, effort) for members, groups in PAPER),
            value=_speeds,
            # A rollout ends with its slowest: it takes many until the mean says something.
            seeds=max(6, 2 * effort.cheap_seeds),
            assumed=(
                f"{TURNS} turns of 10 s; lognormal times, sigma {found.task_sigma:g} of what a "
                f"task's trajectories share and {found.member_sigma:g} of their own (fitted)"
            ),
            why=(
                "Spare groups alone gain a little more than the paper's, spare members a little "
                "less: two sigmas were fitted to all nine numbers at once."
            ),
        )
    ]


def _name(members: int, groups: int) -> str:
    return f"redundancy {groups} groups of {members}"


def _arm(members: int, groups: int, fitted: Fitted, effort: Effort) -> Arm:
    step_sigma = fitted.member_sigma * TURNS**0.5  # what is summed over turns averages out
    return rollout_only(
        _name(members, groups),
        ENGINES,
        domains={
            "Latency": {
                "turns": TURNS,
                "first_tokens": 600,
                "observation_tokens": 150,
                "answer_tokens": {"exponential": 60},
                "prefix_hit": 1.0,
                "step_s": {"lognormal": {"mean": MEAN_S, "sigma": step_sigma}},
            }
        },
        batch=NEEDED * GROUP,
        rollouts=3 * effort.rollouts,
        spares=(members - GROUP, groups - NEEDED),
        task_sigma=fitted.task_sigma,
    )


def _speeds(seen: Seen) -> Sequence[float]:
    plain = seen[_name(GROUP, NEEDED)].rollout_s
    return [plain / seen[_name(members, groups)].rollout_s for members, groups in PAPER]
