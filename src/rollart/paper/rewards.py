"""R3, serverless rewards: GPUs kept for a judge, against GPUs that come with its calls."""

from collections.abc import Sequence

from rollart.paper.arms import AT_ONCE_BETWEEN, H800, MATH, Arm, Cluster, arm
from rollart.paper.effort import Effort
from rollart.paper.measure import REWARD_POOL
from rollart.paper.parameters import JUDGE_KEEP_S, NO_TRAINING
from rollart.paper.rows import Kind, Part, Row, Seen

GPUS, JOBS, BATCH = 16, 3, 84
GROUP = 7
"""Divides the batch."""
KEPT, COMES = "r3 dedicated", "r3 serverless"


def end_rows(effort: Effort) -> list[Row]:
    """Three jobs on 16 H800, half of which are kept for the judge, or none."""
    return [
        Row(
            id="e-r3",
            kind=Kind.END_TO_END,
            what="R3: 16 H800, three jobs, batch 84: use of reward GPUs, rollout time",
            paper="6 -> 88 %, 158 -> 77 s",
            band="above 80 %, 1.8-2.2x",
            parts=(
                Part(label="serverless use %", paper="88", low=80.0, high=100.0),
                Part(label="rollout speed", paper="2.05", low=1.8, high=2.2),
                Part(label="dedicated use %", paper="6"),
                Part(label="dedicated rollout s", paper="158"),
                Part(label="serverless rollout s", paper="77"),
            ),
            arms=(judged(KEPT, effort, judge=GPUS // 2), judged(COMES, effort)),
            value=_values,
            seeds=effort.cheap_seeds,
            assumed=(
                "8B on GEM-math; the three jobs are one run of three batches, whose engines and "
                "judges they share; the dedicated judge has half of the GPUs; serverless "
                "instances are beside the 16"
            ),
            why=(
                "Rollout time follows the longest chain of answers, whose tokens take as long each "
                "with half as many sequences a GPU, since decoding reads all weights either way; "
                "so twice the GPUs are far from twice as fast. A judge's call is short against the "
                "seconds that an idle instance is kept, so instances rest most of their time."
            ),
        )
    ]


def judged(
    name: str, effort: Effort, *, judge: int = 0, times: int = 1, keep_s: float = JUDGE_KEEP_S
) -> Arm:
    """The three jobs.

    Args:
        judge: GPUs of the 16 that are kept for the judge; 0 for a serverless one.
        times: the paper's batch.
        keep_s: that an idle instance stays.
    """
    return arm(
        name,
        Cluster(
            model="Qwen3-8B",
            engines={H800: GPUS - judge},
            trainer=64,
            training=NO_TRAINING,
            judge=judge,
            judge_keep_s=keep_s,
            weights=AT_ONCE_BETWEEN,
        ),
        domains=(MATH,),
        groups=times * JOBS * BATCH // GROUP,
        group_size=GROUP,
        steps=2 * effort.rollouts,
        protocol="sync_plus",
    )


def _values(seen: Seen) -> Sequence[float]:
    kept, comes = seen[KEPT], seen[COMES]
    return [
        100 * comes.use(REWARD_POOL),
        kept.rollout_s / comes.rollout_s,
        100 * kept.use(REWARD_POOL),
        kept.rollout_s,
        comes.rollout_s,
    ]
