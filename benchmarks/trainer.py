"""Training throughput of the torch trainer: dtype x way of computing, in one alternating run.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/trainer.py

The model has 0.6M parameters and the batch has the demo's shape: 24 groups of 8 trajectories of
103 to 246 tokens, one sampled token in eleven. Every variant trains once a round, in turn, so that
a disturbance of the machine meets all of them; the table shows each one's best and median round.
"short cut" is the default on Llama-shaped models; the others run the model's own forward.
CPU seconds are what wall seconds would be on an idle core, also while other processes run.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart.algorithms.packing import Layout
from rollart.backends.trainers.torch_trainer import Attention, TorchTrainer
from rollart.core.config import TrainConfig
from rollart.core.identity import TrajectoryId
from rollart.core.tokens import VersionRuns
from rollart.core.types import (
    Group,
    Piece,
    Segment,
    Status,
    Task,
    TrainBatch,
    Trajectory,
    Verdict,
)

VOCABULARY = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the table; `row_tokens` is the width of a packed row.

    Without an attention it is the short cut, which has neither layout nor kind of attention.
    """

    dtype: Literal["float32", "bfloat16"]
    microbatch_tokens: int
    layout: Layout = "padded"
    attention: Attention | None = None
    row_tokens: int | None = None

    @property
    def name(self) -> str:
        return "short cut" if self.attention is None else f"{self.layout} {self.attention}"


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        batch = demo_batch(groups=24, members=8)
        rates: dict[Variant, list[float]] = {variant: [] for variant in variants(options.budgets)}
        trainers = {variant: make_trainer(directory, variant) for variant in rates}
        for round_number in range(options.rounds + 1):
            for variant, trainer in trainers.items():
                begin = time.process_time()
                stats = trainer.train_step(batch)
                spent = time.process_time() - begin
                if round_number:  # the first round warms up
                    rates[variant].append(stats.input_tokens / spent)
    columns = f"{'dtype':9} {'computed':13} {'micro':>6} {'row':>5}"
    print(f"{columns} {'best':>9} {'median':>9}")
    for variant, seen in sorted(rates.items(), key=lambda item: -max(item[1])):
        print(
            f"{variant.dtype:9} {variant.name:13} "
            f"{variant.microbatch_tokens:>6} {variant.row_tokens or '-':>5} "
            f"{max(seen):>9,.0f} {statistics.median(seen):>9,.0f}"
        )
    print("tokens a CPU second of one thread, prompts included; two optimiser steps a batch")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=[8192])
    return parser.parse_args()


def variants(budgets: list[int]) -> list[Variant]:
    shapes: list[tuple[Layout, int | None]] = [("padded", None), ("packed", 256)]
    dtypes: list[Literal["float32", "bfloat16"]] = ["bfloat16", "float32"]
    attentions: list[Attention] = ["eager", "sdpa"]
    short = [
        Variant(dtype=dtype, microbatch_tokens=budget)
        for dtype, budget in itertools.product(dtypes, budgets)
    ]
    return short + [
        Variant(
            dtype=dtype,
            layout=layout,
            attention=attention,
            microbatch_tokens=budget,
            row_tokens=row,
        )
        for dtype, (layout, row), attention, budget in itertools.product(
            dtypes, shapes, attentions, budgets
        )
    ]


def make_trainer(directory: str, variant: Variant) -> TorchTrainer:
    trainer = TorchTrainer(
        directory,
        TrainConfig(
            correction="behaviour",
            optimizer_steps=2,
            microbatch_tokens=variant.microbatch_tokens,
            dtype=variant.dtype,
            entropy=0.01,
        ),
        policy="agent",
        temperatures={"lake": 1.0},
        layout=variant.layout,
        attention=variant.attention,
        row_tokens=variant.row_tokens,
        may_cut_short=variant.attention is None,
    )
    trainer.load()
    return trainer


def write_model(directory: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


def demo_batch(*, groups: int, members: int) -> TrainBatch:
    rng = np.random.default_rng(0)
    return TrainBatch(
        step=0,
        groups=tuple(
            Group(
                id=group,
                task=Task(domain="lake", key=str(group)),
                members=tuple(episode(rng, group, member) for member in range(members)),
                start_version=0,
            )
            for group in range(groups)
        ),
    )


def episode(rng: np.random.Generator, group: int, member: int) -> Trajectory:
    def observed(count: int) -> Piece:
        return Piece(ids=rng.integers(0, VOCABULARY, count, dtype=np.int32))

    pieces = [observed(26)]
    for _ in range(int(rng.integers(7, 21))):
        sampled = rng.integers(0, VOCABULARY, 1, dtype=np.int32)
        logprob = np.full(1, -np.log(VOCABULARY), np.float32)
        pieces.append(Piece(ids=sampled, logprobs=logprob, versions=VersionRuns(((0, 1),))))
        pieces.append(observed(10))
    return Trajectory(
        id=TrajectoryId(run="bench", domain="lake", task=str(group), group=group, member=member),
        policy="agent",
        task=Task(domain="lake", key=str(group)),
        segments=(Segment(pieces=tuple(pieces)),),
        turns=(),
        start_version=0,
        status=Status.FINISHED,
        verdict=Verdict(score=float(rng.random())),
    )


if __name__ == "__main__":
    main()
