"""Tiny Qwen3 models, and trajectories built of "o" (observed) and "s" (sampled) tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart.backends.trainers.optim import WARM_UP
from rollart.backends.trainers.torch_trainer import TorchTrainer
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

VOCABULARY = 24


def _segment(spec: str, *, seed: int, logprob: float | None, version: int) -> Segment:
    """ "ooss" is a piece of two observed tokens and one of two sampled ones; ids are random."""
    rng = np.random.default_rng(seed)
    pieces: list[Piece] = []
    for run in spec.replace("os", "o|s").replace("so", "s|o").split("|"):
        ids = rng.integers(0, VOCABULARY, len(run), dtype=np.int32)
        if run[0] == "o":
            pieces.append(Piece(ids=ids))
            continue
        noise = rng.normal(0.0, 0.1, len(run))
        logprobs = -np.log(VOCABULARY) + noise if logprob is None else np.full(len(run), logprob)
        pieces.append(
            Piece(
                ids=ids,
                logprobs=logprobs.astype(np.float32),
                versions=VersionRuns(((version, len(run)),)),
            )
        )
    return Segment(pieces=tuple(pieces))


def _trajectory(
    *specs: str,
    group: int = 0,
    member: int = 0,
    score: float | None = 1.0,
    status: Status = Status.FINISHED,
    seed: int | None = None,
    logprob: float | None = None,
    version: int = 0,
    domain: str = "lake",
    policy: str = "agent",
) -> Trajectory:
    seed = 1000 * group + member if seed is None else seed
    segments = tuple(
        _segment(spec, seed=100 * seed + place, logprob=logprob, version=version)
        for place, spec in enumerate(specs)
    )
    task = Task(domain=domain, key=str(group))
    return Trajectory(
        id=TrajectoryId(run="test", domain=domain, task=task.key, group=group, member=member),
        policy=policy,
        task=task,
        segments=segments,
        turns=(),
        start_version=version,
        status=status,
        verdict=None if score is None else Verdict(score=score),
    )


def _group(members: Sequence[Trajectory]) -> Group:
    return Group(
        id=members[0].id.group, task=members[0].task, members=tuple(members), start_version=0
    )


def _batch(*groups: Sequence[Trajectory]) -> TrainBatch:
    """A batch of a time at which the learning rate has risen."""
    return TrainBatch(step=0, groups=tuple(_group(members) for members in groups), progress=WARM_UP)


def _random_groups(groups: int, members: int) -> list[list[Trajectory]]:
    """Several segments, turns and lengths; scores that differ within each group."""
    rng = np.random.default_rng(5)
    return [
        [
            _trajectory(
                *(
                    "o" * int(rng.integers(1, 6)) + "soos" * int(rng.integers(1, 4)) + "o" * tail
                    for tail in range(1 + member % 2)
                ),
                group=group,
                member=member,
                score=float(rng.normal()),
            )
            for member in range(members)
        ]
        for group in range(groups)
    ]


def model_logprobs(model: Any, segment: Segment, temperature: float) -> np.ndarray:
    """Log-prob of each id of the segment given those before it [n], the first one's being 0."""
    ids = torch.from_numpy(segment.ids()).long().unsqueeze(0)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].double() / temperature
    scores = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
    return np.concatenate([np.zeros(1), scores.numpy()])


def _as_sampled(trajectory: Trajectory, model: Any, temperature: float = 1.0) -> Trajectory:
    """The trajectory as an engine with this model's weights would have recorded it."""
    segments: list[Segment] = []
    for segment in trajectory.segments:
        scores, at, pieces = model_logprobs(model, segment, temperature), 0, []
        for piece in segment.pieces:
            here = scores[at : at + len(piece.ids)].astype(np.float32)
            pieces.append(replace(piece, logprobs=here) if piece.sampled else piece)
            at += len(piece.ids)
        segments.append(replace(segment, pieces=tuple(pieces)))
    return replace(trajectory, segments=tuple(segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Makes test data. `trainer` loads a fresh one; keywords are those of `TrainConfig`."""

    vocabulary: int
    trajectory: Callable[..., Trajectory]
    group: Callable[[Sequence[Trajectory]], Group]
    batch: Callable[..., TrainBatch]
    random_groups: Callable[[int, int], list[list[Trajectory]]]
    as_sampled: Callable[..., Trajectory]
    logprobs: Callable[[Any, Segment, float], np.ndarray]
    trainer: Callable[..., TorchTrainer]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@pytest.fixture
def make(model_dir: Path) -> Make:
    def trainer(
        *,
        seed: int = 0,
        temperatures: dict[str, float] | None = None,
        layout: Any = "padded",
        attention: Any = None,
        progress: Any = None,
        model: Path = model_dir,
        **config: Any,
    ) -> TorchTrainer:
        made = TorchTrainer(
            model,
            TrainConfig(**{"correction": "behaviour", "learning_rate": 1e-2, **config}),
            policy="agent",
            temperatures={"lake": 1.0} if temperatures is None else temperatures,
            seed=seed,
            layout=layout,
            attention=attention,
            progress=progress,
        )
        made.load()
        return made

    return Make(
        vocabulary=VOCABULARY,
        trajectory=_trajectory,
        group=_group,
        batch=_batch,
        random_groups=_random_groups,
        as_sampled=_as_sampled,
        logprobs=model_logprobs,
        trainer=trainer,
    )
