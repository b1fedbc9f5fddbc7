"""The parameters of the evaluation: what was fitted, what was chosen, and every change since.

Invariant: `frozen.toml` is written by `rollart.paper.fit` and was committed before the first
end-to-end run; whatever changes in it or in the catalogues afterwards is an entry of `changes`,
with all rows before and after.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What the micro-benchmarks do not say of themselves, fitted to their results.

    Attributes:
        r2_batch, r2_turns: trajectories at once and turns of each under normal step times.
        r2_answer_tokens: of each answer there.
        task_sigma: of the logarithm of a factor on step times that a task's trajectories share.
        member_sigma: of the logarithm of what is each trajectory's own.
    """

    r2_batch: int
    r2_turns: int
    r2_answer_tokens: int
    task_sigma: float
    member_sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change after the fit: what and why, and all rows before and after, as printed."""

    date: str
    what: str
    why: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The file's content; `fingerprint` is that of the numbers in force when it was written."""

    fitted: Fitted
    fingerprint: str
    changes: tuple[Change, ...]


@cache
def frozen() -> Frozen:
    """The parameters in force."""
    table: Mapping[str, Any] = tomllib.loads(
        files("rollart.paper").joinpath("frozen.toml").read_text(encoding="utf-8")
    )
    return Frozen(
        fitted=Fitted(**table["fitted"]),
        fingerprint=table["fingerprint"],
        changes=tuple(Change(**change) for change in table.get("changes", ())),
    )


# -- what was chosen, where the paper leaves it open; before any end-to-end run -----------------

TENSOR_PARALLEL: Mapping[str, int] = {
    "Qwen3-8B": 1,
    "Qwen3-14B": 2,
    "Qwen3-32B": 4,
    "Qwen3-30B-A3B": 2,  # chosen: its weights leave half of two GPUs for KV
}
"""GPUs an engine; the first three are the paper's."""

MODELS = ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
WITH_SWE = MODELS[2]
"""The only one that trains on SWE-bench, too."""
GROUP = 8
BATCH_GROUPS = 64
CONTEXT = 32768
"""The paper's: 64 groups of 8 make its batch of 512."""

LONGEST_ANSWER = 16384
"""Chosen: tokens at which an answer is cut, half of the context."""

SLOTS, STEP_TOKENS = 256, 8192
"""Chosen: sequences in an engine's batch, and tokens of one of its iterations."""

NO_TRAINING: Mapping[str, Any] = {
    "fixed_s": 0.0,
    "mfu": 1.0,
    "logprob_passes": 0,
    "recompute": False,
}
"""A trainer that takes next to no time."""

ON_COMPUTE = ("SWE-bench", "WebShop", "FrozenLake")
"""Domains of many short turns over a growing context, which prefill decides; the others decode."""

JUDGE_GPUS = 8
"""Chosen: GPUs that the synchronous baseline keeps for the judge."""

JUDGE_S: Mapping[str, Any] = {"lognormal": {"mean": 0.53, "sigma": 0.5}}
"""Derived: a 7B judge reads 11k tokens of an H800's prefill (.43 s) and writes a dozen (.1 s)."""

JUDGE_KEEP_S = 5.0
"""Chosen: an idle instance of a judge gives its GPU back so soon, since others wait for it."""

ONE_CLUSTER = "infiniband-400"
"""The link of weights where trainer and engines are in one cluster, as the baselines' are."""

TRAINER_GPUS = 32
"""The paper's, of 128."""

TRAINER_SHARE = 4
"""Chosen: one GPU in so many trains, which is the paper's 32 of 128."""
